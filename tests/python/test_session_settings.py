"""Properties of a session: reading gives the mode, setting takes what fit and Region take."""

import copy
import pickle

import pytest
import torch

import snug


@pytest.fixture
def weight():
    return torch.ones(8, requires_grad=True)


def session_of(weight, **options):
    return snug.fit(lambda x: (x * weight).exp().sum(), torch.ones(8), "1GiB", **options)


def test_verify_replays_is_a_property(weight):
    modes = snug.VerifyReplay
    for check, mode in ((False, modes.Off), (True, modes.Once), (modes.Hashes, modes.Hashes), (modes.Off, modes.Off)):
        with session_of(weight, check=check) as session:
            assert session.verify_replays == mode
    for wrong in ("no", 1, None):
        with pytest.raises(snug.UsageError, match="check is .*; give True, False or a snug.VerifyReplay"):
            session_of(weight, check=wrong)
    with session_of(weight) as session:
        assert session.verify_replays == modes.Once
        for value, mode in ((True, modes.Hashes), (False, modes.Off), (modes.Values, modes.Values), (modes.Once, modes.Once)):
            session.verify_replays = value
            assert session.verify_replays == mode
        for wrong in (1, "hashes", None):
            with pytest.raises(snug.UsageError, match="verify_replays is .*; set it to True, False or a snug.VerifyReplay"):
                session.verify_replays = wrong
        assert session.verify_replays == modes.Once


def test_detect_anomalies_is_a_property(weight):
    with session_of(weight) as session:
        assert session.detect_anomalies is False
        session.backward(torch.full((8,), float("inf")))
        session.detect_anomalies = True
        assert session.detect_anomalies is True
        with pytest.raises(snug.Error, match="aten::"):
            session.backward(torch.full((8,), float("inf")))
        session.detect_anomalies = False
        session.backward(torch.full((8,), float("inf")))
        with pytest.raises(snug.UsageError, match="detect_anomalies is 1; set it to True or False"):
            session.detect_anomalies = 1


def test_a_closed_session_takes_no_settings(weight):
    session = session_of(weight)
    session.close()
    for name in ("verify_replays", "detect_anomalies"):
        with pytest.raises(snug.UsageError, match="closed"):
            setattr(session, name, True)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_not_copied(weight, copied):
    with session_of(weight) as session:
        with pytest.raises(snug.UsageError, match="cannot be copied or pickled; leave it out"):
            copied(session)

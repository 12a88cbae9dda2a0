"""What would do nothing, or something else, is refused."""

import pytest
import torch

import snug


def test_verify_refuses_a_model_that_is_not_the_steps():
    weight = torch.ones(8, requires_grad=True)
    for other in (torch.nn.Linear(2, 2), []):
        with pytest.raises(snug.UsageError, match=r"gradients for none of the \d parameters of the model; give the one that the step trains"):
            snug.verify(lambda x: (x * weight).sum(), torch.ones(8), other, "1GiB")


def test_a_method_of_a_session_is_not_set():
    weight = torch.ones(8, requires_grad=True)
    with snug.fit(lambda x: (x * weight).sum(), torch.ones(8), "1GiB") as session:
        with pytest.raises(snug.UsageError, match=r"session: detect_anomalies is called and not set: session.detect_anomalies\(True\)"):
            session.detect_anomalies = True
        assert session.backward(torch.ones(8)).item() == 8

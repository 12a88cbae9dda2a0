"""Training programs as people write them, plain and under several budgets: losses, parameters, gradients, buffers,
optimizer state, attributes and random generators have the same bits after every step, or the first step raises an error."""

import contextlib
import functools
import re

import pytest
import torch
from conftest import only_on_the_cpu
from written_programs import PROGRAMS, Program, bits, differences, seed

import snug

pytestmark = [
    only_on_the_cpu("kernels that write to memory through NumPy"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Steps are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(name: str) -> Program:
    seed()
    return PROGRAMS[name]()


def plain_backward(program: Program):
    def backward(batch, step=None, **_):
        loss = (step or program.step)(batch)
        if not program.goes_backward:
            loss.backward()
        return None if loss is None else loss.detach()

    return backward


def run(program: Program, backward, left: list):
    """Adds to `left` what each iteration leaves."""
    seed()
    for batch in program.batches:
        loss = program.iteration(batch, backward)
        left.append({"loss": bits(loss), **program.state()})
    return left


@functools.cache
def plain(name: str) -> list:
    program = made(name)
    return run(program, plain_backward(program), [])


def marked(name: str, place: str, is_long: bool):
    cls, marks = PROGRAMS[name], []
    if cls.broken and place in (cls.broken_in or cls.places):  # with checkpoints by hand there is no session
        marks.append(pytest.mark.xfail(strict=True, reason=cls.broken))
    if is_long:
        marks.append(pytest.mark.long)
    return pytest.param(name, place, id=f"{name}-{place}", marks=marks)


def cases(*kinds: str):
    """Every program in each of its places of these kinds. Planning takes most of the time: of every sixth program one budget
    in turn is in make test, and so is every second one with everything recomputed; make test-long has all."""
    chosen = []
    for index, (name, cls) in enumerate(sorted(PROGRAMS.items())):
        budgets = [place for place in cls.places if place.endswith("%")]
        in_turn = budgets[index // 6 % len(budgets)] if index % 6 == 0 else "recomputed" if index % 2 else None
        has_checkpoints = "recomputed" in cls.places and not cls.error
        for place in (*cls.places, *["checkpoint"] * has_checkpoints):
            chosen += [marked(name, place, place != in_turn)] if place in kinds else []
    return chosen


def wrapped(program: Program, wrapper) -> None:
    """Has each of the program's blocks run in `wrapper`."""
    for block in program.blocks():
        block.forward = wrapper(block.forward)


def everything_recomputed(forward):
    return snug.Region(lambda op: snug.Choice.MustRecompute)(forward)


def fitted(program: Program, place: str, sample):
    """A session with the budget, or the smallest one above it that fits."""
    options = program.fit_options()
    if place == "recomputed":
        wrapped(program, everything_recomputed)
        return snug.fit(program.step, sample, "1GiB", strategy="none", **options)
    percent = float(place[:-1])
    for _ in range(4):
        try:
            return snug.fit(program.step, sample, f"{percent:.1f}%", **options)
        except snug.DoesNotFit as error:
            percent = min(1.05 * percent * error.floor / error.budget, 100)
    raise AssertionError(f"{percent} % do not fit")


def check_same(expected: list, left: list) -> None:
    assert len(left) == len(expected)
    for i, (one, other) in enumerate(zip(expected, left, strict=True)):
        different = differences(one, other)
        assert not different, f"step {i}: {different}"


def check_failure(program: Program, error: snug.Error, left: list) -> None:
    """The error is the expected one and comes in fit or in the first step."""
    pattern = program.error or program.may_fail
    assert pattern is not None and re.search(pattern, str(error)), error
    assert left == []


@pytest.mark.parametrize("name, place", cases("100%", "90%", "80%", "60%", "40%", "recomputed"))
def test_in_a_session(name, place):
    expected = plain(name)
    program, left = made(name), []
    program.micro_batch = snug.micro_batch
    sample = program.sample()
    seed()
    before = program.state()
    with contextlib.ExitStack() as stack:
        try:
            try:
                session = stack.enter_context(fitted(program, place, sample))
            finally:
                assert differences(before, program.state()) == [], "fit left a trace"
            run(program, session.backward, left)
            replayed = session.last_step.replayed_ops
        except snug.Error as error:
            check_failure(program, error, left)
            return
    check_same(expected, left)
    assert program.error is None
    has_layers = any(isinstance(block, torch.nn.Sequential) for block in program.blocks())  # a single one saves its inputs
    assert place != "recomputed" or not has_layers or replayed > 0


@pytest.mark.parametrize("name, place", cases("region", "checkpoint"))
def test_with_checkpoints_by_hand(name, place):
    expected = plain(name)
    program, left = made(name), []
    by_hand = {"checkpoint": snug.checkpoint(mode=snug.Replay()), "region": snug.Region(snug.Recompute(), verify_replay=True)}
    wrapped(program, by_hand[place])
    try:
        run(program, plain_backward(program), left)
    except snug.Error as error:
        check_failure(program, error, left)
        return
    check_same(expected, left)
    assert program.error is None

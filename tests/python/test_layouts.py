"""Models as torch.distributed divides them, under plans: no bit of a loss, a gradient or a weight is another one than without
snug, plans are followed, and the cap holds. FSDP2, tensor and sequence parallel by DTensor, hybrids, and DDP."""

import pytest

import layouts
from conftest import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="processes meet by Gloo, and have the CPU")


def check(results, processes, table):
    assert len(results) == processes * sum(len(layout.budgets) for layout in table.values())
    for (name, budget, rank), found in results.items():
        where = f"{name}, {budget}, process {rank}"
        assert found["same"] == 1, where
        assert all(ended is True for ended in found["followed"]), (where, found["followed"])
        assert min(found["replayed"]) > 0, where
        most = max(unplanned for *_, unplanned in found["peaks"])
        for peak, predicted, limit, _ in found["peaks"]:
            assert peak <= limit < 0.85 * most, where
            # To the byte, but for what Gloo's threads have not let go of yet: a buffer of a collective.
            assert peak <= predicted + found["buffer"], (where, peak, predicted)


# Each process imports PyTorch, so that few of them run all layouts, one behind the other.
OFTEN = ("ddp", "fsdp, layers in blocks", "fsdp, bf16 reduced as it comes")


@pytest.mark.parametrize("which", ["often", pytest.param("all others", marks=pytest.mark.long)])
def test_two_processes(which):
    table = {name: layout for name, layout in layouts.TWO.items() if (name in OFTEN) == (which == "often")}
    assert table
    check(layouts.run_all(2, table), 2, table)


@pytest.mark.long
def test_four_processes():
    check(layouts.run_all(4, layouts.FOUR), 4, layouts.FOUR)


@pytest.mark.long
def test_two_processes_at_the_smallest_budget():
    """That is in bytes, so that the recording is under the limit, too."""
    names = ("fsdp", "fsdp, root too", "fsdp, blocks twice", "tensor")
    table = {name: layouts.at_the_floor(layouts.TWO[name]) for name in names}
    check(layouts.run_all(2, table), 2, table)

"""Actions of regions: what they are made of, how they compare, and what policies may return."""

import copy
import pickle

import pytest
import torch
import torch.utils.checkpoint as tc
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

import snug


@torch.library.custom_op("snug_actions::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


halve.register_autograd(lambda ctx, g: g / 2)
W = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()


def function(x):
    """Saves results of mm, exp, max, max.dim, add.Tensor and halve, and what needs no operator of its own."""
    y = (x @ W).exp()
    z = halve(y).square() + y
    return (z.max(dim=0).values * z.max()).exp().sum()


def gradients(action=None):
    """Of a function in a region, with the number of operators that were replayed, and how many tensors were kept."""
    x = torch.linspace(0, 1, 32).reshape(4, 8).requires_grad_()
    if action is None:
        return torch.autograd.grad(function(x), [x, W]), 0, 0
    region = snug.Region(action)
    with region:
        y = function(x)
    kept = region.saved_tensors["kept"]
    return torch.autograd.grad(y, [x, W]), region.replayed_ops, kept


PLAIN = gradients()[0]


def same(action):
    found, replayed, kept = gradients(action)
    assert all(torch.equal(a, b) for a, b in zip(PLAIN, found))
    return replayed, kept


@pytest.mark.parametrize("operator, name", [
    (torch.ops.aten.mm.default, "aten::mm"),
    (torch.ops.aten.mm, "aten::mm"),
    (torch.ops.aten.add.Tensor, "aten::add.Tensor"),
    (torch.ops.aten.add, "aten::add"),
    (torch.ops.aten.max.dim, "aten::max.dim"),
    (torch.ops.aten.exp.default, "aten::exp"),
    (halve, "snug_actions::halve"),
    (torch.ops.snug_actions.halve.default, "snug_actions::halve"),
    (torch.ops.snug_actions.halve, "snug_actions::halve"),
], ids=str)
def test_operators_are_as_their_names(operator, name):
    by_name, nothing = same(snug.Selective(keep=[name])), same(snug.Recompute())
    assert same(snug.Selective([operator])) == same(snug.Selective(keep=(operator,))) == by_name
    assert by_name[0] < nothing[0]


def test_an_overload_without_a_name_is_one_overload():
    """torch.ops.aten.max.default is not torch.ops.aten.max.dim, as "aten::max" is."""
    kept = []
    for keep in (["aten::max"], [torch.ops.aten.max], [torch.ops.aten.max.default, torch.ops.aten.max.dim]):
        kept.append(same(snug.Selective(keep)))
    assert kept[0] == kept[1] == kept[2]
    alone = same(snug.Selective([torch.ops.aten.max.default]))
    assert alone == same(snug.Selective(["aten::max.default"]))
    assert alone[0] > kept[0][0] and alone[1] < kept[0][1]
    # As torch has it, with names and modules beside.
    policy = tc.create_selective_checkpoint_contexts([torch.ops.aten.max.default])[0].policy_fn
    assert alone == same(lambda op: policy(None, torch.ops.aten.max.default) if op.name == "aten::max" else False)
    both = same(snug.Selective([torch.ops.aten.max.default, "aten::mm"], keep_modules=["none"]))
    assert both == same(lambda op: op.name in ("aten::max", "aten::mm"))


def test_modules_beside_operators():
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
    names = snug.name_modules(model)
    seen = set()

    def run(action):
        x = torch.linspace(0, 1, 32).reshape(4, 8).requires_grad_()
        region = snug.Region(action)
        with region:
            y = model["second"](model["first"](x).sin()).sin().exp().sum()
        return torch.autograd.grad(y, [x, *model.parameters()]), region.replayed_ops

    (plain, _), (everything, most) = run(snug.Keep()), run(snug.Recompute())
    for keep in ([torch.ops.aten.exp.default], ["aten::exp"]):
        found, replayed = run(snug.Selective(keep, keep_modules=["first"]))
        assert all(torch.equal(a, b) for a, b in zip(plain, found)) and replayed < most
        seen.add(replayed)
    assert len(seen) == 1 and all(torch.equal(a, b) for a, b in zip(plain, everything))
    names.remove()


def test_sizes_are_texts():
    assert snug.Offload(min_bytes="1MiB") == snug.Offload() and snug.Offload(min_bytes="1 KiB").min_bytes == 1024
    x = torch.linspace(0, 1, 32).reshape(4, 8).requires_grad_()
    for size, moved in (("64B", True), ("1GiB", False)):
        with snug.Region(snug.Offload(min_bytes=size)) as region:
            y = function(x)
        assert (region.offloaded_bytes > 0) == moved
        assert all(torch.equal(a, b) for a, b in zip(PLAIN, torch.autograd.grad(y, [x, W])))


ANSWERS = {CheckpointPolicy[name]: choice for name, choice in {
    "MUST_SAVE": snug.Choice.MustKeep,
    "PREFER_SAVE": snug.Choice.PreferKeep,
    "MUST_RECOMPUTE": snug.Choice.MustRecompute,
    "PREFER_RECOMPUTE": snug.Choice.PreferRecompute,
    "MUST_CPU_OFFLOAD": snug.Choice.Offload,
    "PREFER_CPU_OFFLOAD": snug.Choice.Offload,
}.items() if name in CheckpointPolicy.__members__} | {True: snug.Choice.MustKeep, False: snug.Choice.PreferRecompute}


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_policies_return_what_those_of_torch_do(answer):
    def policy(of_mm):
        return lambda op: of_mm if op.name == "aten::mm" else snug.Choice.PreferRecompute

    assert same(policy(answer)) == same(policy(ANSWERS[answer]))
    assert same(lambda op: answer) == same(lambda op: ANSWERS[answer])


def test_every_policy_of_torch_is_known():
    from snug import actions

    assert {policy.name for policy in CheckpointPolicy} <= actions._CHOICES.keys()


def test_other_answers_are_refused():
    x = torch.randn(4, 8, requires_grad=True)
    for answer in (None, 1, "MUST_SAVE", torch.tensor(True), snug.Keep()):
        with pytest.raises(snug.UsageError, match=r"the policy returned .* for aten::\w+; return a snug.Choice or a"):
            with snug.Region(lambda op: answer):
                function(x)


def test_actions_compare_print_and_travel():
    actions = [snug.Keep(), snug.Recompute(), snug.Offload(min_bytes=5), snug.Offload(min_bytes=6),
               snug.Selective([torch.ops.aten.mm.default, halve, torch.ops.aten.add], keep_modules=["a"]),
               snug.Selective(["aten::mm"])]
    for i, action in enumerate(actions):
        pickled, written = pickle.loads(pickle.dumps(action)), eval(repr(action), vars(snug))
        for again in (copy.copy(action), copy.deepcopy(action), pickled, written):
            assert again == action and type(again) is type(action) and hash(again) == hash(action)
        assert [action == other for other in actions] == [i == j for j in range(len(actions))]
        assert snug.Replay(action) == snug.Replay(pickled)
    assert actions[4].keep == ("aten::mm.default", "snug_actions::halve.default", "aten::add")
    assert actions[4].keep_modules == ("a",)
    assert repr(actions[5]) == "Selective(keep=('aten::mm',), keep_modules=())"
    with pytest.raises(AttributeError):
        actions[2].min_bytes = 3


@pytest.mark.parametrize("make, message", [
    (lambda: snug.Selective("aten::mm"), r'keep is "aten::mm"; give a list: keep=\["aten::mm"\]'),
    (lambda: snug.Selective(torch.ops.aten.mm.default), r"keep is aten.mm.default; give a list"),
    (lambda: snug.Selective(halve), "keep is .*halve.*; give a list"),
    (lambda: snug.Selective(3), "keep is 3; give a list"),
    (lambda: snug.Selective([torch.mm]), "a builtin_function_or_method; give names"),
    (lambda: snug.Selective([torch.ops.higher_order.cond]), "higher-order operator cond; name operators that it runs"),
    (lambda: snug.Selective(keep_modules="mlp"), 'keep_modules is "mlp"; give a list'),
    (lambda: snug.Selective(keep_modules=[nn.Linear(2, 2)]), "keep_modules has Linear; give paths of modules"),
    (lambda: snug.Selective(keep_modules=[torch.ops.aten.mm]), "keep_modules has OpOverloadPacket; give paths"),
    (lambda: snug.Offload(min_bytes="1 banana"), "Offload: min_bytes: .*banana"),
    (lambda: snug.Offload(min_bytes=-1), "min_bytes is -1; give 0 bytes or more"),
    (lambda: snug.Offload(min_bytes=None), "min_bytes: .*NoneType"),
    (lambda: snug.Region(snug.Region(snug.Keep())), "the action is a Region; give the action that it has"),
    (lambda: snug.Region(snug.Selective(["aten::sum.default", "aten::sun.default"])),
     'keep has "aten::sun.default".*did you mean "aten::sum.default"'),
    (lambda: snug.Region(snug.Selective(["aten::add.default"])), 'keep has "aten::add.default", and no operator is'),
    (lambda: snug.Region(snug.Selective([torch.ops.aten.mm.default, "aten.mm"])),
     'keep has "aten.mm", .*did you mean "aten::mm'),
])
def test_wrong_actions_are_refused(make, message):
    with pytest.raises(snug.UsageError, match=message):
        make()


def test_libraries_that_are_loaded_later_may_be_named():
    same(snug.Selective([torch.ops.aten.mm.default, "not_loaded_yet::op.default", "not_loaded_yet::other"]))

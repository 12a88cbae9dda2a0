"""Regions and checkpoints by hand."""

import gc

import pytest
import torch
from conftest import DEVICE, only_on_the_cpu
from torch import nn

import snug


def block():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.BatchNorm1d(32))


def run(inside, model=None, seed=3):
    """Loss, gradients and buffers of a block whose forward runs within `inside`."""
    model = model or block()
    x = torch.linspace(-1, 1, 16 * 32).reshape(16, 32).requires_grad_()
    torch.manual_seed(seed)
    y = inside(model, x)
    y.square().sum().backward()
    return [y.detach(), x.grad] + [p.grad for p in model.parameters()] + list(model.buffers())


def same(a, b):
    assert len(a) == len(b)
    for i, (x, y) in enumerate(zip(a, b)):
        assert torch.equal(x, y), i


PLAIN = run(lambda m, x: m(x))


def in_region(action, **options):
    def inside(model, x):
        with snug.Region(action, **options):
            return model(x)

    return inside


@pytest.mark.parametrize(
    "action",
    [
        snug.Recompute(),
        snug.Keep(),
        snug.Offload(min_bytes=0),
        snug.Selective(keep=["aten::addmm"]),
        lambda op: snug.Choice.MustKeep if op.name == "aten::gelu" else snug.Choice.PreferRecompute,
    ],
)
def test_every_action_gives_the_same_bits(action):
    same(PLAIN, run(in_region(action)))
    same(PLAIN, run(in_region(action, verify_replay=True)))
    same(PLAIN, run(in_region(action, verify_replay=snug.VerifyReplay.Values, detect_anomalies=True)))


def test_a_region_tells_what_it_did():
    model, x = block(), torch.randn(16, 32, requires_grad=True)
    region = snug.Region(snug.Recompute())
    with region:
        y = model(x)
    y.sum().backward()
    assert region.replayed_ops > 3 and region.offloaded_bytes == 0 and region.opaque_values == []
    offload = snug.Region(snug.Offload(min_bytes=64))
    with offload:
        y = model(x)
    assert offload.offloaded_bytes > 0
    with pytest.raises(snug.UsageError, match="action"):
        snug.Region(3)


def test_a_policy_sees_names_and_modules_and_may_raise():
    seen = []

    def policy(op):
        seen.append((op.name, op.module, op.invocation))
        return snug.Choice.PreferRecompute

    model, x = block(), torch.randn(16, 32, requires_grad=True)
    with snug.Region(policy), snug.ModuleScope("blocks.0"):
        model(x).sum().backward()
    assert ("aten::addmm", "blocks.0", 1) in seen

    def raises(op):
        raise KeyError("not this")

    with pytest.raises(KeyError, match="not this"), snug.Region(raises):
        model(x)
    with pytest.raises(snug.UsageError, match="Choice"), snug.Region(lambda op: 3):
        model(x)
    same(PLAIN, run(in_region(snug.Recompute())))


def test_modules_are_named_by_their_paths():
    seen = set()

    def policy(op):
        seen.add(op.module)
        return snug.Choice.PreferRecompute

    model = block()
    names = snug.name_modules(model)
    with snug.Region(policy):
        model(torch.randn(16, 32, requires_grad=True))
    assert {"0", "3", "4"} <= seen
    names.remove()
    seen.clear()
    with snug.Region(policy):
        model(torch.randn(16, 32, requires_grad=True))
    assert seen == {""}


MODES = [snug.Replay(), snug.Replay(snug.Offload(min_bytes=0)), snug.Rerun(), snug.Rerun(early_stop=False),
         snug.Rerun(determinism_check="none", debug=True)]


@pytest.mark.parametrize("mode", MODES)
def test_checkpoints(mode):
    # A rerun does twice what it does: without running statistics.
    def without_statistics():
        return nn.Sequential(*list(block())[:4])

    plain = run(lambda m, x: m(x), without_statistics())
    same(plain, run(lambda m, x: snug.checkpoint(m, x, mode=mode), without_statistics()))
    same(plain, run(lambda m, x: snug.checkpoint_sequential(m, 2, x, mode=mode), without_statistics()))


@pytest.mark.parametrize("mode", MODES)
def test_any_arguments_and_results(mode):
    w = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8, requires_grad=True)

    def function(a, scale, *, more, nested):
        y = (a @ w * scale + nested["t"][0]).sin()
        return {"y": (y, None, "text", more), "twice": [y * 2, y.detach()]}

    def gradients(call):
        out = call(x, 2.0, more=(1, "two"), nested={"t": (x.cos(), 5)})
        assert out["y"][1:] == (None, "text", (1, "two"))
        return torch.autograd.grad(out["y"][0].sum() + out["twice"][0].exp().sum(), (w, x))

    plain = gradients(function)
    for _ in range(2):
        same(plain, gradients(lambda *a, **k: snug.checkpoint(function, *a, mode=mode, **k)))


@pytest.mark.parametrize("mode", MODES)
def test_double_backward_and_retain_graph(mode):
    w = torch.randn(8, 8, requires_grad=True)

    def gradients(call):
        y = call(lambda: (w.sin() @ w.exp()).tanh()).sum()
        (first,) = torch.autograd.grad(y, w, create_graph=True)
        (again,) = torch.autograd.grad(y, w, retain_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), w)
        return first.detach(), again, second

    same(gradients(lambda f: f()), gradients(lambda f: snug.checkpoint(f, mode=mode)))


def test_exceptions_leave_everything_as_before():
    class Stop(Exception):
        pass

    def fails(x):
        x.sin().exp()
        raise Stop

    x = torch.randn(8, requires_grad=True)
    for mode in MODES:
        with pytest.raises(Stop):
            snug.checkpoint(fails, x, mode=mode)
    region = snug.Region(snug.Recompute())
    with pytest.raises(Stop), region:
        fails(x)
    y = x.sin()
    y.sum().backward()
    same(PLAIN, run(in_region(snug.Recompute())))


def test_a_function_that_fails_when_it_is_called_again():
    calls = []

    def function(x):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("not twice")
        return x.sin().exp()

    x = torch.randn(8, requires_grad=True)
    y = snug.checkpoint(function, x, mode=snug.Rerun()).sum()
    with pytest.raises(RuntimeError, match="not twice"):
        y.backward()
    calls.clear()
    y = snug.checkpoint(function, x).sum()
    y.backward()
    assert len(calls) == 1


def test_a_weight_changed_before_backward_is_an_error():
    w = torch.randn(8, requires_grad=True)
    y = snug.checkpoint(lambda: (w.sin() * w).exp().sum())
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(snug.Error, match="modified in place"):
        y.backward()


def test_custom_functions_in_python():
    class Cube(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            Cube.calls += 1
            square = x * x
            ctx.save_for_backward(x, square)
            return square * x

        @staticmethod
        def backward(ctx, g):
            x, square = ctx.saved_tensors
            return 3 * square * g

    x = torch.randn(64, requires_grad=True)
    (plain,) = torch.autograd.grad(Cube.apply(x.sin()).sum(), x)
    Cube.calls = 0
    region = snug.Region(snug.Recompute())
    with region:
        y = Cube.apply(x.sin()).sum()
    same([plain], torch.autograd.grad(y, x))
    assert Cube.calls == 1 and region.replayed_ops >= 2


def test_torch_hooks_inside_win_and_those_outside_do_not():
    x = torch.randn(64, requires_grad=True)
    packed = []

    def pack(t):
        packed.append(t)
        return t

    with snug.Region(snug.Recompute()):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = x.sin().exp()
    y.sum().backward()
    assert len(packed) == 2
    packed.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        region = snug.Region(snug.Recompute())
        with region:
            y = x.sin().exp() * 2  # of the exponentials, which are saved, nobody else has any
        inside = len(packed)
        z = y.cos()
    z.sum().backward()
    assert inside == 0 and len(packed) == 1 and region.replayed_ops >= 1


def test_autocast_and_functional_call():
    model = block()

    def inside(recompute):
        x = torch.linspace(-1, 1, 16 * 32).reshape(16, 32).requires_grad_()
        parameters = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
        torch.manual_seed(2)
        with torch.autocast(DEVICE, torch.bfloat16), snug.Region(snug.Recompute() if recompute else snug.Keep()):
            y = torch.func.functional_call(model, parameters, (x,))
        y.float().sum().backward()
        return [p.grad for p in parameters.values()]

    same(inside(False), inside(True))


def test_inference_and_no_grad_are_plain_calls():
    x = torch.randn(8)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            for mode in MODES:
                assert torch.equal(snug.checkpoint(torch.sin, x, mode=mode), x.sin())


@only_on_the_cpu("NumPy's memory")
def test_opaque_values_are_kept_and_named():
    def numpy_kernel(x):
        y = torch.empty(64)
        y.numpy()[:] = x.detach().numpy() * 3
        return y

    x = torch.randn(64, requires_grad=True)
    region = snug.Region(snug.Recompute())
    with region:
        y = (numpy_kernel(x) * x).sin().sum()
    y.backward()
    expected = torch.autograd.grad(((x.detach() * 3) * x).sin().sum(), x)[0]
    assert torch.equal(x.grad, expected)
    assert len(region.opaque_values) == 1 and "empty" in region.opaque_values[0]


def test_a_policy_may_keep_what_it_was_asked():
    kept = []

    def policy(op):
        kept.append(op)
        return snug.Choice.PreferRecompute

    model = block()
    with snug.Region(policy), snug.ModuleScope("a long enough name to live on the heap"):
        model(torch.randn(16, 32, requires_grad=True))
    assert {op.module for op in kept} == {"a long enough name to live on the heap"} and kept[0].name.startswith("aten::")


def test_names_survive_interrupts_and_scopes_entered_again():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    names = snug.name_modules(model)

    class Interrupts(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model[1].append(Interrupts())
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(2, 8))
    del model[1][2]
    seen = set()
    x = torch.randn(2, 8, requires_grad=True)
    with snug.Region(lambda op: seen.add(op.module) or snug.Choice.PreferKeep):
        model(x)
    assert seen == {"0", "1.0", "1.1"}
    names.remove()
    seen.clear()
    scope, inner = snug.ModuleScope("a"), snug.ModuleScope("b")
    with snug.Region(lambda op: seen.add(op.module) or snug.Choice.PreferKeep):
        with scope, inner, scope:
            torch.randn(2, requires_grad=True).sin()
        torch.randn(2, requires_grad=True).sin()
    assert seen == {"a.b.a", ""}


def test_wrong_use_says_so():
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(snug.UsageError, match="mode"):
        snug.checkpoint(torch.sin, x, mode=snug.Recompute())
    with pytest.raises(snug.UsageError, match="action"):
        snug.Region(snug.Recompute)
    assert torch.equal(snug.checkpoint(torch.sin, x, use_reentrant=False), x.sin())
    with pytest.raises(snug.UsageError):
        snug.set_memory_limit("8 bananas")
    with pytest.raises(snug.UsageError):
        snug.parse_bytes(1 << 70)
    snug.set_memory_limit("8GiB", torch.device(DEVICE))
    assert snug.memory_stats()["limit"] == 8 << 30
    snug.set_memory_limit(None)


def test_hooks_between_two_regions_do_not_disable_the_inner_one():
    x = torch.randn(64, requires_grad=True)
    packed = []
    outer, inner = snug.Region(snug.Keep()), snug.Region(snug.Recompute())
    with outer, torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t), inner:
        y = x.sin().exp() * 2
    y.sum().backward()
    assert packed == [] and inner.replayed_ops > 0


def test_what_a_rerun_finds_wrong_is_an_error_of_ours():
    calls = []

    def function(x):
        calls.append(1)
        return x.sin().cos() if len(calls) == 1 else x.sin()[:3].cos()

    y = snug.checkpoint(function, torch.randn(8, requires_grad=True), mode=snug.Rerun(early_stop=False)).sum()
    with pytest.raises(snug.Error, match="saved tensor"):
        y.backward()


def test_actions_can_be_copied_and_pickled():
    import copy
    import pickle

    actions = [snug.Keep(), snug.Recompute(), snug.Offload(min_bytes=5), snug.Selective(keep=["aten::mm"], keep_modules=["a"])]
    for action in actions:
        for again in (copy.deepcopy(action), pickle.loads(pickle.dumps(action))):
            assert type(again) is type(action)
            for name in ("min_bytes", "keep", "keep_modules"):
                assert getattr(again, name, None) == getattr(action, name, None)
    assert pickle.loads(pickle.dumps(snug.Replay(actions[3]))).action.keep == ("aten::mm",)


def test_a_policy_may_refer_to_what_holds_its_region():
    import weakref

    class Holder:
        def __init__(self):
            self.region = snug.Region(self.policy)

        def policy(self, operator):
            return snug.Choice.PreferRecompute

    holder = Holder()
    x = torch.randn(64, requires_grad=True)
    with holder.region:
        y = x.sin().exp() * 2
    y.sum().backward()
    assert holder.region.replayed_ops > 0
    gone = weakref.ref(holder)
    del holder, y
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("around", ["fit", "step"])
def test_hooks_around_a_session_are_an_error(around):
    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)

    def step(x):
        return (x @ w).tanh().square().mean()

    def bf16():
        return torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float())

    with snug.fit(step, x, "100%") as session:
        with bf16(), pytest.raises(snug.UsageError, match="enter them inside the step"):
            snug.fit(step, x, "100%") if around == "fit" else session(x)
        session(x)
    assert w.grad is not None

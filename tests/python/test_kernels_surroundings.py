"""What the kernel of a custom operator finds around it in a replay: arguments, requires_grad, the choice of attention."""

import contextlib

import torch
from conftest import only_on_the_cpu
from plain_and import bits, leaf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import snug

pytestmark = only_on_the_cpu("kernels of the CPU")

lib = torch.library.Library("kernels_surroundings", "DEF")
lib.define("affine(Tensor x, float[] by) -> Tensor")
lib.impl("affine", lambda x, by: x * by[0] + by[1], "CPU")


@torch.jit.script
def two(x):
    by = [1.5, 0.1]
    a = torch.ops.kernels_surroundings.affine(x, by)
    by[0] = 3.0  # of the list that the first call was given
    return a, torch.ops.kernels_surroundings.affine(x, by)


@torch.jit.script
def noise(rows: int):
    size = [64, 16]
    a = torch.rand(size)
    size[0] = rows
    return a * torch.rand(size).sum()


def gradients(weight, loss_of, region):
    weight.grad = None
    torch.manual_seed(1)
    with region or contextlib.nullcontext():
        loss = loss_of()
    loss.backward()
    return bits([weight.grad])


def agree(weight, loss_of):
    """The first replay is not compared, so that what differs is seen here."""
    for _ in range(3):
        plain = gradients(weight, loss_of, None)
        region = snug.Region(snug.Recompute(), verify_replay=False)
        if gradients(weight, loss_of, region) != plain:
            return False
        assert region.replayed_ops > 0
    return True


def test_lists_that_a_script_changes_afterwards():
    x, w = torch.randn(64, 16), leaf(16)

    def loss():
        a, b = two(torch.tanh(x))
        return (torch.sin(a * w) * torch.cos(b * w)).mean()

    assert agree(w, loss)
    assert agree(w, lambda: torch.sin(noise(4) * w).sum())


@torch.library.custom_op("kernels_surroundings::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(q, k, k).clone()


attend.register_autograd(lambda ctx, g: (g, g))


def test_the_choice_of_attention():
    x, w = torch.randn(2, 4, 64, 64), leaf(64, 64)

    def loss():
        with sdpa_kernel(SDPBackend.MATH):
            h = x @ w
            return torch.tanh(attend(h, x)).square().mean()

    assert agree(w, loss)
    assert torch.backends.cuda.flash_sdp_enabled()


seen = set()


@torch.library.custom_op("kernels_surroundings::project", mutates_args=())
def project(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    seen.add((x.requires_grad, w.requires_grad))
    return torch.matmul(x, w)


def backward_of_project(ctx, g):
    x, w = ctx.saved_tensors
    return g @ w.transpose(-1, -2), (x.transpose(-1, -2) @ g).sum(0)


project.register_autograd(
    backward_of_project, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def test_whether_arguments_require_gradients():
    x, w = torch.randn(1, 4, 300).transpose(0, 1), leaf(300, 300)

    def loss():
        h = torch.tanh(project(x, w)).transpose(0, 1).contiguous().transpose(0, 1)
        return torch.tanh(project(h, w)).square().mean()

    assert agree(w, loss)
    assert seen == {(False, True), (True, True)}

"""What would do nothing, or something else, is refused."""

import pytest
import torch

import snug


def test_verify_refuses_a_model_that_is_not_the_steps():
    weight = torch.ones(8, requires_grad=True)
    for other in (torch.nn.Linear(2, 2), []):
        with pytest.raises(snug.UsageError, match=r"gradients for none of the \d parameters of the model; give the one that the step trains"):
            snug.verify(lambda x: (x * weight).sum(), torch.ones(8), other, "1GiB")


def test_a_model_is_a_module():
    for name, call in (
        ("fuse", lambda: snug.fuse(3)),
        ("unfuse", lambda: snug.unfuse([torch.nn.Linear(2, 2)])),
        ("name_modules", lambda: snug.name_modules("model")),
    ):
        with pytest.raises(snug.UsageError, match=rf"{name}: the model is a \w+; give a torch.nn.Module"):
            call()
    with pytest.raises(snug.UsageError, match="verify: the model is a int; give a torch.nn.Module, or its parameters"):
        snug.verify(lambda x: x.sum(), torch.ones(8), 3, "1GiB")


def test_operators_that_are_kept_are_some_that_there_are():
    x = torch.ones(8, 8, requires_grad=True)
    for name, meant in (("aten.mm", "aten::mm"), ("aten::add.Tenser", "aten::add.Tensor")):
        with pytest.raises(snug.UsageError, match=f'keep has "{name}", and no operator is called so; did you mean "{meant}"'):
            with snug.Region(snug.Selective(keep=[name])):
                x.sum()
    with snug.Region(snug.Selective(keep=["aten::mm", "aten::add.Tensor"])):
        (x @ x).exp().sum().backward()


def test_budgets_of_tiers_are_no_more_than_there_is():
    weight = torch.ones(8, requires_grad=True)
    for tier, owner in (("host", "this machine"), ("disk", "the disk of ")):
        with pytest.raises(snug.UsageError, match=f"{tier} budget: 900000.0 TiB is more than the .* that {owner}.* has; give less"):
            snug.fit(lambda x: (x * weight).sum(), torch.ones(8), "1GiB", **{f"{tier}_budget": "900000TiB"})


@pytest.mark.parametrize(
    "budget, message",
    [
        (lambda: "200%", 'fit: budget: "200%" is not a percentage'),
        (lambda: "8 bananas", 'fit: budget: "8 bananas" has the unknown unit'),
        (lambda: torch.zeros(300, 300), "fit: budget: tensor([[0., 0., 0.,"),
    ],
)
def test_says_once_what_is_wrong_on_a_short_line(budget, message):
    weight = torch.ones(8, requires_grad=True)
    with pytest.raises(snug.UsageError) as refused:
        snug.fit(lambda x: (x * weight).sum(), torch.ones(8), budget())
    assert str(refused.value).startswith(message) and len(str(refused.value)) < 200 and "\n" not in str(refused.value)

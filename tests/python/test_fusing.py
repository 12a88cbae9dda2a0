"""Operators of snug in the modules of transformers models: every bit stays, and less is kept."""

import copy
import io

import pytest
import torch
from torch import nn

import snug

VOCABULARY = 512


def models():
    import transformers as t

    sizes = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=32)
    yield "llama", lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes))
    yield "llama_bias", lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes, mlp_bias=True))
    yield "mistral", lambda: t.MistralForCausalLM(t.MistralConfig(**sizes))
    yield "qwen2", lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**{k: v for k, v in sizes.items() if k != "head_dim"}))
    yield "qwen3", lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**sizes))
    yield "gemma", lambda: t.GemmaForCausalLM(t.GemmaConfig(**sizes))
    yield "gemma2", lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**sizes))


NAMES = ("llama", "llama_bias", "mistral", "qwen2", "qwen3", "gemma", "gemma2")


def make(name):
    torch.manual_seed(0)
    model = dict(models())[name]()
    tokens = torch.randint(0, VOCABULARY, (2, 64))
    return model, {"input_ids": tokens, "labels": tokens}


def step(model, batch, dtype=None):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def same(found, expected):
    return len(found) == len(expected) and all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_model_has_the_bits_of_the_plain_one(name, dtype):
    model, batch = make(name)
    expected = step(model, batch, dtype)
    fused = snug.fuse(model)
    assert [f.module for f in fused] == [f"model.layers.{i}.mlp" for i in range(3)]
    assert {f.operator for f in fused} == {"gated_linear"}
    assert same(step(model, batch, dtype), expected)
    assert snug.fuse(model) == []  # it is already
    snug.unfuse(model)
    assert not any("Fused" in type(m).__name__ for m in model.modules())
    assert same(step(model, batch, dtype), expected)


def test_weights_in_bf16_are_fused_with_their_bits():
    model, batch = make("llama")
    model.to(torch.bfloat16)
    expected = step(model, batch)
    assert len(snug.fuse(model)) == 3
    assert same(step(model, batch), expected)


def test_less_is_kept():
    kept = []
    for fused in (False, True):
        model, batch = make("llama")
        if fused:
            snug.fuse(model)
        bytes_kept = [0]

        def pack(t):
            bytes_kept[0] += t.numel() * t.element_size()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(**batch).loss.backward()  # a graph with hooks that is never run is never freed
        kept.append(bytes_kept[0])
    # silu(gate) and the product, fp32, (2, 64, 256), of three layers; gate is no longer kept a second time for silu
    assert kept[0] - kept[1] >= 3 * 2 * (2 * 64 * 256 * 4)


def test_a_fused_model_is_planned_and_replayed_bitwise():
    model, _ = make("llama")
    tokens = torch.randint(0, VOCABULARY, (8, 256))
    batch = {"input_ids": tokens, "labels": tokens}
    snug.fuse(model)
    expected = [t.clone() for t in step(model, batch)]
    model.zero_grad()
    with snug.fit(lambda b: model(**b).loss, batch, "80%") as session:
        session.backward(batch)
        assert session.last_step.replayed_ops > 0
    assert same([p.grad for p in model.parameters()], expected[1:])


def test_hooks_and_adapters_are_called():
    model, batch = make("llama")
    called = []
    mlp = model.model.layers[0].mlp
    snug.fuse(model)
    expected = step(model, batch)
    for part in (mlp.act_fn, mlp.down_proj):
        handle = part.register_forward_hook(lambda module, inputs, output: called.append(type(module).__name__))
        assert same(step(model, batch), expected)
        handle.remove()
    assert called == ["SiLUActivation", "Linear"]

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    mlp.down_proj.__class__ = Doubled
    assert not same(step(model, batch), expected)


def test_copies_and_files_of_a_fused_model_are_fused():
    model, batch = make("llama")
    snug.fuse(model)
    expected = step(model, batch)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(other.model.layers[1].mlp).__name__ == "FusedLlamaMLP"
        assert isinstance(other.model.layers[1].mlp, type(model.model.layers[1].mlp))
        assert same(step(other, batch), expected)
        other.model.layers[1].mlp.down_proj.weight.data.zero_()
    assert same(step(model, batch), expected)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 16), nn.Linear(8, 16)
        self.down_proj, self.act_fn = nn.Linear(16, 8), nn.SiLU()

    def forward(this, hidden: torch.Tensor) -> torch.Tensor:  # noqa: N805
        """By other names."""
        result = this.down_proj(this.act_fn(this.gate_proj(hidden)) * this.up_proj(hidden))
        return result


class Sum(Gated):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))


class Clamped(Gated):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=10)) * self.up_proj(x))


class Scaled(Gated):
    def forward(self, x):
        return 1 * self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def test_what_is_written_otherwise_is_left_alone():
    assert [f.module for f in snug.fuse(nn.Sequential(Gated(), nn.Linear(8, 8)))] == ["0"]
    for other in (Sum, Clamped, Scaled):
        assert snug.fuse(nn.Sequential(other())) == []
    import transformers as t

    mlps = [t.models.glm4.modeling_glm4.Glm4MLP, t.models.seed_oss.modeling_seed_oss.SeedOssMLP]
    assert not any(snug.fusing._is_gated_class(mlp) for mlp in mlps)
    assert snug.fusing._is_gated_class(t.models.llama.modeling_llama.LlamaMLP)


def test_a_fused_model_with_lazy_logits():
    import transformers as t

    torch.manual_seed(0)
    # Inner widths that tiled_loss takes for vocabularies.
    config = t.GemmaConfig(vocab_size=4096, hidden_size=64, intermediate_size=4096, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    model, tokens = t.GemmaForCausalLM(config), torch.randint(0, 4096, (2, 8))
    batch = {"input_ids": tokens, "labels": tokens}
    expected = step(model, batch)
    snug.fuse(model)
    with snug.tiled_loss():
        found = step(model, batch)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-6)


def test_a_copy_keeps_what_refers_to_itself():
    model = nn.Sequential(Gated())
    snug.fuse(model)
    model[0].me = [model[0]]
    copied = copy.deepcopy(model)
    assert copied[0].me[0] is copied[0] and copied[0] is not model[0]
    snug.unfuse(copied)
    assert type(copied[0]) is Gated


def test_two_derivatives_and_gradcheck():
    torch.manual_seed(0)
    x, factor = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight, bias = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((4, 5), (4,)))
    for activation in ("silu", "gelu_tanh", "gelu"):
        gated = lambda *t: snug._core.gated(*t, activation)  # noqa: E731, B023
        linear = lambda a, f, w, b: snug._core.activated_linear(a, f, activation, w, b)  # noqa: E731, B023
        for function, inputs in ((gated, (x, factor)), (linear, (x, factor, weight, bias)), (linear, (x, None, weight, None))):
            assert torch.autograd.gradcheck(function, inputs)
            assert torch.autograd.gradgradcheck(function, inputs)
    with pytest.raises(snug.UsageError, match="it is gelu, gelu_tanh or silu"):
        snug._core.gated(x, factor, "relu")

"""Operators of snug in the modules of transformers models: every bit stays, and less is kept."""

import copy
import io

import pytest
import torch
from conftest import DEVICE, only_on_the_cpu
from torch import nn

import snug
from snug import fusing

VOCABULARY, MIB = 512, 1 << 20


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
    with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16):
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
    written_so = lambda mlp: snug.fusing._is_written_as(mlp, snug.fusing._gated_forward)  # noqa: E731
    assert not any(written_so(mlp) for mlp in mlps)
    assert written_so(t.models.llama.modeling_llama.LlamaMLP)


def close(found, expected):
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_rms_norms_change_the_order_of_sums_alone(name):
    model, batch = make(name)
    expected = step(model, batch)
    fused = snug.fuse(model, allow=["rms_norm"])
    norms = [f for f in fused if f.operator == "rms_norm"]
    assert len(norms) == 3 * (4 if name == "qwen3" else 2) + 1 and not any(f.bitwise for f in norms)
    found = step(model, batch)
    assert torch.equal(found[0], expected[0]) and close(found, expected)  # the forward pass has the same bits
    snug.unfuse(model)
    assert same(step(model, batch), expected)


def test_a_norm_by_itself_has_the_same_bits():
    model, batch = make("llama")
    norm, x = model.model.norm, torch.randn(2, 64, 64)
    results = []
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        norm.weight.grad = None
        norm(leaf).sin().sum().backward()
        results.append([leaf.grad, norm.weight.grad])
        snug.fuse(model, allow=["rms_norm"])
    assert type(norm).__name__ == "FusedLlamaRMSNorm" and same(*results)
    # What is rounded in between is left to the model.
    model.to(torch.bfloat16)
    fused = norm(x.bfloat16())
    snug.unfuse(model)
    assert torch.equal(fused, norm(x.bfloat16()))


@only_on_the_cpu("kernels of norms")
def test_norms_keep_their_input_alone():
    kept = []
    for allow in ([], ["rms_norm"]):
        model, batch = make("llama")
        snug.fuse(model, allow=allow)
        storages = {}

        def pack(t):
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(**batch).loss.backward()
        kept.append(sum(storages.values()))
    # the normalized, fp32, (2, 64, 64), of seven norms
    assert kept[0] - kept[1] >= 7 * 2 * 64 * 64 * 4


def test_tiled_feed_forward_parts():
    model, batch = make("llama")
    expected = step(model, batch)
    fused = snug.fuse(model, allow=["tiled_mlp"], mlp_rows=48)
    assert [f.operator for f in fused] == ["tiled_gated_linear"] * 3 and not any(f.bitwise for f in fused)
    rows = []
    handle = model.model.layers[0].mlp.gate_proj.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    found = step(model, batch)
    handle.remove()
    assert rows == [48, 48, 32] and close(found, expected)
    assert copy.deepcopy(model).model.layers[1].mlp.snug_rows == 48
    snug.unfuse(model)
    assert not hasattr(model.model.layers[0].mlp, "snug_rows") and same(step(model, batch), expected)


def test_tiled_feed_forward_parts_lower_the_floor():
    floors = []
    for allow in ([], ["tiled_mlp"]):
        model, _ = make("llama")
        tokens = torch.randint(0, VOCABULARY, (1, 2048))
        snug.fuse(model, allow=allow, mlp_rows=256 if allow else None)
        floors.append(snug.plan(lambda b: model(**b).loss, {"input_ids": tokens, "labels": tokens}, allow=["tiled_loss"]).floor)
    assert floors[1] < floors[0] - MIB


def test_what_is_fused_is_tiled_by_another_call():
    model, batch = make("llama")
    assert len(snug.fuse(model)) == 3
    assert [f.operator for f in snug.fuse(model, allow=["tiled_mlp"], mlp_rows=48)] == ["tiled_gated_linear"] * 3
    assert len(snug.fuse(model, allow=["tiled_mlp"], mlp_rows=32)) == 3 and model.model.layers[0].mlp.snug_rows == 32
    assert snug.fuse(model, allow=["tiled_mlp"], mlp_rows=32) == [] == snug.fuse(model)
    assert type(model.model.layers[0].mlp).__mro__[3].__name__ == "_Kind"
    snug.unfuse(model)
    assert type(model.model.layers[0].mlp).__name__ == "LlamaMLP"


def test_dropout_inside_is_not_tiled():
    model, batch = make("llama")
    for layer in model.model.layers:
        layer.mlp.gate_proj = nn.Sequential(layer.mlp.gate_proj, nn.Dropout(0.5))
    torch.manual_seed(1)
    expected = step(model, batch)
    assert len(snug.fuse(model, allow=["tiled_mlp"], mlp_rows=16)) == 3
    torch.manual_seed(1)
    assert same(step(model, batch), expected)


def test_calls_that_are_not_of_one_tensor_are_the_models():
    model, batch = make("llama")
    snug.fuse(model, allow=["rms_norm"])
    norm, x = model.model.norm, torch.randn(4, 64)
    assert torch.equal(norm(hidden_states=x), norm(x))
    norm.weight = nn.Parameter(torch.rand(4, 64))  # one for each head, say
    assert norm(x).shape == x.shape
    mlp = model.model.layers[0].mlp
    names = dict(mlp.named_parameters())
    loss = lambda p: torch.func.functional_call(mlp, p, (x,)).sum()  # noqa: E731
    found = torch.func.grad(loss)({k: v.detach() for k, v in names.items()})
    loss(names).backward()
    assert all(torch.allclose(found[name], p.grad) for name, p in names.items())


def test_names_that_are_not_known_are_refused():
    model, _ = make("llama")
    with pytest.raises(snug.UsageError, match='did you mean "rms_norm"'):
        snug.fuse(model, allow=["rms_nrom"])
    with pytest.raises(snug.UsageError, match="give a list"):
        snug.fuse(model, allow="rms_norm")
    with pytest.raises(snug.UsageError, match="mlp_rows is 64, and nothing is tiled"):
        snug.fuse(model, mlp_rows=64)
    with pytest.raises(snug.UsageError, match="allow is None"):
        snug.fuse(model, allow=None)
    with pytest.raises(snug.UsageError, match="mlp_rows is 0"):
        snug.fuse(model, allow=["tiled_mlp"], mlp_rows=0)
    assert not any("Fused" in type(m).__name__ for m in model.modules())


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


def test_names_of_modules_hinder_no_fusing():
    model, batch = make("llama")
    names = snug.name_modules(model)
    before = snug.plan(lambda b: model(**b).loss, batch).unplanned_peak
    assert len(snug.fuse(model)) == len(model.model.layers)
    assert snug.plan(lambda b: model(**b).loss, batch).unplanned_peak < before
    names.remove()


def test_a_class_without_its_source_is_left_alone(monkeypatch):
    model, _ = make("llama")
    monkeypatch.setattr(fusing.inspect, "getsource", lambda _: (_ for _ in ()).throw(OSError()))
    fusing._is_written_as.cache_clear()
    assert snug.fuse(model, allow=["rms_norm"]) == []
    fusing._is_written_as.cache_clear()

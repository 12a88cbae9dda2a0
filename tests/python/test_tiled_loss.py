"""The loss of any model a few rows of logits at a time: close to the plain one, and the logits are never made."""

import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE, reset_peak
from torch import nn

import snug
from snug import lazy_logits

VOCABULARY = 8192


def causal_models():
    import transformers as t

    small = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2)
    grouped = dict(small, num_key_value_heads=1)
    yield "llama", lambda: t.LlamaForCausalLM(t.LlamaConfig(**grouped))
    yield "mistral", lambda: t.MistralForCausalLM(t.MistralConfig(**grouped))
    yield "qwen2", lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**grouped, tie_word_embeddings=True))
    yield "gemma", lambda: t.GemmaForCausalLM(t.GemmaConfig(**grouped, head_dim=32))
    yield "phi", lambda: t.PhiForCausalLM(t.PhiConfig(**small))
    yield "opt", lambda: t.OPTForCausalLM(t.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=64, word_embed_proj_dim=64, ffn_dim=128, num_hidden_layers=2,
        num_attention_heads=2))
    yield "gpt2", lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=2))
    yield "gpt_neox", lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**small))
    yield "mamba", lambda: t.MambaForCausalLM(t.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, state_size=8))
    yield "bert", lambda: t.BertForMaskedLM(t.BertConfig(**small))
    yield "t5", lambda: t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=VOCABULARY, d_model=64, d_ff=128, num_layers=2, num_heads=2, d_kv=32, decoder_start_token_id=0,
        dropout_rate=0.0))


NAMES = ("llama", "mistral", "qwen2", "gemma", "phi", "opt", "gpt2", "gpt_neox", "mamba", "bert", "t5")


@pytest.fixture
def made(monkeypatch):
    """How often logits were made real."""
    count = [0]
    real = lazy_logits._Projection.real

    def counted(self):
        count[0] += 1
        return real(self)

    monkeypatch.setattr(lazy_logits._Projection, "real", counted)
    return count


def make(name):
    torch.manual_seed(0)
    model = dict(causal_models())[name]().eval()  # without dropout
    labels = torch.randint(0, VOCABULARY, (2, 48))
    labels[0, :20] = -100
    return model, {"input_ids": torch.randint(0, VOCABULARY, (2, 48)), "labels": labels}


def gradients(model, loss):
    for p in model.parameters():
        p.grad = None
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("name", NAMES)
def test_models_of_transformers(name, amp, made):
    model, batch = make(name)

    def loss_of():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
            return model(**batch).loss

    plain = loss_of()
    expected = gradients(model, plain)
    with snug.tiled_loss(tile=16 * VOCABULARY * 4):
        loss = loss_of()
    assert made == [0]
    found = gradients(model, loss)
    assert loss.dtype == plain.dtype
    assert torch.allclose(loss, plain, rtol=1e-2 if amp else 1e-5)
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        # Of biases of keys they are but noise.
        noise, largest = 1e-6 if amp else 1e-9, expected[key].abs().max()
        assert (gradient - expected[key]).abs().max() <= (0.05 if amp else 1e-4) * largest + noise, key


def test_a_session_that_is_allowed_to_has_less_to_plan(made):
    model, batch = make("llama")
    long = {"input_ids": torch.randint(0, VOCABULARY, (4, 512))}
    long["labels"] = long["input_ids"]

    def step(b):
        return model(**b).loss

    plain, tiled = snug.plan(step, long), snug.plan(step, long, allow=["tiled_loss"])
    logits = 4 * 512 * VOCABULARY * 4
    assert tiled.unplanned_peak < plain.unplanned_peak - logits
    assert tiled.floor < plain.floor - logits
    with snug.fit(step, long, tiled.floor + (4 << 20), allow=["tiled_loss"]) as session:
        compared = snug.verify(step, long, model, session=session)
        assert len(compared) > 10
        assert session.last_step.followed_plan
        reset_peak()
        session.backward(batch)  # another shape
        assert snug.memory_stats()["mapped_peak"] <= session.plan.budget
    assert made == [0]


def head(width=16, bias=True):
    torch.manual_seed(0)
    return nn.Linear(width, VOCABULARY, bias=bias), torch.randn(2, 6, width), torch.randint(0, VOCABULARY, (2, 6))


def check(loss_of, made, times=0):
    """The same loss and gradient, with so many logits made real."""
    layer, x, target = head()
    results = []
    for lazy in (False, True):
        layer.zero_grad()
        inner = x.clone().requires_grad_()
        if lazy:
            with snug.tiled_loss():
                loss = loss_of(layer(inner), target)
        else:
            loss = loss_of(layer(inner), target)
        loss.backward()
        results.append((loss.detach(), inner.grad, layer.weight.grad.clone(), layer.bias.grad.clone()))
    for plain, found in zip(*results, strict=True):
        assert torch.allclose(plain, found, rtol=1e-4, atol=1e-7)
    assert made == [times]


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda y, t: F.cross_entropy(y.view(-1, VOCABULARY), t.view(-1)),
        lambda y, t: F.cross_entropy(input=y.view(-1, VOCABULARY), target=t.view(-1)),
        lambda y, t: F.cross_entropy(y.float().reshape(-1, y.size(-1)), t.reshape(-1), reduction="sum"),
        lambda y, t: nn.CrossEntropyLoss()(y[..., :-1, :].contiguous().view(-1, y.shape[-1]), t[..., 1:].reshape(-1)),
        lambda y, t: nn.CrossEntropyLoss(ignore_index=3)(y.flatten(0, 1), t.flatten().clamp(max=5)),
        lambda y, t: F.cross_entropy(y[:, 1:].reshape((10, -1)), t[:, 1:].reshape(-1)),
        lambda y, t: F.cross_entropy(y[0, 1:, ...], t[0, 1:]) + F.cross_entropy(y[..., 2, :], t[:, 2]),
        lambda y, t: F.cross_entropy(y[0], t[0]) + F.cross_entropy(y[1], t[1]),
        lambda y, t: F.cross_entropy(y[:, torch.tensor([0, 4])].view(-1, VOCABULARY), t[:, [0, 4]].flatten()),
        lambda y, t: F.cross_entropy(y.view(-1, VOCABULARY), t.view(-1), label_smoothing=0.1),
        lambda y, t: F.cross_entropy(y.view(-1, VOCABULARY), t.view(-1), ignore_index=int(t[0, 0]), label_smoothing=0.3),
        lambda y, t: F.cross_entropy(y.to(torch.float32).to(t.device).view(12, VOCABULARY), t.view(12)),
    ],
)
def test_ways_to_a_loss_that_stay_lazy(loss_of, made):
    check(loss_of, made)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda y, t: F.cross_entropy(y.view(-1, VOCABULARY), t.view(-1), weight=torch.arange(VOCABULARY) / VOCABULARY),
        lambda y, t: F.cross_entropy(y.transpose(1, 2), t),
        lambda y, t: F.cross_entropy((30 * torch.tanh(y / 30)).view(-1, VOCABULARY), t.view(-1)),
        lambda y, t: F.cross_entropy(y.view(-1, VOCABULARY), t.view(-1), reduction="none").mean(),
        lambda y, t: F.cross_entropy(y[t > 4000], t[t > 4000]),
        lambda y, t: F.cross_entropy(y[..., :8000].reshape(12, -1), t.view(-1).clamp(max=7000)),
        lambda y, t: F.cross_entropy(y[:, :, 100:].reshape(12, -1), t.view(-1).clamp(max=7000)),
        lambda y, t: F.nll_loss(y.log_softmax(-1).view(-1, VOCABULARY), t.view(-1)),
        lambda y, t: y[..., :100].square().mean() + y[:, 0].mean() + F.cross_entropy(y.view(-1, VOCABULARY), t.view(-1)),
        lambda y, t: F.cross_entropy(y.view(-1, VOCABULARY), torch.softmax(torch.ones(12, VOCABULARY), -1)),
    ],
)
def test_anything_else_makes_them_real_once(loss_of, made):
    check(loss_of, made, times=1)


def test_they_look_like_the_tensor_that_they_are_not():
    layer, x, _ = head()
    with snug.tiled_loss():
        y = layer(x)
        assert isinstance(y, snug.LazyLogits)
        assert y.shape == (2, 6, VOCABULARY) and y.dim() == y.ndim == 3 and len(y) == 2 and y.size(-1) == VOCABULARY
        assert y.dtype == torch.float32 and y.device == layer.weight.device and y.requires_grad and y.is_floating_point()
        assert torch.equal(y, layer(x)) and torch.equal(y.argmax(-1), F.linear(x, layer.weight, layer.bias).argmax(-1))
        assert torch.equal(y.detach()[0, 0, :5], layer(x)[0, 0, :5])
        assert not isinstance(nn.Linear(16, 64)(x), snug.LazyLogits)
        assert not isinstance(nn.Linear(1024, VOCABULARY - 1)(torch.randn(2, 1024)), snug.LazyLogits)
    assert not isinstance(layer(x), snug.LazyLogits)


def test_a_write_reaches_those_that_were_cut_from_it():
    layer, x, _ = head()
    with snug.tiled_loss(), torch.no_grad():
        y = layer(x)
        cut = y[:, 1:]
        y[0, 1, 2] = 7.0
        assert cut[0, 0, 2] == 7.0


def test_a_write_without_gradients_stays(made):
    def written(y, target):
        with torch.no_grad():
            y[..., 0] = -100.0
        y.mul_(0.5)
        assert y[0, 0, 0] == -50.0
        return F.cross_entropy(y.view(-1, VOCABULARY), target.view(-1))

    check(written, made, times=1)


def test_a_metric_does_not_take_the_gradient_away(made):
    def measured(y, target):
        with torch.no_grad():
            right = y.argmax(-1).eq(target).sum()
        return F.cross_entropy(y.view(-1, VOCABULARY), target.view(-1)) + 0 * right

    check(measured, made, times=1)

    def measured_and_weighed(y, target):
        return measured(y, target) + F.cross_entropy(y.view(-1, VOCABULARY), target.view(-1), weight=torch.ones(VOCABULARY))

    check(measured_and_weighed, made, times=3)


def test_writes_into_copies_count(made):
    def written(y, target):
        y = y.to(torch.float32).contiguous()
        cut = y[:, torch.tensor([0, 2, 4])]
        cut.mul_(0.5)
        flat = cut.reshape(-1, VOCABULARY)
        flat[:, :8] = -50.0
        return F.cross_entropy(flat, target[:, [0, 2, 4]].reshape(-1))

    check(written, made, times=1)


def test_the_grad_mode_is_that_of_the_projection(made):
    layer, x, target = head()
    with snug.tiled_loss():
        with torch.no_grad():
            old = layer(x)
        loss = F.cross_entropy(old.view(-1, VOCABULARY), target.view(-1))
        assert not loss.requires_grad and not old.softmax(-1).requires_grad


def test_what_logits_are_made_of_must_not_be_written_before():
    layer, x, target = head()
    with snug.tiled_loss():
        y = layer(x)
        with torch.no_grad():
            layer.weight.add_(1)
        for use in (lambda: y.sum(), lambda: F.cross_entropy(y.view(-1, VOCABULARY), target.view(-1))):
            with pytest.raises(snug.Error, match="was written in place"):
                use()


def test_names_of_arguments_and_lazy_logits_in_other_places():
    layer, x, _ = head()
    with snug.tiled_loss():
        assert torch.equal(F.linear(input=x, weight=layer.weight, bias=layer.bias).materialize(), layer(x).materialize())
        assert F.linear(input=x, weight=torch.ones(3, 16)).shape == (2, 6, 3)
        assert torch.flatten(input=layer(x), start_dim=0, end_dim=1).shape == (12, VOCABULARY)
        assert torch.zeros(2, dtype=torch.int64).to(layer(x)).dtype == torch.float32


def test_an_index_that_adds_a_dimension_is_no_row():
    layer, x, _ = head()
    with snug.tiled_loss():
        y = layer(x)
        assert y[True].shape == (1, 2, 6, VOCABULARY) and y[None].shape == (1, 2, 6, VOCABULARY)


class Loss(torch.autograd.Function):
    """One of somebody else's, with a backward of its own."""

    @staticmethod
    def forward(ctx, logits):
        return logits.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(2, 6, VOCABULARY)


def test_a_gradient_that_would_be_lost_is_an_error():
    layer, x, _ = head()
    with snug.tiled_loss():
        with pytest.raises(snug.Error, match="their gradient would be lost; give it logits.materialize()"):
            Loss.apply(layer(x)).backward()
        Loss.apply(layer(x).materialize()).backward()
    assert layer.weight.grad is not None


def test_labels_that_are_none_are_errors_as_without():
    layer, x, target = head()
    target[1, 2] = VOCABULARY
    with snug.tiled_loss():
        flat = layer(x).view(-1, VOCABULARY)
        with pytest.raises(RuntimeError, match=f"{VOCABULARY}"):
            F.cross_entropy(flat, target.view(-1))
        ignored = torch.full((12,), -100)
        assert F.cross_entropy(flat, ignored).isnan()
        assert F.cross_entropy(flat, ignored, reduction="sum") == 0


def test_names_that_are_not_known_are_refused():
    layer, x, target = head()

    def step(b):
        return F.cross_entropy(layer(b).view(-1, VOCABULARY), target.view(-1))

    with pytest.raises(snug.UsageError, match='allow has \'tiled_los\', which is not known; did you mean "tiled_loss"?'):
        snug.fit(step, x, "100%", allow=["tiled_los"])
    with pytest.raises(snug.UsageError, match='allow is the text "tiled_loss"; give a list'):
        snug.plan(step, x, allow="tiled_loss")


def test_logits_are_told_from_feed_forward_parts_by_the_table_of_embeddings():
    """A vocabulary may be less than eight times the width, as Llama's is, and an inner width may be that."""
    torch.manual_seed(0)
    table, head, up = nn.Embedding(4096, 640), nn.Linear(640, 4096), nn.Linear(640, 5120)
    ids = torch.randint(0, 4096, (2, 5))
    with snug.tiled_loss():
        assert type(head(torch.randn(2, 5, 640))) is torch.Tensor, "no table is known yet"
        hidden = table(ids)
        assert type(up(hidden)) is torch.Tensor
        assert type(head(hidden)) is lazy_logits.LazyLogits
        assert type(nn.Linear(512, 4096)(torch.randn(2, 512))) is lazy_logits.LazyLogits, "of a table that was looked up in"
    with snug.tiled_loss():
        assert type(nn.Linear(512, 4096)(torch.randn(2, 512))) is torch.Tensor, "eight times, as of Gemma's inner width"
        assert type(nn.Linear(512, 4104)(torch.randn(2, 512))) is lazy_logits.LazyLogits


def test_a_second_derivative_is_refused_with_an_error_of_snug():
    head, hidden = nn.Linear(64, VOCABULARY), torch.randn(6, 64, requires_grad=True)
    with snug.tiled_loss():
        loss = F.cross_entropy(head(hidden), torch.randint(0, VOCABULARY, (6,)))
    with pytest.raises(snug.Error, match="it can be differentiated once"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_a_tile_that_is_no_size_is_refused():
    for tile in (0, -1, "a few"):
        with pytest.raises(snug.UsageError, match="tiled_loss: tile"):
            snug.tiled_loss(tile)
    with pytest.raises(snug.UsageError, match="the tile is 0 bytes"):
        targets = torch.zeros(4, dtype=torch.long)
        snug._core.linear_cross_entropy(torch.randn(4, 8), torch.randn(16, 8), targets, 0, None, None, -100, 0.0)
    assert snug.tiled_loss("4MiB").tile == 4 << 20

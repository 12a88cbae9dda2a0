"""What training loops are made of, under a session: accumulation, clipping, scaling, DDP, PEFT, Trainer, Accelerate."""

import gc
import importlib
import os
import sys
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import DEVICE, only_on_the_cpu
from torch import nn

import snug
from architectures import make
from processes import in_processes


def small():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)])
    return model, torch.randn(8192, 64)


def gradients(model):
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(a, b):
    assert len(a) == len(b) > 0
    assert all(torch.equal(x, y) for x, y in zip(a, b))


def test_accumulation_clipping_and_scaling():
    model, x = small()

    def step(batch, scale=1.0):
        return model(batch).square().mean() * scale

    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)

    def loop(backward):
        model.zero_grad()
        torch.manual_seed(3)
        scale = scaler.scale(torch.ones(())).item()
        for part in x.chunk(4):
            backward(part, scale)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update(2.0**10)
        return [norm, *gradients(model)]

    plain = loop(lambda part, scale: step(part, scale).backward())
    with snug.fit(step, x[:2048], budget="60%") as session:
        planned = loop(lambda part, scale: session.backward(part, step=lambda b: step(b, scale)))
        assert session.last_step.replayed_ops > 0
    same(plain, planned)


def _ddp(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    import snug

    model, x = small()
    part = x.chunk(2)[rank]

    def train(wrapped, backward):
        found = []
        for i in range(3):
            wrapped.zero_grad()
            torch.manual_seed(10 + i + rank)
            backward(wrapped)
            found += gradients(model)
        return found

    ddp = nn.parallel.DistributedDataParallel(model)
    plain = train(ddp, lambda m: m(part).square().mean().backward())
    with snug.fit(lambda b: ddp(b).square().mean(), part, budget="60%") as session:
        planned = train(ddp, lambda m: session.backward(part))
        replayed = session.last_step.replayed_ops
    with snug.patch():
        import torch.utils.checkpoint as tc

        def twice(m):
            # The same layer twice in checkpoints: "marked ready twice" with reentrant ones.
            y = tc.checkpoint(model[1], tc.checkpoint(model[1], m(part), use_reentrant=True), use_reentrant=True)
            return y.square().mean()

        torch.manual_seed(5)
        ddp.zero_grad()
        twice(ddp).backward()
    results[rank] = len(plain) == len(planned) and all(torch.equal(a, b) for a, b in zip(plain, planned)) and replayed > 0
    dist.destroy_process_group()


@only_on_the_cpu("collectives")
def test_ddp_on_gloo():
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(_ddp, args=(29500 + os.getpid() % 1000, results), nprocs=2)
        assert dict(results) == {0: True, 1: True}


def _fsdp1(rank, results):
    from torch.distributed.fsdp import FullyShardedDataParallel

    import snug

    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))
    model = nn.Sequential(*(FullyShardedDataParallel(block, device_id=torch.device("cpu")) for block in blocks))
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))  # which keeps its own

    try:
        snug.fit(lambda b: model(b).square().mean(), torch.randn(512, 64), budget="60%", process_group=dist.group.WORLD)
    except snug.UsageError as error:
        results[rank] = str(error)


@only_on_the_cpu("collectives")
def test_fsdp1_is_refused():
    results = in_processes(2, _fsdp1)
    for message in (results[0], results[1]):
        assert "has been freed since an operator read it, as FullyShardedDataParallel (FSDP1) does" in message


def _collectives(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    import torch.distributed._functional_collectives as functional

    import snug

    torch.manual_seed(rank)
    x, weight = torch.randn(256, 32), torch.randn(32, 32, requires_grad=True)

    def gathered(h):
        everybody = [torch.zeros_like(h) for _ in range(2)]
        dist.all_gather(everybody, h.detach())
        return (h @ torch.cat(everybody).T).tanh().square().mean()

    def reduced(h):
        mean = h.detach().square()
        before = mean.sin()
        dist.all_reduce(mean)
        return ((h / mean.sqrt()).tanh() * before * mean.sin()).mean()

    def waited_for(h):
        total = h.detach().exp()
        work = dist.all_reduce(total, async_op=True)
        y = h.tanh()
        work.wait()
        return (y * total).tanh().mean()

    def of_an_input(h):
        scale = x.clone()
        with torch.no_grad():
            y = h * scale
            dist.broadcast(scale, src=0)
        return (h * scale + y).exp().tanh().mean()

    def functional_one(h):
        total = functional.all_reduce(h.detach().cos(), "sum", dist.group.WORLD)
        return (h * total).tanh().sin().mean()

    def gradient(run):
        weight.grad = None
        run()
        return weight.grad

    wrong = []
    for make in (gathered, reduced, waited_for, of_an_input, functional_one):
        def step(batch, make=make):
            for _ in range(4):
                batch = (batch @ weight).sin()
            return make(batch)

        plain = gradient(lambda: step(x).backward())
        with snug.Region(snug.Recompute()) as region:
            loss = step(x)
        found = {"region": gradient(loss.backward)}
        if region.replayed_ops == 0:
            wrong.append(f"{make.__name__} replayed nothing")
        with snug.fit(step, x, budget="1GiB", strategy="selective(aten::mm)") as session:
            found["session"] = gradient(lambda: session.backward(x))
        wrong += [f"{make.__name__} in {where}" for where, g in found.items() if not torch.equal(g, plain)]
    results[rank] = wrong
    dist.destroy_process_group()


@only_on_the_cpu("collectives")
def test_collectives_are_not_replayed():
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(_collectives, args=(29500 + os.getpid() % 1000 + 1, results), nprocs=2)
        assert dict(results) == {0: [], 1: []}


def test_peft():
    peft = pytest.importorskip("peft")
    model, batch = make("llama")
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.1))
    names = snug.verify(lambda b: model(**b), batch, model, "70%")
    assert any("lora_A" in name for name in names)


@only_on_the_cpu("a name that Accelerate knows")
def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    model, x = small()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)

    def step(batch):
        return prepared(batch).square().mean()

    def train(backward):
        model.load_state_dict(start)
        torch.manual_seed(1)
        for part in x.chunk(4):
            with accelerator.accumulate(prepared):
                backward(part)
                optimizer.step()
                optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    start = {k: v.clone() for k, v in model.state_dict().items()}
    plain = train(lambda part: accelerator.backward(step(part)))
    with snug.fit(step, x[:2048], budget="60%") as session:
        # accelerator.backward divides by the number of accumulated steps, and is put off to the end of the step.
        planned = train(lambda part: session.backward(part, step=lambda b: accelerator.backward(step(b))))
    same(plain, planned)


def test_transformers_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    from snug.integrations import SnugCallback

    def train(callbacks):
        model, _ = make("gpt2")
        torch.manual_seed(2)
        rows = [{"input_ids": t, "labels": t} for t in torch.randint(0, 512, (64, 256))]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=8, gradient_accumulation_steps=2,
            report_to=[], save_strategy="no", use_cpu=True, seed=7, disable_tqdm=True, logging_strategy="no")
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)
        trainer.train()
        return [p.detach().clone() for p in model.parameters()]

    plain = train([])
    callback = SnugCallback(budget="75%")
    planned = train([callback])
    assert callback.steps == 8 and callback.replayed_ops > 0
    same(plain, planned)
    assert "transformers" in sys.modules


@pytest.mark.parametrize("module", ["integrations", "lightning"])
def test_callbacks_refuse_what_is_no_budget_or_option_when_they_are_made(module):
    pytest.importorskip("transformers" if module == "integrations" else "lightning")
    callback = importlib.import_module(f"snug.{module}").SnugCallback
    for budget in ("lots", "", "0"):
        with pytest.raises(snug.UsageError, match="budget"):
            callback(budget)
    with pytest.raises(snug.UsageError, match="strategy"):
        callback("1GiB", strategy=3)
    callback("1GiB")


def test_a_failed_trainer_leaves_no_session(tmp_path):
    transformers = pytest.importorskip("transformers")
    from snug.integrations import SnugCallback

    model, _ = make("gpt2")
    rows = [{"input_ids": t, "labels": t} for t in torch.randint(0, 512, (16, 64))]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, logging_strategy="no")
    callback = SnugCallback(budget="1GiB")
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback])
    plain, calls = trainer.compute_loss, []

    def fails_later(*args, **kwargs):
        calls.append(None)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return plain(*args, **kwargs)

    trainer.compute_loss = fails_later
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert callback.steps == 2 and callback.session is None and snug.memory_stats()["limit"] is None


class _Lit:
    """Made when Lightning is imported: its base class is Lightning's."""

    @staticmethod
    def make(seen, manual=False):
        import lightning.pytorch as pl

        class Lit(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.model, _ = small()
                self.automatic_optimization = not manual

            def training_step(self, batch, batch_idx):
                loss = self.model(batch).square().mean()
                self.log("loss", loss, on_step=True, on_epoch=True)
                return loss

            def on_after_backward(self):
                seen.append(float(sum(p.grad.abs().sum() for p in self.parameters())))

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

        return Lit()


def _lightning_trainer(tmp_path, callbacks, **options):
    import lightning.pytorch as pl

    return pl.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
                      callbacks=callbacks, **options)


@pytest.mark.parametrize("options", [
    {},
    {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    {"precision": "bf16-mixed"},
])
def test_lightning(tmp_path, options):
    from snug.lightning import SnugCallback

    _, x = small()

    def train(callbacks):
        seen = []
        module = _Lit.make(seen)
        torch.manual_seed(3)
        trainer = _lightning_trainer(tmp_path, callbacks, **options)
        trainer.fit(module, torch.utils.data.DataLoader(x[:6144], batch_size=2048, shuffle=False))
        return [p.detach().clone() for p in module.parameters()], seen, {k: v.item() for k, v in trainer.callback_metrics.items()}

    plain = train([])
    callback = SnugCallback(budget="75%")
    planned = train([callback])
    assert callback.steps == 6 and callback.replayed_ops > 0 and callback.session is None
    same(plain[0], planned[0])
    assert plain[1] == planned[1] and len(planned[1]) == 6
    assert plain[2] == planned[2]
    assert {"loss_step", "loss_epoch"} <= set(plain[2])
    same(plain[0], train([])[0])  # nothing stays behind


def test_lightning_batches_go_without_the_garbage_collector(tmp_path):
    import lightning.pytorch as pl

    from snug.lightning import SnugCallback

    _, x = small()
    batches = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            batches.append(weakref.ref(batch))

    gc.collect()
    gc.disable()
    try:
        trainer = _lightning_trainer(tmp_path, [SnugCallback(budget="75%"), Watch()])
        trainer.fit(_Lit.make([]), torch.utils.data.DataLoader(x[:6144], batch_size=1024))
        alive = sum(batch() is not None for batch in batches)
    finally:
        gc.enable()
    assert len(batches) == 12 and alive <= 1


def test_lightning_with_manual_optimization(tmp_path):
    from snug.lightning import SnugCallback

    _, x = small()
    with pytest.raises(snug.UsageError, match="manually"):
        _lightning_trainer(tmp_path, [SnugCallback(budget="75%")]).fit(_Lit.make([], manual=True), x[:64].reshape(4, 16, 64))


def test_a_failed_lightning_run_leaves_no_session(tmp_path):
    from snug.lightning import SnugCallback

    _, x = small()
    module = _Lit.make([])
    callback = SnugCallback(budget="75%")
    plain_step, calls = module.training_step, []

    def fails_later(batch, batch_idx):
        calls.append(batch_idx)
        if len(calls) > 4:
            raise RuntimeError("the program's own")
        return plain_step(batch, batch_idx)

    module.training_step = fails_later
    with pytest.raises(RuntimeError, match="the program's own"):
        _lightning_trainer(tmp_path, [callback]).fit(module, torch.utils.data.DataLoader(x[:6144], batch_size=1024))
    assert callback.session is None and snug.memory_stats()["limit"] is None

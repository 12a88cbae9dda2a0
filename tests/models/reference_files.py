"""What the scripts of the single models share (see make_references.py)."""
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent


def shake(model):
    """Moves every weight and buffer from where it begins, so that none is 0 or 1 and could be left out unseen."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.normal_(0, 0.1)
            elif name.endswith("running_var"):
                b.uniform_(0.5, 1.5)


def as_saved(model):
    """The weights of a model of transformers as the file of save_pretrained has them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / "model.safetensors")


def gradients(model, loss):
    """The loss's gradient of each weight, by the names in that file. The model's weights are gone thereafter."""
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    return {f"gradient.{name}": g for name, g in as_saved(model).items()}


def write(name, tensors, metadata=None):
    save_file({n: t.detach().clone().contiguous() for n, t in tensors.items()}, HERE / f"{name}.safetensors", metadata)


def print_sizes(sizes):
    """Numbers of parameters, which the tests repeat. `sizes`: names and functions that make the model."""
    for name, make in sizes.items():
        with torch.device("meta"):
            print(name, sum(p.numel() for p in make().parameters()))

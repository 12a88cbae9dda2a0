"""Compares BERT-base, ViT-B/16 and ResNet-50 in snug with Hugging Face's transformers (ResNet-50: with the network that
tests/models/resnet_reference.py writes in torch's operators), at their full sizes, from the same safetensors.

    full_size.py FULL_SIZE_RUN

Weights are random. Exits with 1 when an output or a gradient differs by more than 1e-4.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
import bert_reference
import resnet_reference
import vit_reference
from reference_files import as_saved, gradients

TOLERANCE = 1e-4


def texts():
    lengths, batch, sequence = torch.tensor([128, 77, 30]), 3, 128
    mask = (torch.arange(sequence)[None] < lengths[:, None]).long()
    tokens = torch.randint(1, 30522, (batch, sequence)) * mask
    types = (torch.arange(sequence)[None] >= lengths[:, None] // 2).long() * mask
    masked = torch.where((torch.rand(batch, sequence) < 0.15) & (mask == 1), tokens, -100)
    return {"input": tokens, "mask": mask, "types": types}, masked, torch.tensor([1, 0, 1])


def of_transformers(model, arguments, targets):
    output = model.eval()(**arguments, labels=targets)
    return {"logits": output.logits, "loss": output.loss} | gradients(model, output.loss)


def of_resnet(model, images, targets):
    with torch.no_grad():
        evaluated = model.eval()(images)
    logits = model.train()(images)
    loss = torch.nn.functional.cross_entropy(logits, targets)
    loss.backward()
    return ({"logits.evaluation": evaluated, "logits": logits, "loss": loss}
            | {f"gradient.{n}": p.grad for n, p in model.named_parameters()}
            | {f"after.{n}": b for n, b in model.named_buffers()})


def cases():
    """Name, weights as in the file, what is given, and a function that computes what is expected."""
    given, masked, labels = texts()
    arguments = {"input_ids": given["input"], "attention_mask": given["mask"], "token_type_ids": given["types"]}
    bert = bert_reference.config(30522, 512, *bert_reference.BASE)
    for name, kind, targets in (("bert-masked-lm", transformers.BertForMaskedLM, masked),
                                ("bert-classifier", transformers.BertForSequenceClassification, labels)):
        model = kind(bert)
        yield name, as_saved(model), given | {"targets": targets}, \
            lambda m=model, t=targets: of_transformers(m, arguments, t)
    images, classes = torch.randn(4, 3, 224, 224), torch.tensor([4, 999, 2, 2])
    vit = transformers.ViTForImageClassification(vit_reference.config(*vit_reference.BASE, 16, 224, 3, 1000))
    yield "vit", as_saved(vit), {"input": images, "targets": classes}, \
        lambda: of_transformers(vit, {"pixel_values": images}, classes)
    resnet = resnet_reference.ResNet(*resnet_reference.SIZES["ResNet-50"])
    yield "resnet", resnet.state_dict(), {"input": images, "targets": classes}, \
        lambda: of_resnet(resnet, images, classes)


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    all_cases, good = list(cases()), True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case, weights, given, _ in all_cases:
            save_file({n: t.contiguous() for n, t in weights.items()}, folder / f"{case}.safetensors", {"format": "pt"})
            save_file({n: t.contiguous() for n, t in given.items()}, folder / f"{case}-given.safetensors")
        subprocess.run([sys.argv[1], str(folder)], check=True)
        for case, _, _, compute in all_cases:
            found, expected = load_file(folder / f"{case}-found.safetensors"), compute()
            assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
            for kind, mine in (("outputs", lambda n: not n.startswith("gradient.")),
                               ("gradients", lambda n: n.startswith("gradient."))):
                names = [n for n in expected if mine(n)]
                most = max((found[n] - expected[n]).abs().max().item() for n in names)
                largest = max(expected[n].abs().max().item() for n in names)
                good &= most <= TOLERANCE
                print(f"{case}, {len(names)} {kind} up to {largest:.3g}: largest difference {most:.3g} (at most {TOLERANCE:g})",
                      flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

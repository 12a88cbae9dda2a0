"""vit.safetensors: a small ViTForImageClassification of random weights. vit_expected.safetensors: what it makes of
images."""
import torch
import transformers

from reference_files import as_saved, gradients, print_sizes, shake, write

BASE, LARGE, HUGE = (12, 768, 3072, 12), (24, 1024, 4096, 16), (32, 1280, 5120, 16)
SIZES = {"ViT-B/16": (BASE, 16), "ViT-B/32": (BASE, 32), "ViT-L/16": (LARGE, 16), "ViT-L/32": (LARGE, 32),
         "ViT-H/14": (HUGE, 14)}


def config(layers, width, inner, heads, patch, image, channels, classes):
    return transformers.ViTConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=inner, num_attention_heads=heads,
        patch_size=patch, image_size=image, num_channels=channels, num_labels=classes)


def main():
    torch.manual_seed(3)
    model = transformers.ViTForImageClassification(config(3, 24, 40, 3, 2, 8, 1, 5)).eval()
    shake(model)
    write("vit", as_saved(model), {"format": "pt"})
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([4, 0, 2, 2])
    output = model(pixel_values=images, labels=labels)
    write("vit_expected", {"images": images, "targets": labels, "logits": output.logits, "loss": output.loss}
          | gradients(model, output.loss))
    print_sizes({name: lambda s=size, p=patch: transformers.ViTForImageClassification(config(*s, p, 224, 3, 1000))
                 for name, (size, patch) in SIZES.items()})

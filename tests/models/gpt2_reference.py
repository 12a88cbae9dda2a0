"""gpt2.safetensors: a small GPT2LMHeadModel of random weights. gpt2_expected.safetensors: what it makes of tokens."""
import torch
import transformers

from reference_files import as_saved, gradients, print_sizes, shake, write

SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}


def config(vocabulary, sequence, layers, width, heads):
    return transformers.GPT2Config(vocab_size=vocabulary, n_positions=sequence, n_layer=layers, n_embd=width,
                                   n_head=heads, bos_token_id=0, eos_token_id=0)


def main():
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config(64, 40, 3, 24, 3)).eval()
    shake(model)
    write("gpt2", as_saved(model), {"format": "pt"})
    tokens = torch.randint(0, 64, (2, 40))
    output = model(input_ids=tokens, labels=tokens, use_cache=False)
    write("gpt2_expected", {"tokens": tokens, "logits": output.logits, "loss": output.loss}
          | gradients(model, output.loss))
    print_sizes({name: lambda size=size: transformers.GPT2LMHeadModel(config(50257, 1024, *size))
                 for name, size in SIZES.items()})

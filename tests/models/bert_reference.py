"""bert_masked_lm.safetensors, bert_classifier.safetensors: small models of random weights; with _expected, what they
make of texts of several lengths and of two segments, and of texts without a mask and types."""
import torch
import transformers

from reference_files import as_saved, gradients, print_sizes, shake, write

BASE, LARGE = (12, 768, 3072, 12), (24, 1024, 4096, 16)
SIZES = {"bert-base-uncased": (30522, BASE), "bert-base-cased": (28996, BASE), "bert-base-chinese": (21128, BASE),
         "bert-base-multilingual-cased": (119547, BASE), "bert-large-uncased": (30522, LARGE),
         "bert-large-cased": (28996, LARGE)}


def config(vocabulary, sequence, layers, width, inner, heads, classes=2):
    return transformers.BertConfig(
        vocab_size=vocabulary, max_position_embeddings=sequence, num_hidden_layers=layers, hidden_size=width,
        intermediate_size=inner, num_attention_heads=heads, num_labels=classes)


def small(kind):
    model = kind(config(48, 20, 2, 24, 40, 3, classes=5)).eval()
    shake(model)
    return model


def main():
    torch.manual_seed(2)
    lengths, batch, sequence = torch.tensor([16, 11, 5]), 3, 16
    mask = (torch.arange(sequence)[None] < lengths[:, None]).long()
    tokens = torch.randint(1, 48, (batch, sequence)) * mask  # 0 is the padding
    types = (torch.arange(sequence)[None] >= lengths[:, None] // 2).long() * mask
    targets = torch.where((torch.rand(batch, sequence) < 0.4) & (mask == 1), tokens, -100)
    labels = torch.tensor([4, 0, 2])
    inputs = {"tokens": tokens, "mask": mask, "types": types}
    given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}
    for name, kind, wanted in (("bert_masked_lm", transformers.BertForMaskedLM, targets),
                               ("bert_classifier", transformers.BertForSequenceClassification, labels)):
        model = small(kind)
        write(name, as_saved(model), {"format": "pt"})
        output = model(**given, labels=wanted)
        expected = {"logits": output.logits, "loss": output.loss, "logits.plain": model(input_ids=tokens).logits}
        write(f"{name}_expected", inputs | {"targets": wanted} | expected | gradients(model, output.loss))
    print_sizes({name: lambda v=vocabulary, s=size: transformers.BertForMaskedLM(config(v, 512, *s))
                 for name, (vocabulary, size) in SIZES.items()}
                | {"bert-base-uncased, two classes":
                   lambda: transformers.BertForSequenceClassification(config(30522, 512, *BASE))})

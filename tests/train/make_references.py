"""Writes a tiny Llama beside it, in both layouts: make_references.py (needs torch, transformers, safetensors, gguf).

tiny.gguf: two layers, matrices in Q4_1 (the embedding in Q8_0), a byte-level tokenizer of 300 tokens.
tiny/: the same weights, decoded, as transformers saves them, with the tokenizer as a tokenizer.json.
tiny_expected.safetensors: tokens and transformers' logits for them.
tiny_adapter/: a LoRA adapter as PEFT saves it, and in tiny_expected its logits ("adapted").
"""
import json
import pathlib

import gguf
import numpy as np
import peft
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
WIDTH, INNER, HEADS, KEY_HEADS, VOCABULARY, CONTEXT = 32, 64, 2, 1, 300, 64
PREFIX = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
          "up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm",
          "post_attention_layernorm": "ffn_norm"}


def printable():
    """A printable character for each byte, as GPT-2's vocabulary has them."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for byte in range(256):
        if byte in own:
            names[byte] = chr(byte)
        else:
            names[byte] = chr(256 + extra)
            extra += 1
    return names


def vocabulary():
    tokens = ["<|end|>", "<|begin|>"] + list(printable().values())
    merges = []
    space = printable()[32]
    for left, right in [("t", "h"), ("th", "e"), (space, "the"), ("i", "n"), ("a", "n"), (space, "a"), ("e", "r"),
                        ("o", "u"), (space, "w"), ("r", "e"), ("in", "g"), (space, "s"), ("o", "n"), ("l", "l")]:
        merges.append((left, right))
        tokens.append(left + right)
    return tokens + [f"<unused{i}>" for i in range(VOCABULARY - len(tokens))], merges


def file_name(name):
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    parts = name.split(".")
    return f"blk.{parts[2]}.{PREFIX[parts[-2]]}.weight"


def main():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    model = transformers.LlamaForCausalLM(config).eval()
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(HERE / "tiny.gguf", "llama")
    writer.add_block_count(2)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(m) for m in merges])
    unused = [5 if t.startswith("<unused") else 1 for t in tokens]
    writer.add_token_types([3, 3] + unused[2:])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(4) if p.dim() == 2 else p.add_(torch.randn_like(p) * 0.1)
            if p.dim() == 1:
                writer.add_tensor(file_name(name), p.numpy())
                continue
            kind = gguf.GGMLQuantizationType.Q8_0 if "embed" in name else gguf.GGMLQuantizationType.Q4_1
            rows = p.clone()
            if "q_proj" in name or "k_proj" in name:  # the halves of a head alternate in the file
                rows = rows.reshape(-1, 2, WIDTH // HEADS // 2, WIDTH).transpose(1, 2).reshape(rows.shape).contiguous()
            blocks = gguf.quants.quantize(rows.numpy(), kind)
            decoded = torch.from_numpy(gguf.quants.dequantize(blocks, kind).copy())
            if "q_proj" in name or "k_proj" in name:
                decoded = decoded.reshape(-1, WIDTH // HEADS // 2, 2, WIDTH).transpose(1, 2).reshape(rows.shape)
            p.copy_(decoded)
            writer.add_tensor(file_name(name), blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    folder = HERE / "tiny"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=1, sort_keys=True, default=str) + "\n")
    save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, t in enumerate(tokens[:2])]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                            "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens) if not t.startswith("<unused")},
                  "merges": [list(m) for m in merges]}}, indent=0, ensure_ascii=True) + "\n")

    ids = torch.from_numpy(np.random.default_rng(0).integers(2, 270, (2, 24)))
    with torch.no_grad():
        expected = {"tokens": ids, "logits": model(input_ids=ids, use_cache=False).logits}
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.3)
        expected["adapted"] = adapted.eval()(input_ids=ids, use_cache=False).logits
    adapted.save_pretrained(HERE / "tiny_adapter")
    for beside in ("README.md",):
        (HERE / "tiny_adapter" / beside).unlink(missing_ok=True)
    save_file({n: t.contiguous() for n, t in expected.items()}, HERE / "tiny_expected.safetensors")


if __name__ == "__main__":
    main()

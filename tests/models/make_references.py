"""Writes the files beside it with transformers: make_references.py [model...], all unless some are named (needs torch,
transformers, safetensors).

llama.safetensors: a small LlamaForCausalLM of random weights, as save_pretrained names them.
llama_expected.safetensors: tokens, and per kind of rotary embedding (and for tied weights) what that model makes of them:
logits in fp32, and for the first kind the loss's gradient of each weight.
yarn.json: configurations with YaRN's settings, and the frequencies and the factor of cosines and sines that transformers'
rope utils make of them, for heads of width 64.
Those of the other models: see gpt2_reference.py, bert_reference.py, vit_reference.py and resnet_reference.py. It
prints the sizes of released models.
"""
import copy
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import bert_reference
import gpt2_reference
import resnet_reference
import vit_reference

HERE = pathlib.Path(__file__).parent

ROTARY = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
}

# What a configuration may say of YaRN, beside its factor and the length that the model was trained with.
YARN_SETTINGS = {
    "plain": {},
    "betas": {"beta_fast": 16, "beta_slow": 2},
    "truncate": {"truncate": False},
    "attention_factor": {"attention_factor": 1.5, "mscale": 0.8, "mscale_all_dim": 0.4},
    "mscale": {"mscale": 0.707, "mscale_all_dim": 0.5},
    "mscale_alone": {"mscale": 0.707},
    "mscale_all_dim_of_gguf": {"mscale": 1.0, "mscale_all_dim": 0.3},
}


def config(rotary, tied=False):
    return transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-5, rope_parameters=dict(rotary),
        tie_word_embeddings=tied, attn_implementation="sdpa")


def llama():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config(ROTARY["default"])).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    weights = {name: p.detach().clone().contiguous() for name, p in model.state_dict().items()}
    save_file(weights, HERE / "llama.safetensors", metadata={"format": "pt"})
    tokens = torch.randint(0, 64, (2, 48))
    expected = {"tokens": tokens}
    for name, rotary in ROTARY.items():
        model = transformers.LlamaForCausalLM(config(rotary)).eval()
        model.load_state_dict(weights)
        output = model(input_ids=tokens, use_cache=False)
        expected[f"logits.{name}"] = output.logits.detach()
        if name == "default":
            torch.nn.functional.cross_entropy(output.logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1)).backward()
            expected |= {f"gradient.{n}": p.grad for n, p in model.named_parameters()}
    model = transformers.LlamaForCausalLM(config(ROTARY["default"], tied=True)).eval()
    model.load_state_dict({n: w for n, w in weights.items() if n != "lm_head.weight"}, strict=False)
    expected["logits.tied"] = model(input_ids=tokens, use_cache=False).logits.detach()
    save_file({n: t.contiguous() for n, t in expected.items()}, HERE / "llama_expected.safetensors")


def yarn():
    result = {}
    for name, settings in YARN_SETTINGS.items():
        config = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": 1,
                  "num_attention_heads": 2, "max_position_embeddings": 4096,
                  "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                      "original_max_position_embeddings": 1024} | settings}
        made = transformers.LlamaConfig(**copy.deepcopy(config))  # which it changes
        turns, amplitude = ROPE_INIT_FUNCTIONS["yarn"](made, torch.device("cpu"))
        result[name] = {"config": {"model_type": "llama"} | config, "turns": turns.tolist(), "amplitude": amplitude}
    (HERE / "yarn.json").write_text(json.dumps(result, indent=1) + "\n")


MODELS = {"llama": llama, "yarn": yarn, "gpt2": gpt2_reference.main, "bert": bert_reference.main,
          "vit": vit_reference.main, "resnet": resnet_reference.main}

if __name__ == "__main__":
    for model in sys.argv[1:] or MODELS:
        MODELS[model]()

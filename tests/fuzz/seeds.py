"""Writes files for a fuzzer to begin with: seeds.py FUZZER FOLDER; the fuzzers are the functions below."""
import json
import pathlib
import struct
import sys


def megatron_index(folder):
    lengths, starts = [3, 2, 4], [0, 6, 10]
    index = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 3) + struct.pack("<3i", *lengths) +
             struct.pack("<3q", *starts) + struct.pack("<3q", 0, 1, 3))
    (folder / "index").write_bytes(struct.pack("<H", 18) + index)


def manifest(folder):
    files = {"weights.safetensors": {"bytes": 12, "xxh3_128": "0" * 32}}
    (folder / "manifest").write_text(json.dumps({"snug_training_state": 1, "step": 3, "metric": 1.5, "files": files}) + "\n")


def safetensors_index(folder):
    files = {f"model.{name}.weight": "part.safetensors" for name in ("embed_tokens", "norm")}
    (folder / "index").write_text(json.dumps({"metadata": {"total_size": 38528}, "weight_map": files}))


def token_file(folder):
    for magic, version, width in ((20240520, 1, "H"), (20240801, 7, "I")):
        header = struct.pack("<256i", magic, version, 5, *[0] * 253)
        (folder / str(version)).write_bytes(header + struct.pack(f"<5{width}", *range(5)))
    (folder / "plain").write_bytes(struct.pack("<5H", *range(5)))


def named_tokens(folder):
    (folder / "added").write_text(json.dumps({"<|im_end|>": 520, "<pad>": 521}))
    described = {"content": "<s>", "lstrip": False, "special": True}
    (folder / "config").write_text(json.dumps({"added_tokens_decoder": {"1": described}, "eos_token": "</s>"}))
    unigram = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]}
    (folder / "unigram").write_text(json.dumps({"model": unigram, "added_tokens": [{"id": 2} | described]}))


def plan(folder):
    here = pathlib.Path(__file__).parent
    for path in sorted((here / "plan").glob("*.json")):
        (folder / path.name).write_bytes(path.read_bytes())
    staged = json.loads((here / "plan" / "plan.json").read_text())
    staged["actions"] = staged["actions"].replace("r", "m").replace("kk", "zi", 3)
    staged["staging"] = {"leaving_bytes": 1024, "arriving_bytes": 2048, "first_fetch": 1, "fetch_order": [30, 17, 3]}
    (folder / "staged.json").write_text(json.dumps(staged))


if __name__ == "__main__":
    globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))

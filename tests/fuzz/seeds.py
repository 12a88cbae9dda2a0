"""Writes files for a fuzzer to begin with: seeds.py megatron_index|manifest|plan FOLDER"""
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


def plan(folder):
    here = pathlib.Path(__file__).parent
    for path in sorted((here / "plan").glob("*.json")):
        (folder / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))

"""Writes the files beside it with the reference implementations: make_references.py (needs torch, safetensors, gguf).

reference.safetensors: what safetensors.torch.save_file makes of TENSORS.
reference.gguf: blocks of every format that gguf can quantize, of random bytes for those it cannot, and metadata of every type.
reference_gguf.safetensors: what gguf's own dequantize makes of them.
"""
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent


def tensors():
    torch.manual_seed(0)
    return {
        "weight": torch.randn(3, 4),
        "a.bias": torch.arange(5, dtype=torch.bfloat16),
        "b.half": torch.linspace(-1, 1, 6).half().reshape(2, 3),
        "flags": torch.tensor([True, False, True]),
        "steps": torch.tensor(7, dtype=torch.int64),
        "empty": torch.empty(0, 3),
        "double": torch.randn(2, dtype=torch.float64),
        "bytes": torch.arange(3, dtype=torch.uint8),
    }


def write_safetensors():
    from safetensors.torch import save_file

    save_file(tensors(), HERE / "reference.safetensors", metadata={"format": "pt"})


def write_gguf():
    import gguf
    from safetensors.numpy import save_file

    types = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(HERE / "reference.gguf", "llama")
    writer.add_uint8("numbers.u8", 200)
    writer.add_int8("numbers.i8", -100)
    writer.add_uint16("numbers.u16", 60000)
    writer.add_int16("numbers.i16", -30000)
    writer.add_uint32("numbers.u32", 4000000000)
    writer.add_int32("numbers.i32", -2000000000)
    writer.add_uint64("numbers.u64", 2**63)
    writer.add_int64("numbers.i64", -(2**62))
    writer.add_float32("numbers.f32", 0.5)
    writer.add_float64("numbers.f64", 0.1)
    writer.add_bool("numbers.bool", True)
    writer.add_array("lists.text", ["one", "", "drei \u00e4"])
    writer.add_array("lists.numbers", [-1, 2, -3])
    random = np.random.default_rng(0)
    expected = {}
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"):
        kind = types[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        rows, columns = 3, 2 * max(elements, 8)
        try:
            data = gguf.quantize(random.standard_normal((rows, columns), dtype=np.float32), kind)
        except NotImplementedError:
            # Any bytes are blocks, but for scales that are no numbers.
            data = random.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
            scales = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[name]
            for at in scales:
                half = random.standard_normal((rows, columns // elements), dtype=np.float32).astype(np.float16)
                data[:, :, at:at + 2] = half.view(np.uint8).reshape(rows, columns // elements, 2)
            data = data.reshape(rows, -1)
        writer.add_tensor(f"blocks.{name}", data, raw_dtype=kind)
        expected[f"blocks.{name}"] = gguf.dequantize(data, kind).astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, HERE / "reference_gguf.safetensors")


if __name__ == "__main__":
    write_safetensors()
    write_gguf()

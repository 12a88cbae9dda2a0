"""What names a machine in the results: kind of processor, widest vectors, cores."""
import os
import pathlib
import platform
import re


def machine_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.*)", text)
    words = re.findall(r"[A-Za-z]+", model.group(1)) if model else []
    family = next((w for w in words if w.lower() in ("xeon", "epyc", "ryzen", "core")), platform.machine()).lower()
    vectors = next((v for v in ("amx_bf16", "avx512f", "avx2") if v in text), "").split("_")[0].removesuffix("f")
    return "-".join(part for part in (family, vectors, f"{os.cpu_count()}-cores") if part)

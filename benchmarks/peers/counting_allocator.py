"""Builds counting_allocator.cpp against the torch that runs this."""
import importlib.util
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
TORCH = pathlib.Path(importlib.util.find_spec("torch").origin).parent


def build_allocator(folder):
    library = folder / "counting_allocator.so"
    subprocess.run(["c++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{TORCH}/include", HERE / "counting_allocator.cpp",
                    "-o", library, f"-L{TORCH}/lib", "-lc10"], check=True)
    return library

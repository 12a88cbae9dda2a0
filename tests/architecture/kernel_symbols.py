#!/usr/bin/env python3
"""Holds object files of one instruction set to what is theirs: a function that the linker may share with the rest of the
program, and that was compiled for that instruction set, would end it with an illegal instruction on lesser processors.

    kernel_symbols.py SET OBJECT...     no weak symbol but those with SET in their scope
    kernel_symbols.py --self-test       see that one is found

Exits with 1 and one line per violation.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def shared_functions(instruction_set, objects):
    """Weak symbols that carry no name of the instruction set, and so are the same for every one."""
    text = subprocess.run(["nm", "--demangle", *objects], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        match = re.match(r"[0-9a-f]+ [WVu] (.*)", line)
        if match and not re.search(rf"\b{instruction_set}::", match.group(1)):
            yield match.group(1)


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "leak.cpp", Path(folder) / "leak.o"
        source.write_text("namespace AVX2 { template <class T> [[gnu::noinline]] T own(T x) { return x; } }\n"
                          "template <class T> [[gnu::noinline]] T leak(T x) { return x; }\n"
                          "int f() { return AVX2::own(1) + leak(2); }\n")
        subprocess.run(["c++", "-O2", "-c", source, "-o", built], check=True)
        found = list(shared_functions("AVX2", [str(built)]))
    if len(found) != 1 or "leak" not in found[0]:
        sys.exit(f"kernel_symbols.py: planted one shared function, found {found}")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    instruction_set, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        sys.exit("kernel_symbols.py: no objects")
    found = list(shared_functions(instruction_set, objects))
    for name in found:
        print(f"{instruction_set}: {name} may be shared with code for other processors")
    sys.exit(1 if found else 0)


main()

#!/usr/bin/env python3
"""Holds every file under snug/ to the order of the rooms (docs/architecture.md), by reading its #includes.

    include_direction.py [ROOT]     check ROOT/snug; ROOT is the repository unless given
    include_direction.py --self-test    plant each kind of violation in a temporary tree and see that it is found

Exits with 1 and one line per violation.
"""

import re
import sys
import tempfile
from pathlib import Path

# A room may include itself and the rooms of later lines. Rooms of one line do not include each other.
LEVELS = [
    ["cli"],
    ["train"],
    ["report"],
    ["replay", "optim", "models", "data", "state", "parallel"],
    ["record", "ops", "described"],
    ["plan", "memory"],
    ["base"],
]
# Folders of a room, in the same way; "" is the room's own files.
FOLDERS = {"plan": ["", "search", "bound", "run", "step"], "ops": ["", "kernels"], "train": ["mesh", "families", ""]}
# Files of snug/ itself, and the highest level that they may include.
TOP_FILES = {"snug.h": 1, "precompiled.cpp": len(LEVELS)}
WITHOUT_LIBTORCH = ["plan", "base"]
LIBTORCH_FOLDERS = {"ATen", "torch", "c10", "caffe2"}
# Names that say nothing about what a file holds.
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "engine"}
# Paths such as "snug/ROOM/file.h" that may have such a name all the same.
ALLOWED_NAMES: set[str] = set()

SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}
HEADER_SUFFIXES = {".h", ".hpp", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def includes(text):
    """(line number, delimiter, path) of each #include outside of block comments."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1), match.group(2)


def folder_error(room, folder, target):
    """What is wrong with a file of a room's folder including `target`, a file of that room, or None."""
    order = FOLDERS.get(room, [""])
    other = "/".join(target.split("/")[2:-1])
    if other not in order:
        return f"includes {target}: {room} has no folder {other}"
    if order.index(other) >= order.index(folder):
        return None
    return f"includes {target}, which is above it: {room}/{folder} may include only itself and the folders below"


def include_error(room, folder, path, target):
    """What is wrong with a file of `room` (None: of snug/ itself), in its `folder`, including `target`, or None."""
    parts = target.split("/")
    if parts[0] in LIBTORCH_FOLDERS and room in WITHOUT_LIBTORCH:
        return f"includes {target}, but {room} does not use LibTorch"
    if parts[0] != "snug":
        return None
    if len(parts) == 2:
        return f"includes {target}: inside snug/, include what is used and not the umbrella"
    other = parts[1]
    if other not in LEVEL_OF:
        return f"includes {target}: there is no room {other}"
    if room is None:
        highest = TOP_FILES.get(path.name, 0)
        return None if LEVEL_OF[other] >= highest else f"includes {target}, which is above it"
    if other == room:
        return folder_error(room, folder, target)
    if LEVEL_OF[other] > LEVEL_OF[room]:
        return None
    relation = "its sibling" if LEVEL_OF[other] == LEVEL_OF[room] else "above it"
    return f"includes {target}, but {other} is {relation}: {room} may include only itself and the rooms below"


def check_file(snug, path):
    shown = f"snug/{path.relative_to(snug)}"
    parts = path.relative_to(snug).parts
    room = parts[0] if len(parts) > 1 else None
    if room is None and path.name not in TOP_FILES:
        yield f"{shown}: belongs in a room"
    if room is not None and room not in LEVEL_OF:
        yield f"{shown}: there is no room {room}"
        return
    folder = "/".join(parts[1:-1])
    if room is not None and folder not in FOLDERS.get(room, [""]):
        yield f"{shown}: {room} has no folder {folder}"
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix in HEADER_SUFFIXES and not re.search(r"^#pragma once$", text, flags=re.M):
        yield f"{shown}: has no #pragma once"
    for number, delimiter, target in includes(text):
        if error := include_error(room, folder, path, target):
            yield f"{shown}:{number}: {error}"
        elif delimiter == '"' and not target.startswith("snug/") and (path.parent / target).exists():
            yield f'{shown}:{number}: includes "{target}": write its path from the root, "snug/ROOM/..."'


def check_name(snug, path):
    shown = f"snug/{path.relative_to(snug)}"
    if shown in ALLOWED_NAMES:
        return
    for part in path.relative_to(snug).parts:
        last_word = Path(part).stem.split("_")[-1].lower()
        if last_word in EMPTY_NAMES:
            yield f'{shown}: is named "{last_word}", which says nothing about what it holds'


def check(root):
    snug = Path(root) / "snug"
    if not snug.is_dir():
        return [f"{snug}: no such folder"]
    errors = []
    for path in sorted(snug.rglob("*")):
        if path.is_file():
            errors.extend(check_name(snug, path))
            if path.suffix in SUFFIXES:
                errors.extend(check_file(snug, path))
    return errors


# (file, text, what the one error says; None: no error)
SELF_TESTS = [
    ("replay/a.h", '#pragma once\n#include "snug/record/tape.h"\n#include <ATen/ATen.h>\n', None),
    ("train/a.cpp", '#include "snug/report/timeline.h"\n#include "snug/models/gpt.h"\n', None),
    ("snug.h", '#pragma once\n#include "snug/train/trainer.h"\n', None),
    ("plan/a.cpp", '// #include "snug/cli/a.h"\n/*\n#include "snug/cli/a.h"\n*/\n', None),
    ("plan/a.cpp", '#include "snug/record/tape.h"\n', "snug/plan/a.cpp:1: includes snug/record/tape.h, but record is "),
    ("memory/a.cpp", "\n#  include <snug/plan/budget.h>\n", "a.cpp:2: includes snug/plan/budget.h, but plan is its"),
    ("optim/a.cpp", '#include "snug/models/gpt.h"\n', "its sibling"),
    ("record/a.cpp", '#include "snug/ops/loss.h"\n', "its sibling"),
    ("base/a.cpp", '#include "snug/plan/budget.h"\n', "above it"),
    ("report/a.cpp", '#include "snug/train/trainer.h"\n', "above it"),
    ("plan/a.cpp", '#include "snug/attic/a.h"\n', "there is no room attic"),
    ("attic/a.cpp", "", "there is no room attic"),
    ("plan/a.cpp", '#include "snug/plan/search/a.h"\n', None),
    ("plan/bound/a.cpp", '#include "snug/plan/run/a.h"\n', None),
    ("plan/run/a.cpp", '#include "snug/plan/bound/a.h"\n', "which is above it: plan/run may include only itself"),
    ("plan/step/a.cpp", '#include "snug/plan/a.h"\n', "which is above it"),
    ("plan/a.cpp", '#include "snug/plan/attic/a.h"\n', "plan has no folder attic"),
    ("memory/attic/a.cpp", "", "memory has no folder attic"),
    ("a.cpp", "", "belongs in a room"),
    ("snug.h", '#pragma once\n#include "snug/cli/run.h"\n', "above it"),
    ("plan/a.cpp", '#include "snug/snug.h"\n', "not the umbrella"),
    ("plan/a.cpp", "#include <torch/torch.h>\n", "plan does not use LibTorch"),
    ("base/a.cpp", "#include <c10/util/Exception.h>\n", "base does not use LibTorch"),
    ("plan/a.h", "#include <vector>\n", "has no #pragma once"),
    ("plan/a.cpp", '#include "a.cpp"\n', "write its path from the root"),
    ("plan/utils.cpp", "", 'is named "utils"'),
    ("memory/block_manager.cpp", "", 'is named "manager"'),
]


def self_test():
    failures = []
    for name, text, expected in SELF_TESTS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snug" / name
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
            errors = check(folder)
        found = not errors if expected is None else len(errors) == 1 and expected in errors[0]
        if not found:
            failures.append(f"self-test: {name} with {text!r}: expected {expected!r}, got {errors}")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        errors = self_test()
    elif len(arguments) <= 1 and not any(a.startswith("-") for a in arguments):
        errors = check(arguments[0] if arguments else Path(__file__).resolve().parents[2])
    else:
        errors = [__doc__.strip()]
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

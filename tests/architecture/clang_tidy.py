#!/usr/bin/env python3
"""Runs clang-tidy on the lines of snug/ that changed, with the checks of .clang-tidy; each finding is an error.

    clang_tidy.py ROOT LIBTORCH [BASE]   what changed since BASE, a commit; see below for the one without it
    clang_tidy.py --self-test            plant a finding in a temporary repository and see that it is found

On a branch what changed is what is not in main. On main it is what the last commits changed, as a push has several. Exits
with 77, which is a skipped test, where there is nothing to compare with: no repository, or one commit only.

LibTorch's headers take longer than any source of ours, so many files are looked at as one (their names differ: unity builds
compile a room's files so, and rooms have namespaces). Of a great many files only those with most changed lines are looked at, and a line says how many were
left out; SNUG_TIDY_FILES=0 looks at all.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
COMMITS = 12  # of main
MOST_FILES = 10
FILES_AT_ONCE = 16
JOBS = 2  # 1 GiB each
FINDING = re.compile(r"^(?P<place>\S+:\d+:\d+): (?:warning|error): .* \[(?P<check>[\w.,-]+)\]$", re.M)


def git(root, *arguments):
    """The output, or None where it fails."""
    run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else None


def base_commit(root):
    head = git(root, "rev-parse", "HEAD")
    if head is None:
        return None
    for main in ("origin/main", "main"):
        base = git(root, "merge-base", "HEAD", main)
        if base is not None and base != head:
            return base
    # As far back as there is history, which a shallow clone has little of.
    known = git(root, "rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD").split()
    return known[-1] if len(known) > 1 else None


def changed_lines(root, base):
    """By path: ranges of lines that are new or other than in `base`."""
    diff = git(root, "diff", "-U0", "--no-color", "--no-renames", "--diff-filter=AM", base, "--", "snug") or ""
    changed = {}
    path = None
    for line in diff.splitlines():
        if match := re.match(r"\+\+\+ b/(.*)", line):
            path = match.group(1)
        elif (match := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line)) and Path(path).suffix in (".h", ".cpp"):
            first, count = int(match.group(1)), int(match.group(2) or 1)
            if count > 0:
                changed.setdefault(path, []).append([first, first + count - 1])
    return changed


def sources_of(root, changed):
    """The files to compile, those with most changed lines first. A header is seen through its source file."""
    lines = {}
    for path, ranges in changed.items():
        source = str(Path(path).with_suffix(".cpp"))
        if (root / source).exists():
            lines[source] = lines.get(source, 0) + sum(last - first + 1 for first, last in ranges)
    return sorted(lines, key=lambda source: (-lines[source], source))


def without_cuda(root, libtorch, sources):
    """The files that compile here: those of CUDA only with the headers of a LibTorch that was built for it."""
    if (Path(libtorch) / "include/c10/cuda/impl/cuda_cmake_macros.h").exists():
        return sources
    cuda = [source for source in sources if "<c10/cuda/" in (root / source).read_text(encoding="utf-8")]
    if cuda:
        print(f"clang_tidy: {' and '.join(cuda)} left out, as LIBTORCH is not built for CUDA; make cuda-check compiles it")
    return [source for source in sources if source not in cuda]


def together(sources):
    """Files that are looked at as one: with others of their kind, as kernels are compiled otherwise."""
    kinds = {}
    for source in sorted(sources):
        kinds.setdefault(Path(source).parent.name == "kernels", []).append(source)
    return [files[i:i + FILES_AT_ONCE] for files in kinds.values() for i in range(0, len(files), FILES_AT_ONCE)]


def tidy(root, libtorch, sources, changed):
    """(findings, what keeps the files from compiling)."""
    lines = json.dumps([{"name": path, "lines": ranges} for path, ranges in changed.items()])
    includes = [f"-isystem{libtorch}/{folder}" for folder in ("include", "include/torch/csrc/api/include")]
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.cpp"
        whole.write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
        run = subprocess.run(
            ["clang-tidy", "--quiet", f"--line-filter={lines}", f"--config-file={root / '.clang-tidy'}",
             r"--header-filter=snug/[a-z_0-9/]+\.(h|cpp)$", str(whole), "--", "-std=c++20", f"-I{root}", "-DFMT_HEADER_ONLY=1",
             "-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT", *includes],
            cwd=root, capture_output=True, text=True, check=False)
    found = [m.group() for m in FINDING.finditer(run.stdout) if not m.group("check").startswith("clang-diagnostic-error")]
    broken = [m.group() for m in FINDING.finditer(run.stdout) if m.group("check").startswith("clang-diagnostic-error")]
    if run.returncode != 0 and not found and not broken:
        found.append(f"{' '.join(sources)}: clang-tidy failed: {run.stderr.strip() or run.stdout.strip()}")
    return found, broken


def check(root, libtorch, base=None):
    missing = [tool for tool in ("git", "clang-tidy") if shutil.which(tool) is None]
    if missing:
        print(f"clang_tidy: skipped, as {' and '.join(missing)} is not installed; scripts/setup.sh installs it")
        return SKIPPED
    base = base or base_commit(root)
    if not (Path(libtorch) / "include").is_dir():
        print(f"clang_tidy: {libtorch} has no include folder: LIBTORCH is to be LibTorch's folder", file=sys.stderr)
        return 1
    if base is None:
        print("clang_tidy: no earlier commit to compare with: nothing is looked at")
        return SKIPPED
    changed = changed_lines(root, base)
    sources = without_cuda(root, libtorch, sources_of(root, changed))
    most = int(os.environ.get("SNUG_TIDY_FILES", MOST_FILES)) or len(sources)
    print(f"clang_tidy: {len(sources)} files changed since {base[:12]}")
    if len(sources) > most:
        print(f"clang_tidy: {len(sources) - most} of them are left out, those with the fewest changed lines; "
              "SNUG_TIDY_FILES=0 looks at all")
    errors = set()
    with ThreadPoolExecutor(JOBS) as pool:
        for found, broken in pool.map(lambda files: tidy(root, libtorch, files, changed), together(sources[:most])):
            errors.update(found)
            # The precompiled header, or the build, brings what it misses: the compiler's affair.
            if broken:
                print(f"clang_tidy: looked at in part, as it does not compile by itself: {broken[0]}")
    for error in sorted(errors):
        print(error, file=sys.stderr)
    return 1 if errors else 0


def self_test():
    repository = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "snug").mkdir()
        (root / "include").mkdir()
        (root / ".clang-tidy").write_bytes((repository / ".clang-tidy").read_bytes())
        source = root / "snug" / "a.cpp"
        fault = "int* NAME() { return 0; }\n"  # for nullptr
        commit = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-q", "-a", "-m", "a"]
        git(root, "init", "-q", "-b", "main")
        source.write_text(fault.replace("NAME", "f"), encoding="utf-8")
        git(root, "add", ".")
        git(root, *commit)
        cuda = root / "snug" / "cuda.cpp"
        cuda.write_text("#include <c10/cuda/CUDAStream.h>\n", encoding="utf-8")
        if without_cuda(root, root, ["snug/a.cpp", "snug/cuda.cpp"]) != ["snug/a.cpp"]:
            sys.exit("clang_tidy: a file that needs CUDA is looked at without CUDA's headers")
        cuda.unlink()
        if check(root, root) != SKIPPED:
            return ["self-test: one commit has nothing to be compared with"]
        source.write_text(source.read_text(encoding="utf-8") + "int g() { return 0; }\n", encoding="utf-8")
        git(root, *commit)
        if check(root, root) != 0:
            return ["self-test: a finding in a line that did not change counts"]
        source.write_text(source.read_text(encoding="utf-8") + fault.replace("NAME", "h"), encoding="utf-8")
        git(root, *commit)
        return [] if check(root, root) == 1 else ["self-test: a finding in a changed line is not found"]


def main(arguments):
    if arguments == ["--self-test"]:
        if shutil.which("git") is None or shutil.which("clang-tidy") is None:
            print("clang_tidy: skipped, as git or clang-tidy is not installed")
            return SKIPPED
        errors = self_test()
        for error in errors:
            print(error, file=sys.stderr)
        return 1 if errors else 0
    if len(arguments) not in (2, 3) or arguments[0].startswith("-"):
        sys.exit(__doc__.strip())
    return check(Path(arguments[0]), *arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

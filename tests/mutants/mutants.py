"""Changes the code in small ways and sees whether the tests notice.

    mutants.py --folder FOLDER [--sample N] [--seed S] [--seconds S] [--filter F] [--jobs N] FILE_OR_FOLDER...

Sources of snug/plan, snug/memory and snug/replay. universalmutator makes the mutants; N of each file are drawn. A copy of the
tree is built in FOLDER, the working tree is not touched. Mutants that do not compile, or compile to the same object, do not
count. The room's tests run until the first that fails, those that are quickest up to S seconds together. Prints
each survivor, and writes all of them to FOLDER/survivors.json. Exits with 0 whatever survives: README.md says what matters.
"""

import argparse
import difflib
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = {"plan": "plan_test", "memory": "memory_test", "replay": "replay_test"}
# Mutants of such lines are not worth compiling: they are not code, declare, or only say what went wrong.
NOT_WORTH = re.compile(r"^\s*(#|//|\}|namespace|using|class|public:|private:|throw)")


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


class Build:
    """A copy of the tree, configured so that each file is compiled by itself."""

    def __init__(self, folder, room, jobs):
        self.source, self.build = folder / "source", folder / "build"
        self.room, self.test, self.jobs = room, TESTS[room], jobs

    def prepare(self):
        files = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).stdout
        for name in filter(None, files.split("\0")):
            here, there = ROOT / name, self.source / name
            if here.is_file() and (not there.exists() or there.read_bytes() != here.read_bytes()):
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)
        if not (self.build / "build.ninja").exists():
            # LibTorch is found in .venv, as everywhere.
            venv = self.source / ".venv"
            if (ROOT / ".venv").exists() and not venv.exists():
                venv.symlink_to(ROOT / ".venv")
            done = run(["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DSNUG_BUILD_PYTHON=OFF", "-DSNUG_BUILD_BENCHMARKS=OFF", "-DCMAKE_CXX_FLAGS=-g0"])
            if done.returncode != 0:
                sys.exit(f"mutants: cmake failed: {done.stdout}{done.stderr}")
        if error := self.compile():
            sys.exit(f"mutants: the code does not build as it is: {error}")

    def compile(self):
        done = run(["ninja", "-C", self.build, f"-j{self.jobs}", self.test])
        return "" if done.returncode == 0 else done.stdout

    def objects(self, path):
        return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(self.build.rglob(f"{path.name}.o")))).hexdigest()

    def run_tests(self, tests, seconds, report=None):
        """The first test that fails, "time" where they take too long, or None."""
        command = [self.build / "tests" / self.test, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={tests}"]
        if report is not None:
            command.append(f"--gtest_output=json:{report}")
        try:
            done = run(command, timeout=seconds)
        except subprocess.TimeoutExpired:
            return "time"
        if done.returncode == 0:
            return None
        failed = re.search(r"FAILED  \] (\S+)", done.stdout)
        return failed.group(1) if failed else f"exit {done.returncode}"


def quick_tests(build, pattern, seconds):
    """A filter of the quickest tests, how long they take, and how many there are."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        if failed := build.run_tests(pattern, 3600, report.name):
            sys.exit(f"mutants: {failed} fails with the code as it is")
        suites = json.load(report)["testsuites"]
    times = sorted((float(t["time"].rstrip("s")), f"{t['classname']}.{t['name']}") for s in suites for t in s["testsuite"])
    chosen, total = [], 0.0
    for time, name in times:
        if total + time > seconds:
            break
        chosen.append(name)
        total += time
    print(f"mutants: {len(chosen)} of {len(times)} tests, which take {total:.1f} s", flush=True)
    return ":".join(chosen), total


def mutants_of(path, dice):
    """(changed text, number of the line, old line, new line) of all, in the order of the dice."""
    original = (ROOT / path).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        done = run([Path(sys.executable).parent / "mutate", ROOT / path, "--noCheck", "--mutantDir", folder])
        if done.returncode != 0:
            sys.exit(f"mutants: universalmutator failed: {done.stdout}{done.stderr}")
        texts = sorted({file.read_text(encoding="utf-8") for file in Path(folder).iterdir()})
    dice.shuffle(texts)
    for text in texts:
        old, new = original.splitlines(), text.splitlines()
        changes = [c for c in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if c[0] != "equal"]
        if len(changes) != 1:
            continue
        _, first, last, new_first, new_last = changes[0]
        before, after = " ".join(old[first:last]).strip(), " ".join(new[new_first:new_last]).strip()
        if NOT_WORTH.match(before) or '"' in before or "".join(before.split()) == "".join(after.split()):
            continue
        yield text, first + 1, before, after


def try_mutants(build, path, mutants, most, tests, limit):
    """The survivors among the first `most` mutants that count, or among all."""
    there = build.source / path
    original, same = there.read_text(encoding="utf-8"), build.objects(path)
    counts, survivors = {"killed": 0, "survived": 0, "does not compile": 0, "same object": 0}, []
    try:
        for text, line, before, after in mutants:
            if most and counts["killed"] + counts["survived"] == most:
                break
            there.write_text(text, encoding="utf-8")
            if build.compile():
                counts["does not compile"] += 1
            elif build.objects(path) == same:
                counts["same object"] += 1
            elif build.run_tests(tests, limit) is not None:
                counts["killed"] += 1
            else:
                counts["survived"] += 1
                survivors.append({"file": str(path), "line": line, "old": before, "new": after})
                print(f"{path}:{line}: survives\n    {before}\n    {after}", flush=True)
    finally:
        there.write_text(original, encoding="utf-8")
    print(f"{path}: " + ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=0, help="mutants of each file; all without it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20, help="of tests for each mutant")
    parser.add_argument("--filter", default="*", help="which tests, as GoogleTest's --gtest_filter has it")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("sources", nargs="+", type=Path)
    options = parser.parse_args()
    paths = []
    for source in options.sources:
        paths += sorted(p.relative_to(ROOT) for p in (ROOT / source).rglob("*.cpp")) if (ROOT / source).is_dir() else [source]
    rooms = {path.parts[1] if path.parts[0] == "snug" and len(path.parts) > 2 else "" for path in paths}
    if len(rooms) != 1 or not rooms <= TESTS.keys():
        sys.exit(f"mutants: {', '.join(map(str, options.sources))}: name files or folders of one of the rooms "
                 f"{', '.join(TESTS)}, as in snug/plan/run")
    build = Build(options.folder, rooms.pop(), options.jobs)
    build.prepare()
    tests, seconds = quick_tests(build, options.filter, options.seconds)
    survivors = []
    for path in paths:
        mutants = mutants_of(path, random.Random(f"{options.seed} {path}"))
        survivors += try_mutants(build, path, mutants, options.sample, tests, 10 * seconds + 10)
    (options.folder / "survivors.json").write_text(json.dumps(survivors, indent=1) + "\n", encoding="utf-8")
    print(f"{len(survivors)} survivors in {options.folder / 'survivors.json'}")


if __name__ == "__main__":
    main()

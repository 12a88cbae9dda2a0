"""The command as its users meet it: how the tests of this folder run it, and what all of them hold it to."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from free_port import free_port  # noqa: E402

# Threads that wait for each other without sleeping cost a busy machine many times the work itself.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
SNUG, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
SMALL = """
[model]
blocks = 3
width = 64
heads = 4
sequence = 64
[data]
path = "libtorch-headers"
[train]
batch = 8
steps = 6
validation_batches = 1
"""


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)


def command_line(arguments):
    return [SNUG, *(a if isinstance(a, bytes) else str(a) for a in arguments)]


def run(*arguments, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command_line(arguments), text=True, timeout=300, **pipes)


def run_together(count, *arguments):
    """The same command in so many processes, as torchrun would start them; by rank."""
    port = free_port()
    processes = []
    for rank in range(count):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank),
                       "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen(command_line(arguments), text=True, env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    results = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=300)
        results.append(subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr))
    return results


def run_shell(command):
    """Of a shell whose $1 is the command."""
    return subprocess.run(["sh", "-c", command, "sh", SNUG], capture_output=True, text=True, timeout=300)


@contextlib.contextmanager
def started(*arguments, seconds=120, **options):
    """A command that runs while the test looks on; it is ended where it takes longer, and what the test waits for ends
    with it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen(command_line(arguments), text=True, **pipes) as process:
        deadline = threading.Timer(seconds, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.kill()


def wait_for(stream, part):
    """Reads lines up to one with `part` in it, and fails where there is none."""
    lines = []
    for line in stream:
        lines.append(line)
        if part in line:
            return line
    raise AssertionError(f"{part!r} is in none of {lines}")


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.config = self.folder / "small.toml"
        self.config.write_text(SMALL)

    def done(self, result):
        """What it printed with --json."""
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def plan(self, *arguments):
        return self.done(run("plan", *arguments, "--json"))

    def assert_refused(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("snug: "), last)
        self.assertEqual(sum(line.startswith("snug: ") for line in result.stderr.splitlines()), 1)
        for part in parts:
            self.assertIn(part, last)
        self.assertNotIn("Exception raised from", result.stderr)

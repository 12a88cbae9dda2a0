"""What the command writes to, and who reads it: full disks, closed pipes, terminals, signals, help.

Usage: streams_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import unicodedata

from command import SNUG, Command, main, run, run_shell, started, wait_for


def columns_of(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


class Streams(Command):
    def test_alone_it_prints_its_help(self):
        alone = run()
        self.assertEqual((alone.returncode, alone.stderr), (0, ""))
        self.assertEqual(alone.stdout, run("--help").stdout)
        for word in ("doctor", "train", "--version"):
            self.assertIn(word, alone.stdout)

    def test_help_lists_every_key(self):
        text = run("train", "--help").stdout
        for key in ("model.blocks", "train.steps", "memory.budget", "precision.compute", "--detect-anomaly"):
            self.assertIn(key, text)

    def test_doctor(self):
        found = json.loads(run("doctor", "--json").stdout)
        self.assertTrue(all(check["works"] for check in found["checks"].values()), found)
        self.assertEqual(found["devices"][0]["device"], "cpu")
        self.assertGreater(found["devices"][0]["available_bytes"], 0)
        libtorch = re.search(r"=> (.*)/lib/libc10\.so", run_shell(f"ldd {SNUG}").stdout).group(1)
        headers = [path for path in pathlib.Path(libtorch, "include").rglob("*") if path.is_file() and path.stat().st_size > 0]
        self.assertEqual(found["checks"]["demo text"]["detail"], f"{len(headers)} headers")
        self.assertEqual(run("doctor").returncode, 0)

    def test_tables_fit_the_terminal(self):
        def shown(columns, *arguments):
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
            process = subprocess.Popen([SNUG, *map(str, arguments)], stdout=slave, stderr=subprocess.DEVNULL, env=environment)
            os.close(slave)
            text = b""
            with contextlib.suppress(OSError):  # what a terminal ends with
                while piece := os.read(master, 4096):
                    text += piece
            os.close(master)
            self.assertEqual(process.wait(timeout=120), 0)
            return text.decode().replace("\r\n", "\n").splitlines()

        graph = self.folder / "graph.json"
        self.plan(self.config, "--graph-out", graph)
        for columns in (40, 60, 100):
            for arguments in (("doctor",), ("plan", "--graph", graph, "--explain"),
                              ("bench", self.config, "--budgets", "70%", "--rounds", "1")):
                lines = shown(columns, *arguments)
                self.assertGreater(len(lines), 5)
                self.assertLessEqual(max(map(columns_of, lines)), columns, "\n".join(lines))
        piped = run("doctor").stdout.splitlines()  # no terminal: as wide as it is
        self.assertGreater(max(map(columns_of, piped)), 40)

    def test_full_disk_while_writing_metrics(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "metrics.jsonl").symlink_to("/dev/full")
        self.assert_refused(run("train", self.config, "--set", f"output.folder={out}"), 1, "metrics.jsonl", "No space left")

    def test_a_file_that_may_not_grow_fails_in_one_line(self):
        folder = self.folder / "small_files"
        result = subprocess.run(["bash", "-c", 'ulimit -f 200; exec "$@"', "bash", SNUG, "train", self.config, "--set",
                                 f"output.folder={folder}", "--set", "state.every=2"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertIn("snug: ", result.stderr.splitlines()[-1])

    def test_standard_output_that_cannot_be_written(self):
        graph = self.folder / "graph.json"
        self.plan(self.config, "--graph-out", graph)
        small = ("--set", "train.steps=1", "--json")
        for arguments in ((), ("--help",), ("--version",), ("train", "--help"), ("doctor",), ("plan", "--graph", graph),
                          ("train", self.config, *small), ("verify", self.config, "--steps", "1"),
                          ("bench", self.config, "--strategies", "none", "--rounds", "1")):
            with self.subTest(arguments), open("/dev/full", "w") as full:
                result = run(*arguments, stdout=full)
                self.assertEqual(result.returncode, 1, result.stderr)
                errors = [line for line in result.stderr.splitlines() if line.startswith("snug: ")]
                self.assertEqual(errors, ["snug: cannot write to standard output: No space left on device"])

    def test_closed_standard_output_and_error(self):
        out = self.folder / "out"
        train = f'"$1" train {self.config} --json --set train.steps=2 --set state.every=1 --set output.folder={out}'
        result = run_shell(train + " >&-")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1], "snug: cannot write to standard output: Bad file descriptor")
        # What was opened then is not standard output, and the state is there.
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "step" in line], [1, 2])
        self.assertTrue((out / "state").is_dir())
        result = run_shell(train + " 2>&-")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(json.loads(result.stdout)["steps"], 2)

    def test_a_reader_of_standard_output_that_has_gone_is_an_error_after_the_state_is_saved(self):
        out = self.folder / "out"
        with started("train", self.config, "--set", "train.steps=100000", "--set", f"output.folder={out}") as process:
            wait_for(process.stderr, "/100000")
            process.stdout.close()
            process.send_signal(signal.SIGTERM)
            err = process.stderr.read()
            self.assertEqual(process.wait(), 1, err)
        self.assertEqual(err.splitlines()[-1], "snug: cannot write to standard output: Broken pipe")
        self.assertEqual(len([path for path in (out / "state").iterdir() if path.is_dir()]), 1)

    def test_a_reader_of_standard_error_that_has_gone_does_not_end_a_run(self):
        out = self.folder / "out"
        with started("train", self.config, "--json", "--set", "train.steps=40", "--set", f"output.folder={out}") as process:
            wait_for(process.stderr, "/40")
            process.stderr.close()
            printed = process.stdout.read()
            self.assertEqual(process.wait(), 0)
        self.assertEqual(json.loads(printed)["steps"], 40)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "step" in line], list(range(1, 41)))

    def test_interrupt_ends_cleanly(self):
        with started("train", self.config, "--json", "--set", "train.steps=100000") as process:
            wait_for(process.stderr, "step 1/100000")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        found = json.loads(out)
        self.assertTrue(found["interrupted"])
        self.assertGreater(found["steps"], 0)


if __name__ == "__main__":
    main()

"""The command as its users meet it: exit codes, messages of one line, --json, Ctrl-C.

Usage: command_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unicodedata
import unittest

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


def run(*arguments, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([SNUG, *map(str, arguments)], text=True, timeout=300, **pipes)


def run_shell(command):
    """Of a shell whose $1 is the command."""
    return subprocess.run(["sh", "-c", command, "sh", SNUG], capture_output=True, text=True, timeout=300)


@contextlib.contextmanager
def started(*arguments, seconds=120, **options):
    """A command that runs while the test looks on; it is ended where it takes longer, and what the test waits for ends
    with it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([SNUG, *map(str, arguments)], text=True, **pipes) as process:
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


def columns_of(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.config = self.folder / "small.toml"
        self.config.write_text(SMALL)

    def assert_refused(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("snug: "), last)
        self.assertEqual(sum(line.startswith("snug: ") for line in result.stderr.splitlines()), 1)
        for part in parts:
            self.assertIn(part, last)
        self.assertNotIn("Exception raised from", result.stderr)

    # --- wrong use ---

    def test_missing_config(self):
        self.assert_refused(run("train", self.folder / "none.toml"), 2, "none.toml")

    def test_malformed_config(self):
        self.config.write_text("[model\nblocks = 3")
        self.assert_refused(run("train", self.config), 2, "small.toml:1")

    def test_unknown_key_names_the_nearest(self):
        self.config.write_text(SMALL.replace("width", "widht"))
        self.assert_refused(run("train", self.config), 2, "widht", "width")

    def test_unknown_section_and_wrong_type(self):
        self.assert_refused(run("train", self.config, "--set", "modle.width=3"), 2, "modle", "model")
        self.assert_refused(run("train", self.config, "--set", "model.width=wide"), 2, "model.width")

    def test_unknown_option_and_subcommand(self):
        self.assert_refused(run("train", self.config, "--bugdet", "4GiB"), 2, "--bugdet")
        self.assert_refused(run("tran"), 2, '"tran" is no command; did you mean "train"?')
        self.assert_refused(run("tran", self.config, "--budget", "60%"), 2, "did you mean")
        self.assert_refused(run("fly"), 2, '"fly" is no command; the commands are doctor, plan, train')

    def test_alone_it_prints_its_help(self):
        alone = run()
        self.assertEqual((alone.returncode, alone.stderr), (0, ""))
        self.assertEqual(alone.stdout, run("--help").stdout)
        for word in ("doctor", "train", "--version"):
            self.assertIn(word, alone.stdout)

    def test_budgets_that_are_none(self):
        for budget in ("0", "-5MiB", "12 parsecs", "0%", "150%", "+60%", "6_0%", "plenty"):
            self.assert_refused(run("train", self.config, "--budget=" + budget), 2)

    def test_an_empty_budget_is_not_the_one_in_the_file(self):
        self.config.write_text(SMALL + '[memory]\nbudget = "70%"\n')
        for command in ("train", "plan", "verify"):
            for empty in ("", "  "):
                self.assert_refused(run(command, self.config, "--budget", empty), 2, "--budget", "empty")

    def test_a_configuration_that_never_ends(self):
        self.assert_refused(run("train", "/dev/zero"), 2, "/dev/zero", "1048576 bytes")
        self.assert_refused(run_shell("yes | \"$1\" train /dev/stdin"), 2, "/dev/stdin", "1048576 bytes")

    def test_a_configuration_can_come_through_a_pipe(self):
        result = run_shell(f"cat {self.config} | \"$1\" train /dev/stdin --json --set train.steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["steps"], 1)

    def test_budget_larger_than_the_machine(self):
        for command in ("train", "plan", "verify"):
            self.assert_refused(run(command, self.config, "--budget", "900TiB"), 2, "900.0 TiB", "this machine has")

    # --- plans ---

    def plan(self, *arguments):
        result = run("plan", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_plan_tells_peaks_times_and_bounds(self):
        found = self.plan(self.config, "--budget", "60%", "--explain")
        self.assertLessEqual(found["predicted_peak_bytes"], found["budget_bytes"])
        self.assertLessEqual(found["lower_bound_peak_bytes"], found["predicted_peak_bytes"])
        self.assertLess(found["floor_bytes"], found["budget_bytes"])
        self.assertLess(found["budget_bytes"], found["unplanned_peak_bytes"])
        self.assertLessEqual(found["unplanned_step_seconds"], found["lower_bound_step_seconds"])
        self.assertLessEqual(found["lower_bound_step_seconds"], found["predicted_step_seconds"] * (1 + 1e-9))
        self.assertGreaterEqual(found["gap"], -1e-9)
        self.assertGreater(found["recomputed_bytes"], 0)
        self.assertEqual(found["strategy"], "optimal")
        self.assertEqual(len(found["pieces"]), 5)  # three blocks, before and after
        self.assertEqual(sum(piece["recomputed_bytes"] for piece in found["pieces"]), found["recomputed_bytes"])
        self.assertGreater(len(found["operators"]), 1)
        for key in ("planning_seconds", "graph_ops", "kept_bytes"):
            self.assertGreater(found[key], 0)
        text = run("plan", self.config, "--budget", "60%", "--explain")
        for word in ("predicted peak", "block 2", "no plan is faster than", "aten::gelu"):
            self.assertIn(word, text.stdout)

    def test_a_recorded_step_can_be_planned_elsewhere(self):
        graph = self.folder / "graph.json"
        here = self.plan(self.config, "--budget", "70%", "--graph-out", graph)
        there = self.plan("--graph", graph, "--budget", str(here["budget_bytes"]))
        for key in ("predicted_peak_bytes", "predicted_step_seconds", "floor_bytes", "lower_bound_step_seconds"):
            self.assertEqual(here[key], there[key])
        preset = self.plan("--graph", graph, "--strategy", "full_block(2)")
        self.assertEqual(preset["strategy"], "full_block(2)")
        self.assertIsNone(preset["budget_bytes"])
        self.assert_refused(run("plan", "--graph", graph, "--strategy", "full_block(4)"), 2, "layers is 4", "from 1 to 3")
        self.assert_refused(run("plan", "--graph", graph, "--strategy", "fullblock(1)"), 2, "--strategy", "full_block")
        self.assert_refused(run("plan", "--graph", graph, "--budget", "1MiB"), 2, "does not fit")
        self.assert_refused(run("plan", "--graph", graph, "--set", "train.batch=2"), 2, "--graph")
        self.assert_refused(run("plan", "--graph", graph, self.config), 2, "small.toml", "graph.json", "only one of them")
        self.assert_refused(run("plan"), 2, "nothing to plan", "--graph")
        graph.write_text(graph.read_text()[:1000])
        self.assert_refused(run("plan", "--graph", graph), 2, "graph.json", "not whole")

    def test_a_bad_strategy_is_blamed_on_its_option(self):
        for strategy in ("fullblock(1)", "optimal(3)", ""):
            result = run("plan", self.config, "--strategy", strategy)
            self.assert_refused(result, 2, "--strategy")
            self.assertNotIn("--set", result.stderr)

    def test_train_follows_a_plan_from_a_file(self):
        plan = self.folder / "plan.json"
        made = self.plan(self.config, "--budget", "65%", "--out", plan)
        result = run("train", self.config, "--plan", plan, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual(found["budget_bytes"], made["budget_bytes"])
        self.assertLessEqual(found["mapped_peak_bytes"], made["budget_bytes"])
        self.assertAlmostEqual(found["predicted_peak_bytes"], made["predicted_peak_bytes"], delta=made["predicted_peak_bytes"] // 100)
        self.assertGreater(found["replayed_ops"], 0)

    def test_plan_predicts_a_plan_from_a_file(self):
        graph, plan = self.folder / "graph.json", self.folder / "plan.json"
        made = self.plan(self.config, "--budget", "65%", "--out", plan, "--graph-out", graph)
        self.assertGreater(made["update_seconds"], 0)
        found = self.plan("--graph", graph, "--plan", plan)
        for key in ("predicted_peak_bytes", "predicted_step_seconds", "budget_bytes", "kept_bytes"):
            self.assertEqual(found[key], made[key])
        self.assertEqual(self.plan(self.config, "--plan", plan)["predicted_peak_bytes"], made["predicted_peak_bytes"])
        self.assert_refused(run("plan", "--graph", graph, "--plan", plan, "--strategy", "none"), 2, "--strategy")
        self.assert_refused(run("plan", self.config, "--plan", plan, "--set", "model.blocks=4"), 2, "another step")

    def test_a_plan_for_another_step_is_refused_naming_where_they_differ(self):
        plan = self.folder / "plan.json"
        self.plan(self.config, "--budget", "70%", "--out", plan)
        self.assert_refused(run("train", self.config, "--plan", plan, "--set", "model.dropout=0.1"), 2, "another step",
                            "operator", "there and", "here")
        self.assert_refused(run("train", self.config, "--plan", plan, "--set", "model.blocks=4"), 2, "another step")
        self.assert_refused(run("train", self.config, "--plan", plan, "--set", "train.batch=4"), 2, "operator 0",
                            "other shapes")
        self.assert_refused(run("train", self.config, "--plan", self.folder / "none.json"), 2, "none.json")
        self.assert_refused(run("train", self.config, "--plan", self.folder), 2, "folder")
        whole = plan.read_text()
        plan.write_text(whole[: len(whole) // 2])
        self.assert_refused(run("train", self.config, "--plan", plan), 2, "plan.json", "not whole")
        plan.write_text(whole.replace("snug memory plan", "something else"))
        self.assert_refused(run("train", self.config, "--plan", plan), 2, "plan.json", "snug memory plan", "make it again")

    def test_a_plan_that_cannot_be_written_leaves_nothing(self):
        out = self.folder / "missing" / "plan.json"
        self.assert_refused(run("plan", self.config, "--budget", "70%", "--out", out), 1, "plan.json")
        self.assert_refused(run("plan", self.config, "--budget", "70%", "--out", "/dev/full/x"), 1)

    def test_what_is_no_regular_file_is_written_in_place(self):
        # Through links: what replaces its target would replace the machine's device.
        links = {name: self.folder / name for name in ("full", "output", "chain", "plan.json")}
        links["full"].symlink_to("/dev/full")
        links["output"].symlink_to("/dev/stdout")
        links["chain"].symlink_to("plan.json")
        links["plan.json"].symlink_to(self.folder / "target.json")
        graph = self.folder / "graph.json"
        made = self.plan(self.config, "--graph-out", graph, "--out", links["chain"])
        for option in ("--out", "--graph-out"):
            self.assert_refused(run("plan", "--graph", graph, option, links["full"]), 1, "full", "No space left")
        result = run("bench", self.config, "--strategies", "none", "--rounds", "1", "--svg", links["full"], "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, "snug: bench: .*full cannot be written: No space left on device\n$")
        self.assertIs(json.loads(result.stdout)["complete"], True)  # what was measured is not lost
        for through in (subprocess.PIPE, open(self.folder / "printed", "w+")):
            result = run("plan", "--graph", graph, "--out", links["output"], stdout=through)
            self.assertEqual(result.returncode, 0, result.stderr)
            text = result.stdout
            if through != subprocess.PIPE:
                through.seek(0)
                text = through.read()
                through.close()
            self.assertEqual(json.loads(text.splitlines()[0])["strategy"], "optimal")
            self.assertIn("predicted peak", text)
        for link in links.values():
            self.assertTrue(link.is_symlink())
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))
        self.assertEqual(self.plan("--graph", graph, "--plan", self.folder / "target.json")["predicted_peak_bytes"],
                         made["predicted_peak_bytes"])

    def test_bench_measures_what_was_predicted(self):
        picture = self.folder / "curve.svg"
        result = run("bench", self.config, "--budgets", "10%,60%,100%", "--strategies", "optimal,every_block", "--rounds", "2",
                     "--svg", picture, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        self.assertIs(found["complete"], True)
        rows = found["measurements"]
        self.assertEqual([row["strategy"] for row in rows], ["optimal"] * 3 + ["every_block"])
        self.assertEqual([row["fits"] for row in rows], [False, True, True, True])
        self.assertIsNone(rows[0]["measured_peak_bytes"])
        for row in rows[1:]:
            self.assertAlmostEqual(row["measured_peak_bytes"] / row["predicted_peak_bytes"], 1, delta=0.005)
            self.assertGreater(row["step_seconds_median"], 0)
            self.assertGreater(row["unplanned_step_seconds_median"], 0)
        self.assertLessEqual(rows[1]["mapped_peak_bytes"], rows[1]["budget_bytes"])
        self.assertTrue(picture.read_text().startswith("<svg"))
        self.assertIn("optimal, measured", picture.read_text())

    def test_settings_that_another_option_decides_are_refused(self):
        plan = self.folder / "plan.json"
        self.plan(self.config, "--out", plan)
        for command, setting in ((("bench",), "memory.budget=60%"), (("bench",), "memory.strategy=none"),
                                 (("train", "--plan", plan), "memory.strategy=none"),
                                 (("plan", "--plan", plan), "memory.strategy=none"),
                                 (("plan", "--strategy", "none"), "memory.strategy=optimal"),
                                 (("plan", "--longest-sequence", "--budget", "8MiB"), "memory.strategy=none")):
            result = run(*command, self.config, "--set", setting)
            self.assert_refused(result, 2, f"--set {setting} does nothing here: --")

    def test_settings_of_runs_are_refused_where_there_is_none(self):
        self.config.write_text(SMALL + '[output]\nfolder = "out"\n[state]\nevery = 2\n')
        for command in ("plan", "verify", "bench"):
            for setting in ("state.every=5", "output.folder=x", "train.detect_anomaly=true", "memory.verify_replay_every=1"):
                self.assert_refused(run(command, self.config, "--set", setting), 2,
                                    f"--set {setting} does nothing here: it is for train and finetune")
        self.plan(self.config)  # which shares its file with train
        self.assertIn("(at least 0) +", run("plan", "--help").stdout)

    def test_eviction_without_a_budget_is_refused(self):
        for command in ("train", "plan", "verify"):
            self.assert_refused(run(command, self.config, "--set", "memory.strategy=eviction"), 2, "memory.budget")

    def test_bench_refuses_before_it_records(self):
        for arguments in (("--budgets", ","), ("--budgets", "60%,,70%"), ("--strategies", "fast"), ("--budgets", "1 parsec")):
            result = run("bench", self.config, *arguments)
            self.assert_refused(result, 2, "budget" if arguments[1] in (",", "60%,,70%") else arguments[1].split()[-1])
            self.assertNotIn("recording", result.stderr)

    def test_bench_tells_what_it_measured_before_it_was_stopped(self):
        arguments = ("bench", self.config, "--budgets", "10%,60%", "--strategies", "optimal,every_block", "--rounds", "1000",
                     "--json")
        with started(*arguments) as process:
            wait_for(process.stderr, "round 3 of 1000")  # every row has had two turns
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        found = json.loads(out)
        self.assertIs(found["complete"], False)
        self.assertEqual([(row["strategy"], row["fits"]) for row in found["measurements"]],
                         [("optimal", False), ("optimal", True), ("every_block", True)])
        for row in found["measurements"][1:]:
            self.assertGreater(row["ratio_median"], 0)
            self.assertAlmostEqual(row["measured_peak_bytes"] / row["predicted_peak_bytes"], 1, delta=0.005)

    def test_bench_that_is_stopped_early_is_valid_json(self):
        with started("bench", self.config, "--budgets", "60%,70%", "--rounds", "1000", "--json") as process:
            wait_for(process.stderr, "recording")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        found = json.loads(out)
        self.assertIs(found["complete"], False)
        for row in found["measurements"]:  # planned or not, but not measured
            self.assertIsNone(row["measured_peak_bytes"])
            self.assertIsNone(row["ratio_median"])

    def test_budget_below_the_floor_names_it_and_its_parts(self):
        result = run("train", self.config, "--budget", "3MiB")
        self.assert_refused(result, 2, "does not fit", "3.0 MiB", "weights")
        result = run("train", self.config, "--budget", "20%")
        self.assert_refused(result, 2, "does not fit", "weights", "optimizer")
        total, share, parts = re.search(r"\((\d+) bytes, (\d+)% of [^:]*: (.*)\)", result.stderr).groups()
        sizes = [float(n) * 1024 ** "KMG".index(unit) * 1024 for n, unit in re.findall(r"([\d.]+) ([KMG])iB", parts)]
        self.assertAlmostEqual(sum(sizes), int(total), delta=len(sizes) * 0.05 * 2**20)
        # That budget will do, and one byte less will not; `bench` names the same.
        fits = run("train", self.config, "--budget", total, "--json", "--set", "train.steps=2")
        self.assertEqual(fits.returncode, 0, fits.stderr)
        self.assert_refused(run("train", self.config, "--budget", int(total) - 1), 2, "does not fit", "bytes), but the")
        fits = run("train", self.config, "--budget", f"{share}%", "--json", "--set", "train.steps=2")
        self.assertEqual(fits.returncode, 0, fits.stderr)
        self.assert_refused(run("train", self.config, "--budget", f"{int(share) - 1}%"), 2, "does not fit")

    def test_what_bench_says_would_fit_fits(self):
        first = json.loads(run("bench", self.config, "--budgets", "3MiB", "--rounds", "1", "--json").stdout)
        self.assertIs(first["measurements"][0]["fits"], False)
        floor = first["measurements"][0]["predicted_peak_bytes"]
        for budget, fits in ((floor, True), (floor - 1, False)):
            found = json.loads(run("bench", self.config, "--budgets", budget, "--rounds", "1", "--json").stdout)
            self.assertIs(found["measurements"][0]["fits"], fits, budget)

    def test_empty_and_unreadable_and_missing_data(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.assert_refused(run("train", self.config, "--set", f"data.path={empty}"), 2, str(empty))
        self.assert_refused(run("train", self.config, "--set", "data.path=/nowhere/at/all"), 2, "/nowhere/at/all")

    def test_text_shorter_than_one_sequence(self):
        text = self.folder / "short.txt"
        text.write_text("hello")
        self.assert_refused(run("train", self.config, "--set", f"data.path={text}"), 2, "65")

    # --- failures ---

    def test_non_finite_loss(self):
        result = run("train", self.config, "--set", "optimizer.learning_rate=1e38", "--set", "optimizer.warmup_steps=0")
        self.assert_refused(result, 1, "step 1", "detect_anomaly")
        result = run("train", self.config, "--set", "optimizer.learning_rate=1e38", "--set", "optimizer.warmup_steps=0",
                     "--detect-anomaly")
        self.assert_refused(result, 1, "step 1", "first operator", "aten::")

    def test_full_disk_while_writing_metrics(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "metrics.jsonl").symlink_to("/dev/full")
        self.assert_refused(run("train", self.config, "--set", f"output.folder={out}"), 1, "metrics.jsonl", "No space left")

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
        self.assertEqual([line["step"] for line in lines if "step" in line], [0, 1])
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
        self.assertEqual([line["step"] for line in lines if "step" in line], list(range(40)))

    # --- what works ---

    def test_doctor(self):
        found = json.loads(run("doctor", "--json").stdout)
        self.assertTrue(all(check["works"] for check in found["checks"].values()), found)
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

    def test_help_lists_every_key(self):
        text = run("train", "--help").stdout
        for key in ("model.blocks", "train.steps", "memory.budget", "precision.compute", "--detect-anomaly"):
            self.assertIn(key, text)

    def test_train_json_and_budget(self):
        result = run("train", self.config, "--budget", "70%", "--json", "--set", f"output.folder={self.folder / 'out'}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.strip().splitlines()), 1)
        found = json.loads(result.stdout)
        for key in ("steps", "tokens_per_second", "step_seconds_median", "loss_first", "loss_last", "validation_loss",
                    "budget_bytes", "predicted_peak_bytes", "measured_peak_bytes", "unplanned_peak_bytes", "peak_by_tag"):
            self.assertIn(key, found)
        self.assertEqual(found["steps"], 6)
        self.assertLess(found["loss_last"], found["loss_first"])
        self.assertLessEqual(found["measured_peak_bytes"], found["budget_bytes"])
        self.assertLessEqual(found["mapped_peak_bytes"], found["budget_bytes"])
        self.assertEqual(sum(found["peak_by_tag"].values()), found["measured_peak_bytes"])
        self.assertGreater(found["replayed_ops"], 0)
        lines = [json.loads(line) for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "step" in line], list(range(6)))
        self.assertEqual(lines[-1]["result"]["loss_last"], found["loss_last"])

    def test_what_cannot_be_a_folder_is_named_with_its_key(self):
        for name in (self.config, "n" * 300):
            result = run("train", self.config, "--set", f"output.folder={name}")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"output.folder = {name} cannot be made or written", result.stderr)
        result = run("train", self.config, "--set", "optimizer.learning_rate=inf")
        self.assertIn("it must be a finite number, more than 0", result.stderr)

    def test_the_peak_of_the_recording_is_not_that_of_the_steps(self):
        share = json.loads(run("train", self.config, "--budget", "70%", "--json").stdout)
        found = json.loads(run("train", self.config, "--budget", str(share["budget_bytes"]), "--json").stdout)
        self.assertAlmostEqual(found["measured_peak_bytes"] / found["predicted_peak_bytes"], 1, delta=0.01)
        self.assertLess(found["measured_peak_bytes"], found["recording_peak_bytes"])
        self.assertLessEqual(found["recording_peak_bytes"], found["budget_bytes"])
        self.assertGreater(share["recording_peak_bytes"], share["budget_bytes"], "a share is of what it takes without one")

    def test_a_file_that_may_not_grow_fails_in_one_line(self):
        folder = self.folder / "small_files"
        result = subprocess.run(["bash", "-c", 'ulimit -f 200; exec "$@"', "bash", SNUG, "train", self.config, "--set",
                                 f"output.folder={folder}", "--set", "state.every=2"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertIn("snug: ", result.stderr.splitlines()[-1])

    def test_the_same_run_gives_the_same_bits(self):
        arguments = ("train", self.config, "--json", "--set", "model.dropout=0.1")
        first, second = (json.loads(run(*arguments, *more).stdout) for more in ((), ("--budget", "75%")))
        self.assertEqual(first["loss_last"], second["loss_last"])
        self.assertEqual(first["validation_loss"], second["validation_loss"])

    def test_verify_under_a_budget(self):
        for compute in ("fp32", "bf16"):
            for dropout in (0.0, 0.1):
                result = run("verify", self.config, "--budget", "70%", "--json", "--set", f"precision.compute={compute}",
                             "--set", f"model.dropout={dropout}")
                self.assertEqual(result.returncode, 0, result.stderr)
                found = json.loads(result.stdout)
                self.assertEqual(found["different"], 0)
                self.assertEqual(found["max_abs_difference"], 0)
                self.assertEqual(found["steps"], 3)
                self.assertGreater(found["tensors"], 200)
                self.assertGreater(found["replayed_ops"], 0)
                self.assertLessEqual(found["measured_peak_bytes"], found["budget_bytes"])

    def test_verify_every_few_steps(self):
        result = run("verify", self.config, "--budget", "70%", "--steps", "5", "--every", "2", "--json")
        found = json.loads(result.stdout)
        self.assertEqual((found["steps"], found["steps_compared"], found["different"]), (5, 3, 0))
        self.assertEqual(run("verify", self.config, "--every", "0").returncode, 2)

    def test_training_checks_its_replays_and_changes_nothing(self):
        plain, checked = (json.loads(run("train", self.config, "--budget", "60%", "--json", *more).stdout)
                          for more in ((), ("--set", "memory.verify_replay_every=1")))
        self.assertGreater(checked["replayed_ops"], 0)
        self.assertEqual(plain["loss_last"], checked["loss_last"])

    def test_every_strategy(self):
        for strategy in ("none", "every_block", "chen_sqrt", "revolve(2)", "sequential(2)", "optimal"):
            result = run("verify", self.config, "--steps", "1", "--json", "--set", f"memory.strategy={strategy}")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["different"], 0)

    def test_interrupt_ends_cleanly(self):
        with started("train", self.config, "--json", "--set", "train.steps=100000") as process:
            wait_for(process.stderr, "step 1/100000")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        found = json.loads(out)
        self.assertTrue(found["interrupted"])
        self.assertGreater(found["steps"], 0)

    def test_resident_memory_follows_the_budget(self):
        # With a plan and with eviction alone. The constant is that of docs/figures.md: code, thread stacks, buffers of math
        # libraries that the first large step brings in.
        beside = 32 * 2**20
        for strategy in ("optimal", "eviction"):
            with self.subTest(strategy):
                result = run("train", SOURCE / "examples" / "gpt-demo.toml", "--json", "--set", "train.steps=2", "--set",
                             "train.validation_batches=0", "--set", f"memory.strategy={strategy}", "--set",
                             f"output.folder={self.folder / strategy}")  # what is saved counts, too
                self.assertEqual(result.returncode, 0, result.stderr)
                found = json.loads(result.stdout)
                self.assertLessEqual(found["budget_bytes"], 0.5 * found["unplanned_peak_bytes"])
                self.assertLessEqual(found["resident_peak_bytes"], found["resident_start_bytes"] + found["budget_bytes"] + beside)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)

"""The command as its users meet it: exit codes, messages of one line, --json, Ctrl-C.

Usage: command_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

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
    return subprocess.run([SNUG, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)


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
        self.assert_refused(run("fly"), 2)

    def test_budgets_that_are_none(self):
        for budget in ("0", "-5MiB", "12 parsecs", "0%", "150%", "plenty"):
            self.assert_refused(run("train", self.config, "--budget=" + budget), 2)

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
        self.assert_refused(run("plan", "--graph", graph, "--strategy", "fullblock(1)"), 2, "full_block")
        self.assert_refused(run("plan", "--graph", graph, "--budget", "1MiB"), 2, "does not fit")
        self.assert_refused(run("plan", "--graph", graph, "--set", "train.batch=2"), 2, "--graph")
        self.assert_refused(run("plan", "--graph", graph, self.config), 2, "one of")
        self.assert_refused(run("plan"), 2, "one of")
        graph.write_text(graph.read_text()[:1000])
        self.assert_refused(run("plan", "--graph", graph), 2, "graph.json", "not whole")

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
        self.assert_refused(run("train", self.config, "--plan", plan), 2, "plan.json", "not a")

    def test_a_plan_that_cannot_be_written_leaves_nothing(self):
        out = self.folder / "missing" / "plan.json"
        self.assert_refused(run("plan", self.config, "--budget", "70%", "--out", out), 1, "plan.json")
        if os.path.exists("/dev/full"):
            self.assert_refused(run("plan", self.config, "--budget", "70%", "--out", "/dev/full/x"), 1)

    def test_bench_measures_what_was_predicted(self):
        picture = self.folder / "curve.svg"
        result = run("bench", self.config, "--budgets", "10%,60%,100%", "--strategies", "optimal,every_block", "--rounds", "2",
                     "--svg", picture, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)
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
        self.assert_refused(run("bench", self.config, "--budgets", "60%,,70%"), 2, "budget")
        self.assert_refused(run("bench", self.config, "--strategies", "fast"), 2, "fast")

    def test_budget_below_the_floor_names_it_and_its_parts(self):
        result = run("train", self.config, "--budget", "3MiB")
        self.assert_refused(result, 2, "does not fit", "3.0 MiB", "weights")
        result = run("train", self.config, "--budget", "20%")
        self.assert_refused(result, 2, "does not fit", "weights", "optimizer")

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

    # --- what works ---

    def test_doctor(self):
        found = json.loads(run("doctor", "--json").stdout)
        self.assertTrue(all(check["works"] for check in found["checks"].values()), found)
        self.assertEqual(run("doctor").returncode, 0)

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
        process = subprocess.Popen([SNUG, "train", str(self.config), "--json", "--set", "train.steps=100000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        seen = process.stderr.readline()
        while seen and "/100000" not in seen:
            seen = process.stderr.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, err)
        found = json.loads(out)
        self.assertTrue(found["interrupted"])
        self.assertGreater(found["steps"], 0)

    def test_resident_memory_follows_the_budget(self):
        # With a plan and with eviction alone. The constant is the README's: code, thread stacks, and buffers of math
        # libraries that the first large step brings in.
        beside = 32 * 2**20
        for strategy in ("optimal", "eviction"):
            with self.subTest(strategy):
                result = run("train", SOURCE / "examples" / "gpt-demo.toml", "--json", "--set", "train.steps=3", "--set",
                             "output.folder=", "--set", f"memory.strategy={strategy}")
                self.assertEqual(result.returncode, 0, result.stderr)
                found = json.loads(result.stdout)
                self.assertLessEqual(found["budget_bytes"], 0.5 * found["unplanned_peak_bytes"])
                self.assertLessEqual(found["resident_peak_bytes"], found["resident_start_bytes"] + found["budget_bytes"] + beside)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)

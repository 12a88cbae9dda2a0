"""snug plan and snug bench: what they tell, and plans and recorded steps in files.

Usage: plan_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import json
import os
import signal
import stat
import subprocess
from pathlib import Path

from command import Command, main, run, started, wait_for


class PlanAndBench(Command):
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
        for word in ("predicted peak", "block 2", "no plan is faster than", "aten::native_layer_norm"):
            self.assertIn(word, text.stdout)

    def test_the_largest_that_fits(self):
        budget = 12 * 2**20
        found = self.plan(self.config, "--largest", "blocks", "--budget", str(budget))
        self.assertLessEqual(found["measured_peak_bytes"], budget)
        self.assertEqual((found["extent"], found["model_limit"]), ("blocks", None))
        text = run("plan", self.config, "--largest", "batch", "--budget", str(budget))
        self.assertIn("largest batch", text.stdout)
        self.assert_refused(run("plan", self.config, "--largest", "width", "--budget", str(budget)), 2,
                            '--largest is "width"; it is batch, sequence or blocks')
        self.assert_refused(run("plan", self.config, "--largest", "batch"), 2, "--largest needs a budget in bytes")
        self.assert_refused(run("plan", self.config, "--largest", "batch", "--budget", str(budget), "--set",
                                "memory.allow=tiled_loss"), 2, "memory.allow")

        file = self.folder / "strategy.toml"
        file.write_text(Path(self.config).read_text() + '\n[memory]\nstrategy = "every_block"\n')
        self.assert_refused(run("plan", file, "--largest", "batch", "--budget", str(budget)), 2, 'memory.strategy is "every_block"')

    def test_streamed_weights_and_their_window(self):
        whole = self.plan(self.config)
        self.assertEqual((whole["streamed_bytes"], whole["window_bytes"]), (0, 0))
        sets = ("--set", f"memory.budget={whole['unplanned_peak_bytes']}", "--set", "memory.host_budget=1GiB", "--set", "memory.weights=streamed")
        found = self.plan(self.config, *sets)
        self.assertGreater(found["streamed_bytes"], 0)
        self.assertGreater(found["window_bytes"], 0)
        self.assertAlmostEqual(found["whole_step_seconds"], found["predicted_step_seconds"] + found["update_seconds"] + found["window_seconds"])
        self.assertLessEqual(found["floor_bytes"], found["budget_bytes"])
        self.assertIn("streamed weights and state", run("plan", self.config, *sets).stdout)
        self.assert_refused(run("plan", self.config, "--set", "memory.budget=50%", *sets[2:]), 2, "set it, in bytes")

    def test_times_are_of_a_micro_batch_and_of_the_whole_step(self):
        whole = self.plan(self.config)
        self.assertEqual(whole["micro_batches"], 1)
        self.assertAlmostEqual(whole["whole_step_seconds"], whole["predicted_step_seconds"] + whole["update_seconds"])
        parts = self.plan(self.config, "--set", "train.accumulate=2")
        self.assertEqual(parts["micro_batches"], 2)
        self.assertGreater(parts["whole_step_seconds"], 1.5 * parts["predicted_step_seconds"])
        self.assertIn("2 micro-batches as above", run("plan", self.config, "--set", "train.accumulate=2").stdout)

    def test_choices_of_a_file_are_told_and_those_that_change_nothing(self):
        file = self.folder / "allow.toml"
        file.write_text(Path(self.config).read_text() + '\n[memory]\nallow = "adam8bit, in_backward"\n')
        budget = str(2 * self.plan(self.config)["unplanned_peak_bytes"])
        found = {choice["name"]: choice for choice in self.plan(file, "--budget", budget)["choices"]}
        self.assertIn("optimizer.clip_norm = 0", found["in_backward"]["why_not"])
        self.assertIn("changes nothing here", run("plan", file, "--budget", budget).stdout)

    def test_a_device_that_is_not_here(self):
        found = self.plan(self.config, "--on", "RTX-4090")
        self.assertEqual(found["device"], "rtx-4090")
        self.assertEqual(found["budget_bytes"], (24564 - 512) * 2**20)
        self.assertEqual(found["recomputed_bytes"], 0)
        within = self.plan(self.config, "--on", "rtx-4090", "--budget", "60%")
        self.assertEqual(within["unplanned_peak_bytes"], found["unplanned_peak_bytes"])
        self.assertGreater(within["recomputed_bytes"], 0)
        self.assertAlmostEqual(within["unplanned_step_seconds"], found["unplanned_step_seconds"], places=7)
        self.assertIsNone(self.plan(self.config)["device"])
        text = run("plan", self.config, "--on", "t4", "--explain").stdout
        for word in ("t4, which is not here", "block 2"):
            self.assertIn(word, text)

    def test_a_model_that_is_larger_than_this_machine(self):
        large = [a for key in ("model.blocks=32", "model.width=8192", "model.heads=64", "model.sequence=2048",
                               "precision.compute=bf16", "data.validation_fraction=0.9") for a in ("--set", key)]
        found = self.plan(self.config, *large, "--on", "2PFLOPS/8TBps/1TiB")
        self.assertGreater(found["unplanned_peak_bytes"], 300 * 2**30)
        slower = self.plan(self.config, *large, "--on", "500TFLOPS/2TBps/1TiB")
        self.assertEqual(slower["unplanned_peak_bytes"], found["unplanned_peak_bytes"])
        self.assertAlmostEqual(slower["unplanned_step_seconds"] / found["unplanned_step_seconds"], 4, delta=0.1)
        # What it needs, by what, and what would do.
        self.assert_refused(run("plan", self.config, *large, "--on", "t4"), 2, "does not fit: the budget is 14.5 GiB",
                                      "the smallest that strategy optimal can do with is", "weights", "optimizer")
        self.assert_refused(run("plan", self.config, "--on", "t4", "--budget", "100GiB"), 2,
                            "100.0 GiB is more than the 14.5 GiB that t4 has")

    def test_the_largest_batch_on_a_device_that_is_not_here(self):
        batch = lambda device: self.plan(self.config, "--on", device, "--largest", "batch",  # noqa: E731
                                         "--set", "memory.host_budget=1GiB")["largest"]
        self.assertGreater(batch("1TFLOPS/100GBps/1024MiB"), batch("1TFLOPS/100GBps/768MiB"))

    def test_devices_that_cannot_be_are_refused(self):
        plan = lambda *arguments: run("plan", *arguments)  # noqa: E731
        self.assert_refused(plan(self.config, "--on", "rtx-9999"), 2, '--on: device: "rtx-9999"', "rtx-4090", "312TFLOPS/2TBps/80GiB")
        self.assert_refused(plan(self.config, "--on", "t4", "--device", "cpu"), 2, "--on and --device")
        self.assert_refused(plan(self.config, "--on", "t4", "--set", "train.device=cpu"), 2, "train.device=cpu")
        self.assert_refused(plan("--on", "t4", "--graph", "graph.json"), 2, "--on", "configuration")

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
        self.assert_refused(run("plan", "--graph", graph, "--device", "cpu"), 2, "--device", "--graph")
        self.assert_refused(run("plan", "--graph", graph, self.config), 2, "small.toml", "graph.json", "only one of them")
        self.assert_refused(run("plan"), 2, "nothing to plan", "--graph")
        graph.write_text(graph.read_text()[:1000])
        self.assert_refused(run("plan", "--graph", graph), 2, "graph.json", "not whole")

    def test_train_follows_a_plan_from_a_file(self):
        plan = self.folder / "plan.json"
        made = self.plan(self.config, "--budget", "65%", "--out", plan)
        result = run("train", self.config, "--plan", plan, "--json")
        found = self.done(result)
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
        self.assert_refused(run("plan", self.config, "--budget", "70%", "--out", out), 2, "--out", "plan.json")
        self.assert_refused(run("plan", self.config, "--budget", "70%", "--out", "/dev/full/x"), 2, "--out")

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
        found = self.done(result)
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

    def test_what_bench_says_would_fit_fits(self):
        first = json.loads(run("bench", self.config, "--budgets", "3MiB", "--rounds", "1", "--json").stdout)
        self.assertIs(first["measurements"][0]["fits"], False)
        floor = first["measurements"][0]["predicted_peak_bytes"]
        for budget, fits in ((floor, True), (floor - 1, False)):
            found = json.loads(run("bench", self.config, "--budgets", budget, "--rounds", "1", "--json").stdout)
            self.assertIs(found["measurements"][0]["fits"], fits, budget)


if __name__ == "__main__":
    main()

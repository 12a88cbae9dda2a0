"""snug train and snug verify: budgets that hold, the same bits, and what a run tells.

Usage: train_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import json

from command import SOURCE, Command, main, run, run_shell


class TrainAndVerify(Command):
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
        self.assertEqual([line["step"] for line in lines if "step" in line], list(range(1, 7)))
        self.assertEqual(lines[-1]["result"]["loss_last"], found["loss_last"])

    def test_a_configuration_can_come_through_a_pipe(self):
        result = run_shell(f"cat {self.config} | \"$1\" train /dev/stdin --json --set train.steps=1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["steps"], 1)

    def test_the_peak_of_the_recording_is_not_that_of_the_steps(self):
        share = json.loads(run("train", self.config, "--budget", "70%", "--json").stdout)
        found = json.loads(run("train", self.config, "--budget", str(share["budget_bytes"]), "--json").stdout)
        self.assertAlmostEqual(found["measured_peak_bytes"] / found["predicted_peak_bytes"], 1, delta=0.01)
        self.assertLess(found["measured_peak_bytes"], found["recording_peak_bytes"])
        self.assertLessEqual(found["recording_peak_bytes"], found["budget_bytes"])
        self.assertGreater(share["recording_peak_bytes"], share["budget_bytes"], "a share is of what it takes without one")

    def test_the_same_run_gives_the_same_bits(self):
        arguments = ("train", self.config, "--json", "--set", "model.dropout=0.1")
        first, second = (json.loads(run(*arguments, *more).stdout) for more in ((), ("--budget", "75%")))
        self.assertEqual(first["loss_last"], second["loss_last"])
        self.assertEqual(first["validation_loss"], second["validation_loss"])

    def test_non_finite_loss(self):
        result = run("train", self.config, "--set", "optimizer.learning_rate=1e38", "--set", "optimizer.warmup_steps=0")
        self.assert_refused(result, 1, "step 2", "detect_anomaly")
        result = run("train", self.config, "--set", "optimizer.learning_rate=1e38", "--set", "optimizer.warmup_steps=0",
                     "--detect-anomaly")
        self.assert_refused(result, 1, "step 2", "first operator", "aten::")

    def test_verify_under_a_budget(self):
        for compute in ("fp32", "bf16"):
            for dropout in (0.0, 0.1):
                result = run("verify", self.config, "--budget", "70%", "--json", "--set", f"precision.compute={compute}",
                             "--set", f"model.dropout={dropout}")
                found = self.done(result)
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

    def test_resident_memory_follows_the_budget(self):
        # With a plan and with eviction alone. The constant is that of docs/figures.md: code, thread stacks, buffers of math
        # libraries that the first large step brings in.
        beside = 32 * 2**20
        for strategy in ("optimal", "eviction"):
            with self.subTest(strategy):
                result = run("train", SOURCE / "examples" / "gpt-demo.toml", "--json", "--set", "train.steps=2", "--set",
                             "train.validation_batches=0", "--set", f"memory.strategy={strategy}", "--set",
                             f"output.folder={self.folder / strategy}")  # what is saved counts, too
                found = self.done(result)
                self.assertLessEqual(found["budget_bytes"], 0.5 * found["unplanned_peak_bytes"])
                self.assertLessEqual(found["resident_peak_bytes"], found["resident_start_bytes"] + found["budget_bytes"] + beside)


if __name__ == "__main__":
    main()

"""snug train and snug finetune in several processes.

Usage: parallel_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import json
import os
import pathlib
import subprocess
import sys

from command import SNUG, SOURCE, Command, main, run, run_together

# The same for one process and for several: sums are divided among threads.
ALIKE = ("--set", "train.threads=1")


class Together(Command):
    def lines(self, folder):
        lines = [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").read_text().splitlines()]
        return [(line["loss"], line["gradient_norm"]) for line in lines if "step" in line]

    def test_train_as_one_process_with_as_many_micro_batches(self):
        to = lambda name: ("--set", f"output.folder={self.folder / name}")  # noqa: E731
        first, second = run_together(2, "train", self.config, "--budget", "90%", "--json", *ALIKE, *to("two"))
        self.assertEqual((first.returncode, second.returncode), (0, 0), first.stderr + second.stderr)
        self.assertEqual((second.stdout, second.stderr), ("", ""), "the first tells")
        found = json.loads(first.stdout)
        self.assertEqual(found["steps"], 6)
        self.assertLessEqual(found["measured_peak_bytes"], found["budget_bytes"])
        one = run("train", self.config, *ALIKE, "--set", "train.accumulate=2", *to("one"))
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertEqual(self.lines("two"), self.lines("one"))
        self.assertEqual(len(self.lines("two")), 6)

    def test_shards_take_less_and_change_no_bit(self):
        to = lambda name: ("--set", f"output.folder={self.folder / name}")  # noqa: E731
        peaks = {}
        for shard in ("none", "optimizer", "gradients", "parameters"):
            results = run_together(2, "train", self.config, "--json", *ALIKE, "--set", "train.accumulate=2",
                                   "--set", f"parallel.shard={shard}", *to(shard))
            self.assertEqual([r.returncode for r in results], [0, 0], results[0].stderr + results[1].stderr)
            peaks[shard] = json.loads(results[0].stdout)["measured_peak_bytes"]
        self.assertLess(peaks["optimizer"], peaks["none"])
        self.assertLess(peaks["gradients"], peaks["optimizer"])
        self.assertEqual(self.lines("optimizer"), self.lines("none"), "gradients are added up as without")
        one = run("train", self.config, *ALIKE, "--set", "train.accumulate=4", *to("one"))
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertEqual(self.lines("gradients"), self.lines("one"))
        self.assertEqual(self.lines("parameters"), self.lines("one"))

    def test_layers_in_parts_and_stages_are_close_to_one_process(self):
        to = lambda name: ("--set", f"output.folder={self.folder / name}")  # noqa: E731
        one = run("train", self.config, *ALIKE, "--set", "train.accumulate=2", *to("one"))
        self.assertEqual(one.returncode, 0, one.stderr)
        for name, keys in {"parts": ("parallel.tensor=2", "parallel.sequence_parallel=true", "train.accumulate=2"),
                           "stages": ("parallel.pipeline=2", "train.accumulate=2")}.items():
            settings = [a for key in keys for a in ("--set", key)]
            results = run_together(2, "train", self.config, "--budget", "90%", *ALIKE, *settings, *to(name))
            self.assertEqual([r.returncode for r in results], [0, 0], results[0].stderr + results[1].stderr)
            self.assertEqual(len(self.lines(name)), 6)
            for found, expected in zip(self.lines(name), self.lines("one")):
                for a, b in zip(found, expected):
                    self.assertAlmostEqual(a / b, 1, delta=2e-5)

    def test_a_layout_is_found_and_its_command_runs_as_foretold(self):
        free = json.loads(run("plan", self.config, "--devices", "2", "--json", "--set", "parallel.pipeline=1",
                              "--set", "parallel.context=1", "--set", "train.accumulate=1").stdout)
        self.assertEqual({(l["tensor"], l["data"]) for l in free["layouts"]}, {(1, 2), (2, 1)})
        tensor = next(l for l in free["layouts"] if l["tensor"] == 2)
        self.assertTrue(tensor["sequence_parallel"])
        # Of one layout, with less memory than it takes without a plan.
        process = tensor["processes"][0]
        memory = (process["floor_bytes"] + process["unplanned_peak_bytes"]) // 2
        found = run("plan", self.config, "--devices", "2", "--device-memory", f"{memory}B", "--link", "1GBps/1us",
                    "--set", "parallel.tensor=2", "--set", "train.accumulate=1", "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        found = json.loads(found.stdout)
        self.assertEqual(len(found["layouts"]), 1)
        self.assertEqual(found["within"], {"bytes_per_second": 1e9, "seconds_per_message": 1e-6})
        self.assertEqual(found["layouts"][0]["processes"][0]["unplanned_peak_bytes"], process["unplanned_peak_bytes"])
        launch, _, arguments = found["command"].partition(" snug train ")
        self.assertEqual(launch, "torchrun --no-python --nproc-per-node 2")
        first, second = run_together(2, "train", *arguments.split(), "--json", "--set",
                                     f"output.folder={self.folder / 'found'}")
        self.assertEqual((first.returncode, second.returncode), (0, 0), first.stderr + second.stderr)
        real = json.loads(first.stdout)
        self.assertEqual(real["unplanned_peak_bytes"], process["unplanned_peak_bytes"])
        self.assertLessEqual(real["measured_peak_bytes"], memory)
        self.assertGreater(real["replayed_ops"], 0)

    def test_what_hosts_and_machines_have_is_in_the_command(self):
        fixed = [a for key in ("tensor=1", "context=1", "pipeline=1", "shard=none")
                 for a in ("--set", f"parallel.{key}")] + ["--set", "train.accumulate=1"]
        free = json.loads(run("plan", self.config, "--devices", "2", "--json", *fixed).stdout)
        process = free["layouts"][0]["processes"][0]
        memory = (process["floor_bytes"] + process["unplanned_peak_bytes"]) // 2
        moved = json.loads(run("plan", self.config, "--devices", "2", "--device-memory", f"{memory}B",
                               "--host-memory", "64MiB", "--json", *fixed).stdout)
        self.assertIn(f"--set memory.host_budget={32 * 2**20}B --budget {memory}B", moved["command"])
        arguments = moved["command"].partition(" snug train ")[2]
        for one in run_together(2, "train", *arguments.split(), "--set", "output.folder=", "--set", "train.steps=2"):
            self.assertEqual(one.returncode, 0, one.stderr)
        nodes = run("plan", self.config, "--devices", "2", "--nodes", "2", *fixed)
        self.assertEqual(nodes.returncode, 0, nodes.stderr)
        self.assertIn("torchrun --no-python --nnodes 2 --node-rank NODE --master-addr HOST --nproc-per-node 1 snug train",
                      nodes.stdout)
        self.assertIn("between nodes 1.25 GB/s, 50 us a message (assumed", nodes.stdout)

    def test_layouts_of_a_thousand_devices_that_are_not_here(self):
        arguments = ("plan", self.config, "--devices", "1024", "--nodes", "128", "--on", "a100-80gb", "--link",
                     "200Gbps/5us,300GBps/3us", "--set", "train.batch=4096", "--set", "parallel.tensor=2",
                     "--set", "parallel.pipeline=2", "--set", "parallel.context=1", "--set", "parallel.shard=none",
                     "--set", "parallel.schedule=1f1b", "--set", "train.accumulate=4")
        found = json.loads(run(*arguments, "--json").stdout)
        self.assertEqual((found["device"], found["devices"], found["nodes"]), ("a100-80gb", 1024, 128))
        self.assertIn("--nproc-per-node 8", found["command"])
        self.assertNotIn("train.threads", found["command"], "which are those of another machine")
        self.assertGreater(found["layouts"][0]["tokens_per_second"], 0)
        text = run(*arguments).stdout
        self.assertIn("each on a100-80gb, which is not here", text)
        self.assertIn("through the host's memory so far", text)

    def test_devices_that_are_not_here_are_in_their_makers_servers(self):
        arguments = ("plan", self.config, "--devices", "16", "--on", "h100", "--set", "train.batch=16", "--set", "parallel.tensor=1",
                     "--set", "parallel.pipeline=1", "--set", "parallel.context=1", "--set", "parallel.shard=none")
        found = json.loads(run(*arguments, "--json").stdout)
        self.assertEqual((found["device"], found["devices"], found["nodes"]), ("h100-sxm", 16, 2))
        text = run(*arguments).stdout
        self.assertIn("within a node 450 GB/s, 10 us a message; between nodes 50 GB/s, 10 us a message", text)

    def test_doctor_measures_links_as_plan_takes_them(self):
        first, second = run_together(2, "doctor", "--json")
        self.assertEqual((first.returncode, second.returncode, second.stdout), (0, 0, ""), first.stderr + second.stderr)
        link = json.loads(first.stdout)["link"]
        found = run("plan", self.config, "--devices", "2", "--link", link, "--json", "--set", "parallel.tensor=2",
                    "--set", "parallel.shard=none", "--set", "train.accumulate=1")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertGreater(json.loads(found.stdout)["within"]["bytes_per_second"], 1e6)
        self.assertNotIn(",", link, "none goes to another machine")
        self.assertIsNone(json.loads(run("doctor", "--json").stdout)["link"])

    def test_what_does_nothing_alone_is_told_and_what_differs_is_named(self):
        told = run("train", self.config, "--set", "parallel.shard=gradients", "--set", "parallel.reduce=bf16")
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn('parallel.shard = "gradients" divides nothing: there is one process', told.stderr)
        self.assertIn('parallel.reduce = "bf16" adds up nothing', told.stderr)
        parts = run_together(2, "train", self.config, "--set", "parallel.tensor=2", "--set", "parallel.shard=optimizer",
                             "--set", f"output.folder={self.folder / 'parts'}", "--set", "state.interval=0")
        self.assertEqual([one.returncode for one in parts], [0, 0], parts[0].stderr + parts[1].stderr)
        self.assertIn("divides nothing: there is one replica", parts[0].stderr)
        self.assertIn("state.every = N saves it", parts[0].stderr)
        off = run("train", self.config, "--set", "parallel.schedule=f_then_b", "--set", "parallel.pipeline=1")
        self.assertEqual(off.returncode, 0, off.stderr)
        self.assert_refused(run("train", self.config, "--set", "parallel.schedule=f_then_b"), 2, "does nothing here")
        for schedule in ("zero_bubble", "2f2b"):
            self.assert_refused(run("train", self.config, "--set", f"parallel.schedule={schedule}"), 2,
                                "it must be one of f_then_b, 1f1b, interleaved(V)")

    def test_other_micro_batches_where_a_run_goes_on_are_told(self):
        to = ("--set", f"output.folder={self.folder / 'run'}", "--set", "state.every=3")
        both = run_together(2, "train", self.config, *ALIKE, *to, "--set", "train.steps=3")
        self.assertEqual([one.returncode for one in both], [0, 0], both[0].stderr + both[1].stderr)
        other = run("train", self.config, *ALIKE, *to, "--resume", "--set", "train.accumulate=4")
        self.assert_refused(other, 2, "train.accumulate was 1 and is 4", "train.accumulate = 2 would go on as before")
        few = run("train", self.config, *ALIKE, *to, "--resume", "--set", "train.steps=2")
        self.assert_refused(few, 2, "set it to 3 or more")
        self.assertNotIn("from here on", other.stderr, "which it does not do")
        self.assertNotIn("resuming after", few.stderr, "nor this")
        alone = run("train", self.config, *ALIKE, *to, "--resume")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertIn("batches are 1 micro-batches from here on, and were 2", alone.stderr)
        self.assertIn("train.accumulate = 2 would go on as before", alone.stderr)

    def test_copies_are_timed_within_the_budget(self):
        sets = ("--set", "memory.host_budget=1GiB", "--set", "memory.optimizer=streamed")
        free = json.loads(run("train", self.config, "--json", "--set", "train.steps=1").stdout)
        budget = free["unplanned_peak_bytes"] * 2
        found = run("train", self.config, "--json", *sets, "--budget", str(budget), "--set", "train.steps=1")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertLessEqual(json.loads(found.stdout)["recording_peak_bytes"], budget)
        self.assert_refused(run("train", self.config, *sets, "--budget", str(budget), "--set", "optimizer.kind=sgd", "--set",
                                "optimizer.momentum=0"), 2, 'optimizer.kind = "sgd" keeps nothing')

    def test_layouts_that_cannot_be_are_refused(self):
        plan = lambda *arguments: run("plan", self.config, *arguments)  # noqa: E731
        self.assert_refused(plan("--devices", "2", "--set", "parallel.tensor=1", "--set",
                                 "parallel.sequence_parallel=false"), 2, "is of layers in parts")
        self.assert_refused(plan("--nodes", "2"), 2, "--devices", "which is not there")
        self.assert_refused(plan("--devices", "3", "--nodes", "2"), 2, "--devices 3 and --nodes 2")
        self.assert_refused(plan("--devices", "0"), 2, "--devices 0")
        self.assert_refused(plan("--devices", "2", "--link", "fast"), 2, 'link: "fast" is no link')
        self.assert_refused(plan("--devices", "2", "--device-memory", "8"), 2, "--device-memory", "write a unit")
        self.assert_refused(plan("--devices", "2", "--explain"), 2, "--devices looks for a layout; it takes --nodes")
        self.assert_refused(plan("--devices", "2", "--device-memory", "1GiB", "--budget", "1GiB"), 2,
                            "leave one of them out")
        self.assert_refused(plan("--devices", "2", "--set", "parallel.timeout=3"), 2, "parallel.timeout=3")
        self.assert_refused(plan("--devices", "2", "--set", "state.every=3"), 2, "state.every=3")
        self.assert_refused(run("plan", "--devices", "2"), 2, "--devices needs a configuration")
        none = plan("--devices", "2", "--device-memory", "1MiB", "--set", "parallel.tensor=2")
        self.assertEqual(none.returncode, 2, none.stderr)
        self.assertIn("no layout fits; the one that takes least takes ", none.stderr)
        self.assertIn("takes ", none.stdout)
        for command in (("plan", self.config, "--devices", "2"), ("plan", self.config), ("bench", self.config),
                        ("verify", self.config)):
            for one in run_together(2, *command):
                self.assert_refused(one, 2, "without a launcher")
        self.assert_refused(plan("--devices", "1", "--budget", "90%", "--set", "memory.allow=micro_batch"), 2,
                            "--devices rehearses it as it is")
        heads = plan("--devices", "8", "--set", "parallel.tensor=8", "--set", "train.accumulate=1")
        self.assertEqual(heads.returncode, 2, heads.stderr)
        self.assertIn("4 heads", heads.stderr)

    def test_parts_need_other_processes(self):
        alone = run("train", self.config, "--set", "parallel.pipeline=4", "--set", "train.accumulate=4")
        self.assert_refused(alone, 2, "parallel.pipeline = 4", "alone", "--nproc-per-node 4")

    def test_goes_on_where_torchrun_starts_it_again(self):
        environments = (os.environ.get("VIRTUAL_ENV"), SOURCE / ".venv")
        pythons = [sys.executable, *(pathlib.Path(e, "bin", "python") for e in environments if e)]
        python = next((p for p in pythons if os.path.exists(p) and subprocess.run(
            [p, "-c", "import torch.distributed.run"], capture_output=True).returncode == 0), None)
        if python is None:
            self.skipTest("no Python here has torchrun")
        script = self.folder / "killed.sh"
        state = self.folder / "again" / "state"
        # One dies before they have met, then one in the midst of the run.
        script.write_text(f'''
echo "$TORCHELASTIC_RESTART_COUNT" >> {self.folder}/starts.$RANK
case "$TORCHELASTIC_RESTART_COUNT/$RANK" in
  0/1) exit 1 ;;
  1/1) "$@" & until ls {state} 2> /dev/null | grep -q step-; do sleep 0.01; done
       kill -9 $!; wait $!; exit 1 ;;
esac
exec "$@"
''')
        train = ("train", self.config, *ALIKE, "--set", "train.steps=100", "--set", "state.every=1")
        again = subprocess.run(
            [python, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2",
             "--max-restarts", "3", "--monitor-interval", "0.1", "sh", script, SNUG, *map(str, train), "--resume",
             "--set", f"output.folder={self.folder / 'again'}"], capture_output=True, text=True, timeout=300)
        self.assertEqual(again.returncode, 0, again.stderr)
        for rank in (0, 1):
            self.assertEqual((self.folder / f"starts.{rank}").read_text().split(), ["0", "1", "2"])
        whole = run_together(2, *train, "--set", f"output.folder={self.folder / 'whole'}")
        self.assertEqual([r.returncode for r in whole], [0, 0], whole[0].stderr + whole[1].stderr)
        by_step = {line["step"]: line["loss"] for line in map(
            json.loads, (self.folder / "again" / "metrics.jsonl").read_text().splitlines()) if "step" in line}
        self.assertEqual([by_step[step] for step in range(1, 101)], [loss for loss, _ in self.lines("whole")])
        self.assertIn("resuming after", again.stderr)
        newest = "step-0000000100"
        ours, theirs = ((self.folder / name / "state" / newest / "weights.safetensors").read_bytes()
                        for name in ("again", "whole"))
        self.assertEqual(ours, theirs)

    def test_a_loss_scale_falls_in_all(self):
        scaled = ("--set", "precision.compute=fp16", "--set", "precision.init_scale=1e9", *ALIKE)
        results = run_together(2, "train", self.config, *scaled, "--set", f"output.folder={self.folder / 'two'}")
        self.assertEqual([r.returncode for r in results], [0, 0], results[0].stderr + results[1].stderr)
        one = run("train", self.config, *scaled, "--set", "train.accumulate=2",
                  "--set", f"output.folder={self.folder / 'one'}")
        self.assertEqual(one.returncode, 0, one.stderr)
        for name in ("two", "one"):
            text = (self.folder / name / "metrics.jsonl").read_text()
            overflows = [line.get("overflowed") for line in map(json.loads, text.splitlines()) if "step" in line]
            self.assertIn(True, overflows)
        self.assertEqual(str(self.lines("two")), str(self.lines("one")))

    def test_gradients_can_be_added_up_in_fewer_bits(self):
        for kind in ("gradient", "bf16"):
            results = run_together(2, "train", self.config, *ALIKE, "--set", f"parallel.reduce={kind}", "--set",
                                   f"output.folder={self.folder / kind}")
            self.assertEqual([r.returncode for r in results], [0, 0], results[0].stderr + results[1].stderr)
        exact, fewer = self.lines("gradient"), self.lines("bf16")
        self.assertNotEqual(exact, fewer)
        self.assertAlmostEqual(exact[-1][0], fewer[-1][0], delta=0.02)

    def test_finetune_saves_the_whole_model_from_shards(self):
        text = self.folder / "text.txt"
        text.write_text("the rain in another town and the sun in the other. " * 200)
        options = ("--set", "model.kind=llama", "--set", f"model.path={SOURCE / 'tests' / 'train' / 'tiny.gguf'}",
                   "--set", "model.sequence=48", "--set", f"data.path={text}", "--prompt", "the rain", *ALIKE)
        empty = self.folder / "empty.toml"
        empty.write_text("[train]\nbatch = 4\nsteps = 5\nvalidation_batches = 1\n")
        out = {name: self.folder / name for name in ("two", "one")}
        results = run_together(2, "finetune", empty, *options, "--set", f"output.folder={out['two']}", "--json",
                               "--set", "parallel.shard=parameters")
        self.assertEqual([r.returncode for r in results], [0, 0], results[0].stderr + results[1].stderr)
        one = run("finetune", empty, *options, "--set", "train.accumulate=2", "--set", f"output.folder={out['one']}",
                  "--json")
        self.assertEqual(one.returncode, 0, one.stderr)
        found, alone = json.loads(results[0].stdout), json.loads(one.stdout)
        self.assertEqual(found["continuations"], alone["continuations"])
        ours, theirs = (pathlib.Path(r["saved"], "model.safetensors").read_bytes() for r in (found, alone))
        self.assertGreater(len(ours), 100_000)
        self.assertEqual(ours, theirs)

    def test_finetune_saves_the_adapter_of_all(self):
        text = self.folder / "text.txt"
        text.write_text("the rain in another town and the sun in the other. " * 200)
        options = ("--set", "model.kind=llama", "--set", f"model.path={SOURCE / 'tests' / 'train' / 'tiny.gguf'}",
                   "--set", "model.sequence=48", "--set", "lora.rank=4", "--set", f"data.path={text}", *ALIKE)
        empty = self.folder / "empty.toml"
        empty.write_text("[train]\nbatch = 4\nsteps = 5\nvalidation_batches = 1\n")
        out = {name: self.folder / name for name in ("two", "one")}
        results = run_together(2, "finetune", empty, *options, "--set", f"output.folder={out['two']}", "--json")
        self.assertEqual([r.returncode for r in results], [0, 0], results[0].stderr + results[1].stderr)
        self.assertEqual(results[1].stdout, "")
        saved = json.loads(results[0].stdout)["saved"]
        one = run("finetune", empty, *options, "--set", "train.accumulate=2", "--set", f"output.folder={out['one']}",
                  "--json")
        self.assertEqual(one.returncode, 0, one.stderr)
        alone = json.loads(one.stdout)["saved"]
        names = sorted(os.listdir(saved))
        self.assertEqual(names, sorted(os.listdir(alone)))
        ours, theirs = (pathlib.Path(folder, "adapter_model.safetensors").read_bytes() for folder in (saved, alone))
        self.assertGreater(len(ours), 1000)
        self.assertEqual(ours, theirs)

    def test_wrong_use_ends_all_with_2_and_one_line(self):
        for settings, part in ((("train.batch=9",), "train.batch = 9 and 2 processes"),
                               (("memory.allow=micro_batch", "memory.budget=90%"), "memory.allow and 2 processes"),
                               (("optimizer.kind=muon", "parallel.shard=optimizer"), "it updates whole matrices")):
            with self.subTest(part):
                sets = [word for setting in settings for word in ("--set", setting)]
                for result in run_together(2, "train", self.config, *sets):
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertIn(part, result.stderr)
                    self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)


if __name__ == "__main__":
    main()

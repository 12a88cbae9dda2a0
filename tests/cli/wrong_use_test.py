"""Wrong use: refused in one line that says what is wrong and what to do, with exit code 2.

Usage: wrong_use_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import re

from command import SMALL, Command, main, run, run_shell


class WrongUse(Command):
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
        self.assert_refused(run("train", self.config, "--bugdet", "4GiB"), 2, "--bugdet; did you mean --budget?")
        self.assert_refused(run("train", self.config, "--strategy", "none"), 2, "did you mean --set memory.strategy=...?")
        self.assert_refused(run("train", self.config, "--validation-batches=2"), 2, "--set train.validation_batches=...?")
        self.assert_refused(run("doctor", "--strategy"), 2, "expected: --strategy; snug doctor --help says")
        self.assert_refused(run("tran"), 2, '"tran" is no command; did you mean "train"?')
        self.assert_refused(run("tran", self.config, "--budget", "60%"), 2, "did you mean")
        self.assert_refused(run("fly"), 2, '"fly" is no command; the commands are doctor, plan, train')

    def test_devices_that_are_none(self):
        self.assert_refused(run("train", self.config, "--device", "gpu0"), 2, '--device: "gpu0" names no device', "cuda")
        self.assert_refused(run("train", self.config, "--device", ""), 2, "names no device")
        self.assert_refused(run("plan", self.config, "--device", "xla"), 2, "no backend for xla")
        self.assert_refused(run("generate", "--model", self.config, "--prompt", "a", "--device", ""), 2)

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

    def test_what_to_do_is_in_the_message(self):
        self.assert_refused(run("train", self.config, "--budget", "40"), 2, "no unit", "40%")
        self.assert_refused(run("train"), 2, "config is required", "snug train --help")
        self.assert_refused(run("train", self.config, "--plan", "/nowhere.json"), 2, "/nowhere.json", "snug plan")
        self.assert_refused(run("train", self.config, "--set", "train.steps=" + 20 * "9"), 2, "an integer beyond 63 bits")
        self.assert_refused(run("plan", self.config, "--strategy", "selective(aten::nothing)"), 2, "aten::addmm")
        self.assert_refused(run("train", self.config, "--device", "xla"), 2, "devices with one: cpu")

    def test_budget_larger_than_the_machine(self):
        for command in ("train", "plan", "verify"):
            self.assert_refused(run(command, self.config, "--budget", "900TiB"), 2, "900.0 TiB", "this machine has")
        largest = run("plan", self.config, "--largest", "batch", "--budget", "900TiB")
        self.assert_refused(largest, 2, "900.0 TiB", "this machine has")
        for place, owner in (("host", "this machine"), ("disk", "the disk of ")):
            for how in ([], ["--largest", "batch"]):
                more = run("plan", self.config, "--budget", "1GiB", "--set", f"memory.{place}_budget=900000TiB", *how)
                self.assert_refused(more, 2, f"{place} budget", "900000.0 TiB", owner)

    def test_keys_of_memory_that_do_nothing_without_a_budget_are_refused(self):
        for key in ("memory.activations=int4", "memory.host_budget=1GiB", "memory.disk_budget=1GiB"):
            self.assert_refused(run("verify", self.config, "--set", key), 2, key.split("=")[0], "does nothing here", "memory.budget")
        self.assert_refused(run("train", self.config, "--set", "memory.verify_replay_every=1"), 2, "memory.budget")
        recomputes = run("train", self.config, "--set", "memory.verify_replay_every=1", "--set", "train.steps=1",
                         "--set", "memory.strategy=every_block", "--json")
        self.assertEqual(recomputes.returncode, 0, recomputes.stderr)
        nowhere = run("plan", self.config, "--set", "memory.host_budget=1GiB", "--strategy", "none", "--budget", "1GiB",
                      "--set", "memory.strategy=every_block")
        self.assert_refused(nowhere, 2)

    def test_files_that_cannot_be_written_are_refused_before_anything_is_recorded(self):
        for option in ("--out", "--graph-out"):
            self.assert_refused(run("plan", self.config, option, "/nowhere/x.json"), 2, option, "/nowhere/x.json", "cannot be written")
            self.assert_refused(run("plan", self.config, option, self.folder), 2, option, "cannot be written")
        self.assert_refused(run("bench", self.config, "--svg", "/nowhere/x.svg"), 2, "--svg", "cannot be written")

    def test_finetune_asks_for_the_model_first(self):
        self.config.write_text(SMALL + "[lora]\nrank = 16\n")
        self.assert_refused(run("finetune", self.config), 2, "model.path is not set; name the files of a pretrained model")

    def test_options_name_themselves(self):
        self.assert_refused(run("plan", self.config, "--budget", "12 parsecs"), 2, "--budget", "parsecs")
        self.assert_refused(run("bench", self.config, "--budgets", "60%,12 parsecs"), 2, "--budgets", "parsecs")
        self.assert_refused(run("bench", self.config, "--strategies", "optimum"), 2, "--strategies", "optimal")
        self.assert_refused(run("generate", "--model", self.config, "--prompt", "a", "--device", "gpu0"), 2, "--device", "gpu0")
        self.assert_refused(run("finetune", self.config, "--tokens", "3"), 2, "--prompt")

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

    def test_eviction_without_a_budget_is_refused(self):
        for command in ("train", "plan", "verify"):
            self.assert_refused(run(command, self.config, "--set", "memory.strategy=eviction"), 2, "memory.budget")

    def test_settings_that_another_option_decides_are_refused(self):
        plan = self.folder / "plan.json"
        self.plan(self.config, "--out", plan)
        for command, setting in ((("bench",), "memory.budget=60%"), (("bench",), "memory.strategy=none"),
                                 (("train", "--plan", plan), "memory.strategy=none"),
                                 (("plan", "--plan", plan), "memory.strategy=none"),
                                 (("plan", "--strategy", "none"), "memory.strategy=optimal"),
                                 (("plan", "--largest", "batch", "--budget", "8MiB"), "memory.strategy=none")):
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

    def test_a_bad_strategy_is_blamed_on_its_option(self):
        for strategy in ("fullblock(1)", "optimal(3)", ""):
            result = run("plan", self.config, "--strategy", strategy)
            self.assert_refused(result, 2, "--strategy")
            self.assertNotIn("--set", result.stderr)

    def test_empty_and_unreadable_and_missing_data(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.assert_refused(run("train", self.config, "--set", f"data.path={empty}"), 2, str(empty))
        self.assert_refused(run("train", self.config, "--set", "data.path=/nowhere/at/all"), 2, "/nowhere/at/all")

    def test_text_shorter_than_one_sequence(self):
        text = self.folder / "short.txt"
        text.write_text("hello")
        self.assert_refused(run("train", self.config, "--set", f"data.path={text}"), 2, "65")

    def test_what_cannot_be_a_folder_is_named_with_its_key(self):
        for name in (self.config, "n" * 300):
            result = run("train", self.config, "--set", f"output.folder={name}")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"output.folder = {name} cannot be made or written", result.stderr)
        result = run("train", self.config, "--set", "optimizer.learning_rate=inf")
        self.assertIn("it must be a finite number, more than 0", result.stderr)


if __name__ == "__main__":
    main()

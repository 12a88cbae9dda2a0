"""Fine-tuning, generating and resuming from the command line, on the tiny model of tests/train.

Usage: finetune_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import json
import signal

from command import SNUG, SOURCE, Command, main, run, run_shell, started, wait_for

TINY = SOURCE / "tests" / "train"
CONFIG = """
[model]
path = "{model}"
sequence = 48
[lora]
rank = 4
targets = "all-linear"
[data]
path = "{text}"
[train]
batch = 4
steps = 30
validation_batches = 1
[optimizer]
learning_rate = 1e-2
warmup_steps = 2
[output]
folder = "{folder}"
"""
LONG = """
[model]
kind = "gpt"
blocks = 2
width = 32
heads = 2
sequence = 512
[data]
path = "{text}"
[train]
batch = 1
validation_batches = 0
"""


class Finetune(Command):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"
        self.text.write_text("the rain in another town and the sun in the other. " * 200)
        self.config = self.folder / "finetune.toml"
        self.write_config(TINY / "tiny.gguf")

    def write_config(self, model):
        self.config.write_text(CONFIG.format(model=model, text=self.text, folder=self.folder / "out"))

    def test_learns_and_the_saved_adapter_continues_as_it_did(self):
        for model, weights in ((TINY / "tiny.gguf", "fp32"), (TINY / "tiny.gguf", "packed"), (TINY / "tiny", "bf16")):
            with self.subTest(weights):
                self.write_config(model)
                found = self.done(run("finetune", self.config, "--json", "--budget", "80%", "--prompt", "the rain", "--tokens",
                                      "12", "--set", f"model.weights={weights}"))
                self.assertLess(found["loss_last"], 0.7 * found["loss_first"])
                self.assertLess(found["validation_loss"], 0.8 * found["validation_loss_before"])
                self.assertLess(found["trained_parameters"], 6000)
                self.assertLessEqual(found["mapped_peak_bytes"], found["budget_bytes"])
                shown = found["continuations"][0]
                self.assertNotEqual(shown["before"], shown["after"])
                again = self.done(run("generate", "--model", model, "--weights", weights, "--adapter", found["saved"],
                                      "--prompt", "the rain", "--tokens", "12", "--json"))
                self.assertEqual(again["text"], shown["after"])

    def test_the_plan_changes_no_bit_of_it(self):
        for weights in ("fp32", "packed"):
            with self.subTest(weights):
                found = self.done(run("verify", self.config, "--steps", "2", "--budget", "60%", "--json", "--set",
                                      "lora.dropout=0.1", "--set", f"model.weights={weights}"))
                self.assertEqual(found["different"], 0)
                self.assertGreater(found["replayed_ops"], 0)

    def test_every_weight_can_be_trained_and_saved(self):
        found = self.done(run("finetune", self.config, "--json", "--set", "lora.rank=0", "--set", "train.steps=3", "--prompt", "the",
                              "--tokens", "5"))
        self.assertEqual(found["trained_parameters"], found["parameters"])
        after = found["continuations"][0]["after"]
        again = self.done(run("generate", "--model", found["saved"], "--tokenizer", TINY / "tiny.gguf", "--prompt", "the",
                              "--tokens", "5", "--json"))
        self.assertEqual(again["text"], after)
        self.write_config(TINY / "tiny")  # a folder brings its tokenizer along
        found = self.done(run("finetune", self.config, "--json", "--set", "lora.rank=0", "--set", "train.steps=2"))
        self.done(run("generate", "--model", found["saved"], "--prompt", "the", "--tokens", "3", "--json"))

    def test_a_finished_run_goes_on_and_another_puts_it_aside(self):
        def finetune(*arguments):
            return self.done(run("finetune", self.config, "--json", *arguments))

        weights = self.folder / "out" / "adapter" / "adapter_model.safetensors"
        finetune("--set", "train.steps=2")
        first = weights.read_bytes()
        more = finetune("--set", "train.steps=4", "--resume")
        self.assertEqual((more["resumed_from"], more["steps"]), (2, 4))
        second = weights.read_bytes()
        self.assertNotEqual(first, second)
        again = run("finetune", self.config, "--json", "--set", "train.steps=1")
        self.assertIn("earlier-1", again.stderr)
        self.done(again)
        aside = self.folder / "out" / "earlier-1"
        self.assertEqual((aside / "adapter" / "adapter_model.safetensors").read_bytes(), second)
        went_on = finetune("--set", "train.steps=5", "--set", f"output.folder={aside}", "--resume")
        self.assertEqual(went_on["resumed_from"], 4)

    def test_a_full_disk_behind_the_last_step_loses_nothing(self):
        (self.folder / "out").mkdir()
        (self.folder / "out" / "adapter").write_text("a file where the folder should be")
        arguments = ("finetune", self.config, "--json", "--set", "train.steps=2")
        failed = run(*arguments)
        self.assert_refused(failed, 1, "adapter")
        metrics = (self.folder / "out" / "metrics.jsonl").read_text().splitlines()
        self.assertEqual(json.loads(metrics[-1])["result"]["steps"], 2)
        (self.folder / "out" / "adapter").unlink()
        found = self.done(run(*arguments, "--resume"))
        self.assertEqual((found["resumed_from"], found["steps"]), (2, 2))
        self.assertTrue((self.folder / "out" / "adapter" / "adapter_model.safetensors").exists())

    def test_generates(self):
        def made(*arguments, **options):
            return self.done(run("generate", "--model", TINY / "tiny.gguf", "--json", "--tokens", "16", *arguments, **options))

        greedy = made("--prompt", "the other")
        self.assertEqual(made("--prompt", "-", input="the other")["tokens"], greedy["tokens"])
        drawn = made("--prompt", "the other", "--temperature", "1.5", "--seed", "4")
        self.assertEqual(made("--prompt", "the other", "--temperature", "1.5", "--seed", "4")["tokens"], drawn["tokens"])
        self.assertNotEqual(drawn["tokens"], greedy["tokens"])
        # Of a share so small there is only the likeliest.
        narrow = made("--prompt", "the other", "--temperature", "1.5", "--top-p", "0.000001")
        self.assertEqual(narrow["tokens"], greedy["tokens"])
        plain = run("generate", "--model", TINY / "tiny.gguf", "--prompt", "the other", "--tokens", "0")
        self.assertEqual(plain.stdout, "the other\n")
        with open("/dev/full", "w") as full:
            unseen = run("generate", "--model", TINY / "tiny.gguf", "--prompt", "the other", stdout=full)
        self.assertEqual(unseen.returncode, 1)
        self.assertEqual(unseen.stderr, "snug: cannot write to standard output: No space left on device\n")

    def test_wrong_use(self):
        self.assert_refused(run("generate", "--model", self.folder / "none.gguf", "--prompt", "a"), 2, "none.gguf")
        self.assert_refused(run("generate", "--model", self.text, "--prompt", "a"), 1, "text.txt")
        self.assert_refused(run("generate", "--model", "", "--prompt", "a"), 2, "--model is empty")
        self.assert_refused(run("finetune", self.config, "--set", b"output.folder=b\xe4d"), 2, "UTF-8")
        self.assert_refused(run("generate", "--model", TINY / "tiny.gguf", "--prompt", ""), 2, "no tokens")
        self.assert_refused(run("generate", "--model", TINY / "tiny.gguf", "--prompt", "a" * 100), 2, "made for 64")
        self.assert_refused(run("generate", "--model", TINY / "tiny.gguf", "--prompt", "a", "--adapter", self.folder), 2,
                            "adapter_config.json")
        for option, rule in (("--temperature", "a number from 0 to 100"), ("--top-p", "a number above 0 and up to 1")):
            for value in ("nan", "inf", "-inf", "-1", "1e999", "warm", ""):
                self.assert_refused(run("generate", "--model", TINY / "tiny.gguf", "--prompt", "a", f"{option}={value}"), 2,
                                    option, rule if value else "")
        self.assert_refused(run("generate", "--model", TINY / "tiny.gguf", "--prompt", "a", "--top-p", "0.5"), 2,
                            "--top-p", "--temperature")
        self.assert_refused(run("generate", "--model", TINY / "tiny.gguf", "--prompt", "a", "--tokenizer",
                                SOURCE / "tests" / "data" / "llama3.json"), 2, "llama3.json has 560 tokens", "model 300")
        self.assert_refused(run("finetune", self.config, "--set", "model.path="), 2, "model.path")
        self.assert_refused(run("finetune", self.config, "--set", "lora.targets=c_attn"), 2, "c_attn", "q_proj")
        self.assert_refused(run("finetune", self.config, "--set", "model.sequence=65"), 2, "65", "64")
        self.assert_refused(run("finetune", self.config, "--set", "lora.rank=0", "--set", "model.weights=packed"), 2, "packed")
        self.assert_refused(run("finetune", self.config, "--set", "model.kind=gpt"), 2, "model.kind")
        self.assert_refused(run("finetune", self.config, "--set", f"data.tokenizer={TINY / 'tiny'}/config.json"), 2,
                            "config.json")
        self.assert_refused(run("train", self.config, "--resume", "--set", "output.folder="), 2, "output.folder")

    def test_a_tokenizer_that_does_not_match_is_refused(self):
        found = run("finetune", self.config, "--set", f"data.tokenizer={SOURCE / 'tests/data/llama3.json'}")
        self.assert_refused(found, 2, "llama3.json has 560 tokens", "model 300")

    def test_the_longest_sequence_is_found_and_run(self):
        limited = self.done(run("plan", self.config, "--largest", "sequence", "--budget", "3MiB", "--json"))
        self.assertEqual((limited["largest"], limited["model_limit"]), (64, 64))
        self.assertLessEqual(limited["measured_peak_bytes"], 3 * 2**20)
        self.assert_refused(run("plan", self.config, "--largest", "sequence"), 2, "--budget")
        # Of a model that takes more, memory decides: one multiple more does not fit.
        self.config.write_text(LONG.format(text=self.text))
        budget = 2 * 2**20
        found = self.done(run("plan", self.config, "--largest", "sequence", "--budget", budget, "--json"))
        tokens = found["largest"]
        self.assertEqual((found["model_limit"], tokens % 64), (512, 0))
        self.assertGreater(tokens, 64)
        self.assertLess(tokens, 512)
        self.assertLessEqual(found["measured_peak_bytes"], budget)
        texts = self.folder / "texts"
        texts.mkdir()
        for name in ("one", "another"):
            (texts / name).write_text(self.text.read_text())
        packed = self.done(run("plan", self.config, "--largest", "sequence", "--budget", budget, "--json", "--set",
                               "model.kind=llama", "--set", "data.packing=documents", "--set", f"data.path={texts}"))
        self.assertLessEqual(packed["measured_peak_bytes"], budget)
        for more, fits in ((0, True), (64, False)):
            planned = self.done(run("plan", self.config, "--set", f"model.sequence={tokens + more}", "--json"))
            self.assertEqual(planned["floor_bytes"] <= budget, fits, planned["floor_bytes"])

    def test_a_full_disk_leaves_a_state_to_resume_from(self):
        if run_shell("unshare -rm mount -t tmpfs none /mnt").returncode != 0:
            self.skipTest("a file system of one's own cannot be mounted here; state_test has a limit on files instead")
        # The namespace, and the file system with it, ends with the shell.
        result = run_shell(f"""unshare -rm sh -ec '
            mount -t tmpfs -o size=1m none /mnt
            train="{SNUG} train {self.config} --json --set output.folder=/mnt/out --set state.every=1"
            $train --set train.steps=2
            head -c 1m /dev/zero >/mnt/rest 2>/dev/null || true
            $train --set train.steps=4 --resume >&2 && exit 9
            rm /mnt/rest
            $train --set train.steps=4 --resume'""")
        self.assertEqual(result.returncode, 0, result.stderr)
        told = [line for line in result.stderr.splitlines() if "saving training state" in line]
        self.assertEqual(len(told), 2, told)  # of each that could not be written, once
        self.assertTrue(all("No space left on device" in line for line in told), told)
        first, second = map(json.loads, result.stdout.splitlines())
        self.assertEqual(first["steps"], 2)
        self.assertEqual((second["resumed_from"], second["steps"]), (2, 4))

    def signalled(self, signals, steps, code, **options):
        """What a run prints in the end that gets these signals after its first step."""
        arguments = ("train", self.config, "--json", "--set", f"train.steps={steps}", "--budget", "80%")
        with started(*arguments, **options) as process:
            wait_for(process.stderr, f"step 1/{steps}")
            for number in signals:
                process.send_signal(number)
            out, err = process.communicate()
        self.assertEqual(process.returncode, code, err)
        return json.loads(out)

    def assert_resumes(self, found):
        self.assertEqual(found["states_saved"], 1)
        steps = found["steps"]
        again = self.done(run("train", self.config, "--resume", "--json", "--set", f"train.steps={steps + 2}"))
        self.assertEqual(again["resumed_from"], steps)
        self.assertEqual(again["steps"], steps + 2)
        lines = [json.loads(line) for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "step" in line], list(range(1, steps + 3)))

    def test_sigterm_saves_a_state_to_resume_from(self):
        self.assert_resumes(self.signalled([signal.SIGTERM], 100000, 130))

    def test_the_end_of_the_terminal_saves_a_state_to_resume_from(self):
        # The kernel and the shell each send one.
        self.assert_resumes(self.signalled([signal.SIGHUP, signal.SIGHUP], 100000, 130,
                                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)))

    def test_under_nohup_a_run_outlives_the_terminal(self):
        found = self.signalled([signal.SIGHUP], 60, 0, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual((found["steps"], found["interrupted"]), (60, False))


if __name__ == "__main__":
    main()

"""snug train in 8 network namespaces, each a machine to the others, of which one loses its link.

Needs the rights to make namespaces (as root has them) and the command ip; without, nothing is tested.

Usage: namespaces_test.py SNUG SOURCE_DIR [unittest arguments]
"""
import contextlib
import json
import os
import shutil
import subprocess
import time
import unittest

from command import SMALL, Command, command_line, main, run

PROCESSES, TIMEOUT, STEPS = 8, 8, 40
BRIDGE, PORT = "snugbr", 29411


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def may_make_namespaces():
    if shutil.which("ip") is None:
        return False
    probe = subprocess.run(["ip", "netns", "add", "snugprobe"], capture_output=True)
    subprocess.run(["ip", "netns", "del", "snugprobe"], capture_output=True)
    return probe.returncode == 0


@contextlib.contextmanager
def machines():
    """Namespaces snug0, snug1, ... at one switch, with the addresses 10.77.0.1, 10.77.0.2, ..."""
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for i in range(PROCESSES):
            ip("netns", "add", f"snug{i}")
            ip("link", "add", f"snugv{i}", "type", "veth", "peer", "name", "eth0", "netns", f"snug{i}")
            ip("link", "set", f"snugv{i}", "master", BRIDGE, "up")
            ip("-n", f"snug{i}", "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            ip("-n", f"snug{i}", "link", "set", "eth0", "up")
            ip("-n", f"snug{i}", "link", "set", "lo", "up")
        yield
    finally:
        for i in range(PROCESSES):
            subprocess.run(["ip", "link", "del", f"snugv{i}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", f"snug{i}"], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


def start(*arguments):
    processes = []
    for rank in range(PROCESSES):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(PROCESSES), "LOCAL_RANK": "0",
                       "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(PORT),
                       "GLOO_SOCKET_IFNAME": "eth0"}
        processes.append(subprocess.Popen(["ip", "netns", "exec", f"snug{rank}", *command_line(arguments)], text=True,
                                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return processes


@unittest.skipUnless(may_make_namespaces(), "namespaces cannot be made here")
class Namespaces(Command):
    def command(self, folder, layout):
        keys = [f"output.folder={self.folder / folder}", f"train.steps={STEPS}", "train.threads=1", "state.every=2",
                f"parallel.timeout={TIMEOUT}", "model.blocks=2", *layout]
        return ["train", self.config, "--json", *(a for key in keys for a in ("--set", key))]

    def lines(self, folder):
        lines = [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").read_text().splitlines()]
        return {line["step"]: (line["loss"], line["gradient_norm"]) for line in lines if "step" in line}

    def steps_done(self, folder):
        file = self.folder / folder / "metrics.jsonl"
        return file.read_text().count('"step"') if file.exists() else 0

    def ends_and_goes_on(self, layout, victim, behind):
        whole = start(*self.command("whole", layout))
        self.assertEqual([p.wait(300) for p in whole], [0] * PROCESSES, [p.communicate()[1] for p in whole])

        cut = start(*self.command("cut", layout))
        for process in cut:
            self.addCleanup(process.kill)
        deadline = time.monotonic() + 200
        while self.steps_done("cut") < behind and time.monotonic() < deadline:
            time.sleep(0.05)
        ip("link", "set", f"snugv{victim}", "down")
        began = time.monotonic()
        said = [p.communicate(timeout=120)[1] for p in cut]
        took = time.monotonic() - began
        ip("link", "set", f"snugv{victim}", "up")
        self.assertLess(took, 4 * TIMEOUT + 10, said)
        self.assertLess(self.steps_done("cut"), STEPS, "it was over before")
        for rank, process in enumerate(cut):
            self.assertEqual(process.returncode, 1, said[rank])
            last = said[rank].strip().splitlines()[-1]
            self.assertTrue(last.startswith("snug: "), said[rank])
            self.assertNotIn("Traceback", said[rank])
        # Of those that can still ask: the one whose link is cut, and nobody else.
        named = [text for rank, text in enumerate(said) if rank != victim and f"process of rank {victim} (" in text]
        self.assertTrue(named, said)

        again = start(*self.command("cut", layout), "--resume")
        ended = [p.wait(300) for p in again]
        self.assertEqual(ended, [0] * PROCESSES, [p.communicate()[1] for p in again])
        self.assertEqual(self.lines("cut"), self.lines("whole"))
        state = f"state/step-{STEPS:010}"
        for name in ("weights.safetensors", "optimizer.safetensors"):
            self.assertEqual((self.folder / "cut" / state / name).read_bytes(),
                             (self.folder / "whole" / state / name).read_bytes(), name)

    def test_replicas_with_shards(self):
        with machines():
            self.ends_and_goes_on(["parallel.shard=gradients"], victim=5, behind=5)

    def test_layers_in_parts_and_stages(self):
        with machines():
            self.ends_and_goes_on(["parallel.tensor=2", "parallel.pipeline=2", "train.accumulate=4"], victim=3, behind=9)


if __name__ == "__main__":
    main()

"""Processes that take a step each in turns, and the ratios of their seconds: machines change their speed from minute to
minute, and a turn during which other processes took more than 5 % of the machine is repeated.
"""
import ctypes.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BUSY, PAUSE = 0.05, 0.05


def find_tcmalloc():
    name = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if name is None:
        sys.exit("bench-peers: tcmalloc is missing; install libtcmalloc-minimal4, or leave it out with --mallocs glibc")
    return name


class Stepper:
    """A process that runs one step for every line it is sent. Others may run in between: it waits without spinning."""

    def __init__(self, command, environment):
        # A file: a pipe that nobody reads would fill up.
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in command], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.said.seek(0)
            raise RuntimeError((self.said.read().strip().splitlines() or ["no message"])[-1])
        return json.loads(line)

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def cpu_seconds(self):
        """Of all its threads so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.stdin.close()
        found = self.answer()
        if self.process.wait() != 0:
            raise RuntimeError(f"exit code {self.process.returncode} at the end")
        return found

    def stop(self):
        self.process.kill()
        self.process.wait()


def machine_cpu_seconds():
    """Busy seconds of all cores since boot."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def undisturbed_turn(steppers):
    """The seconds of one step of each, one after the other; None when others took over 5 % of the machine meanwhile."""
    before, own, started = machine_cpu_seconds(), sum(s.cpu_seconds() for s in steppers), time.monotonic()
    seconds = []
    for stepper in steppers:
        time.sleep(PAUSE)
        seconds.append(stepper.step())
    wall = time.monotonic() - started
    others = machine_cpu_seconds() - before - (sum(s.cpu_seconds() for s in steppers) - own)
    return seconds if others <= BUSY * wall * os.cpu_count() else None


def turns_of(steppers, turns):
    """Undisturbed turns, and how many were thrown away. Who goes first changes from turn to turn."""
    for stepper in steppers:
        stepper.step()
    found, rejected = [], 0
    while len(found) < turns and rejected < 3 * turns:
        shift = len(found) % len(steppers)
        turn = undisturbed_turn(steppers[shift:] + steppers[:shift])
        if turn is None:
            rejected += 1
        else:
            found.append(turn[len(turn) - shift:] + turn[:len(turn) - shift])
    return found, rejected


def ratio(pairs):
    """Median and quartiles of the first over the second."""
    sorted_ratios = sorted(a / b for a, b in pairs)
    quartiles = statistics.quantiles(sorted_ratios, n=4, method="inclusive")
    return {"median": statistics.median(sorted_ratios), "quartiles": [quartiles[0], quartiles[2]]}


def spread(found):
    return f"x {found['median']:.3f} ({found['quartiles'][0]:.3f} to {found['quartiles'][1]:.3f})"

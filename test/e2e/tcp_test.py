#!/usr/bin/env python3
"""Processes that torchrun or Slurm started train as threads do.

A small model on two stages and on two stages of two replicas, processes with the
variables of these launchers: losses, gradients and checkpoints are the bits of
threads. Then one of four ranks is killed: the others end within the timeout with
a message that names it, and a resumed run equals an undisturbed one.
"""

import shutil
import signal
import time

import onnx
from harness import Test, read_folder, read_log
from launch import end, start

import mlp  # harness adds its folder to the path
import st

STEPS = 60


class Runs:
    def __init__(self, test):
        self.test, self.data = test, test.work / "data"
        st.write(self.data, mlp.data(24, batch=2))

    def command(self, executable, name, *options, steps=STEPS):
        folder = self.test.work / name
        folder.mkdir(exist_ok=True)
        return [
            executable, "--data", self.data, "--steps", steps,
            "--learning-rate", 1e-2, "--max-grad-norm", 1, "--threads", 1, "--timeout", 10,
            "--output-dir", folder / "out", "--log-file", folder / "log",
            "--dump-gradients", folder / "gradients", *options,
        ]  # fmt: skip

    def results(self, name):
        folder = self.test.work / name
        log = read_log(folder / "log")
        (folder / "log").unlink()
        return log, read_folder(folder)

    def check_same(self, executable, ranks, launchers):
        self.test.run(*self.command(executable, f"threads-{ranks}"))
        expected = self.results(f"threads-{ranks}")
        self.test.check(len(expected[0]) == STEPS, f"{ranks} threads train")
        for launcher in launchers:
            name = f"{launcher}-{ranks}"
            statuses, errors = end(start([self.command(executable, name)] * ranks, launcher))
            self.test.check(not any(statuses), f"{name} statuses {statuses} {''.join(errors)}")
            log, files = self.results(name)
            self.test.check(log == expected[0], f"{name}: same losses and norms")
            self.test.check(files == expected[1], f"{name}: same gradients and parameters")
        return expected

    def check_kill(self, executable, ranks, victim, expected):
        """The gradients are of the first step: the resumed run writes others."""
        options = ("--save-steps", 1, "--save-total-limit", 1)
        command = self.command(executable, "killed", *options)
        log = self.test.work / "killed" / "log"
        # Slowly, so that it is not over before that.
        slow = {rank: {"MGQ_TEST_LINK": "delay=0.01"} for rank in range(ranks)}
        processes = start([command] * ranks, changes=slow)
        limit = time.monotonic() + 60
        while (not log.exists() or log.read_bytes().count(b"\n") < 5) and time.monotonic() < limit:
            time.sleep(0.005)
        processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        statuses, errors = end(processes)
        seconds = time.monotonic() - killed
        self.test.check(seconds < 10, f"all ranks ended within {seconds:.1f} s")
        self.test.check(statuses.pop(victim) == -signal.SIGKILL, "one was killed")
        self.test.check(set(statuses) == {1}, f"the others ended with {statuses}")
        errors.pop(victim)
        named = [f"has lost rank {victim}: its process has ended" in text for text in errors]
        self.test.check(all(named), f"each says which: {errors[0].strip()}")
        self.test.check(log.read_bytes().count(b"\n") < STEPS, "before the end")
        again = [*command, "--resume-from-checkpoint", "latest"]
        statuses, errors = end(start([again] * ranks))
        self.test.check(not any(statuses), f"resumed {statuses} {''.join(errors)}")
        self.test.check(read_log(log) == expected[0], "same losses and norms after it")
        last = f"checkpoint-{STEPS}/model.safetensors"
        path = self.test.work / "killed" / "out" / last
        self.test.check(path.read_bytes() == expected[1][f"out/{last}"], "same parameters")


def main():
    test = Test("tcp", __doc__)
    runs = Runs(test)
    model = test.work / "model.onnx"
    onnx.save(mlp.build(batch=2, blocks=2), model)
    cut = ("--stages=2", "--partition=uniform")
    two = test.compile(model, mlp.TRAINABLE, *cut, "--micro-batches=4", name="two")
    runs.check_same(two, 2, ("torchrun", "slurm"))
    options = (*cut, "--replicas=2", "--micro-batches=2")
    four = test.compile(model, mlp.TRAINABLE, *options, name="four")
    expected = runs.check_same(four, 4, ("torchrun",))
    runs.check_kill(four, 4, 2, expected)
    shutil.rmtree(test.work / "killed")
    test.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Training survives kill -9: the run ends as if it had been left alone.

Model a1 with a checkpoint after each step is killed at 20 random moments, each
time resumed from the latest checkpoint. Log and checkpoints must equal, bit for
bit, those of an undisturbed run, and nothing else may be left in the folder.
"""

import random
import signal
import subprocess
import time

from harness import DATA, LORA, Test

STEPS = 150
KILLS = 20


def command(executable, name, folder):
    return [
        executable, "--data", DATA / "a1" / "inputs.safetensors", "--steps", STEPS,
        "--save-steps", 1, "--learning-rate", 1e-3, "--threads", 2,
        "--lr-scheduler-type", "cosine", "--max-grad-norm", "history",
        "--output-dir", folder / name, "--log-file", folder / f"{name}.jsonl",
    ]  # fmt: skip


def kill(words, log, lines, seconds):
    """Starts a run and kills it `seconds` after its log has grown by `lines`.

    Returns how many whole lines the log has then.
    """
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    # A resumed run first cuts the log back to its checkpoint: count from there.
    wanted = steps_in(log) + lines if lines else 0
    while steps_in(log) < wanted and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    _, errors = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(f"exit {process.returncode}: {errors.decode()}")
    return steps_in(log)


def steps_in(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


def main():
    test = Test("kill", __doc__)
    executable = test.compile(DATA / "a1" / "model.onnx", LORA)
    test.run(*command(executable, "whole", test.work))

    again = command(executable, "killed", test.work)
    again = [str(word) for word in [*again, "--resume-from-checkpoint", "latest"]]
    log = test.work / "killed.jsonl"
    moments = random.Random(7)
    reached = []
    for i in range(KILLS):
        # Some while loading, most some steps later, so that the run goes on.
        lines = 0 if i % 5 == 0 else moments.randint(1, 6)
        reached.append(kill(again, log, lines, moments.uniform(0, 0.03)))
    test.run(*again)

    test.check(reached[-1] < STEPS, f"{KILLS} kills at steps {reached}")
    test.check(reached[-1] > KILLS, "killed runs made progress")
    test.check_same_runs("whole", "killed", STEPS)
    test.end()


if __name__ == "__main__":
    main()

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

from harness import DATA, LORA, Test, read_folder, read_log

STEPS = 150
KILLS = 20


def command(executable, name, folder):
    return [
        executable, "--data", DATA / "a1" / "inputs.safetensors", "--steps", STEPS,
        "--save-steps", 1, "--learning-rate", 1e-3, "--threads", 2,
        "--lr-scheduler-type", "cosine", "--max-grad-norm", "history",
        "--output-dir", folder / name, "--log-file", folder / f"{name}.jsonl",
    ]  # fmt: skip


def kill_after(words, seconds):
    """Starts a run and kills it after `seconds`; False if it had ended by itself."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(seconds)
    process.kill()
    _, errors = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"exit {process.returncode}: {errors.decode()}")
    return process.returncode != 0


def main():
    test = Test("kill", __doc__)
    executable = test.compile(DATA / "a1" / "model.onnx", LORA)
    start = time.monotonic()
    test.run(*command(executable, "whole", test.work))
    duration = time.monotonic() - start

    again = command(executable, "killed", test.work)
    again = [str(word) for word in [*again, "--resume-from-checkpoint", "latest"]]
    moments = random.Random(7)
    # Two thirds of the run in all, so that no run ends before its kill.
    longest = 2 * duration / KILLS
    kills = sum(kill_after(again, 0.005 + moments.uniform(0, longest / 1.5)) for _ in range(KILLS))
    middle = len(read_log(test.work / "killed.jsonl"))
    test.run(*again)

    test.check(kills == KILLS, f"{kills} of {KILLS} runs killed, the last at step {middle}")
    test.check(middle > KILLS // 2, "killed runs made progress")
    whole, killed = (read_log(test.work / f"{name}.jsonl") for name in ("whole", "killed"))
    test.check([line["loss"] for line in whole] == [line["loss"] for line in killed], "losses")
    test.check(whole == killed, "log")
    whole, killed = (read_folder(test.work / name) for name in ("whole", "killed"))
    test.check(len(whole) == 3 * STEPS, "a checkpoint of each step")
    test.check(whole == killed, "checkpoints")
    test.end()


if __name__ == "__main__":
    main()

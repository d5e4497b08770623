#!/usr/bin/env python3
"""One rank dies: all ranks end within seconds, and nothing is lost.

Model a1 on three stages, one process each, with a checkpoint after each step.
At 20 random moments of training a random rank is killed: once a step is logged, as
Open MPI 4.1's mpirun now and then hangs, or does not name the rank, where one dies in
MPI_Init. mpirun and every other rank must end within 10 s, mpirun with an exit status
other than 0 and a message that names the rank. Each time the run is resumed; its log
and checkpoints must equal those of an undisturbed run.
"""

import os
import random
import signal
import subprocess
import time

from harness import DATA, LORA, Test

STEPS = 150
KILLS = 20
RANKS = 3


def command(executable, name, folder):
    return [
        "mpirun", "-n", RANKS, executable, "--data", DATA / "a1" / "inputs.safetensors",
        "--steps", STEPS, "--save-steps", 1, "--learning-rate", 1e-3, "--threads", 1,
        "--max-grad-norm", "history", "--timeout", 30,
        "--output-dir", folder / name, "--log-file", folder / f"{name}.jsonl",
    ]  # fmt: skip


def rank_processes(executable):
    """Processes of the run: rank -> pid."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe") != str(executable):
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = dict(e.split(b"=", 1) for e in file.read().split(b"\0") if b"=" in e)
            found[int(environment[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
        except (OSError, KeyError):
            continue
    return found


def steps_in(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


def main():
    test = Test("kill-ranks", __doc__)
    executable = test.compile(
        DATA / "a1" / "model.onnx", LORA, f"--stages={RANKS}", "--micro-batches=2"
    )
    test.run(*command(executable, "whole", test.work))

    again = command(executable, "killed", test.work)
    again = [str(word) for word in [*again, "--resume-from-checkpoint", "latest"]]
    log = test.work / "killed.jsonl"
    moments = random.Random(11)
    reached, slowest, statuses, named = [], 0.0, set(), 0
    for _ in range(KILLS):
        process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wanted = steps_in(log) + moments.randint(1, 4)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ranks = rank_processes(executable)
            if len(ranks) == RANKS and steps_in(log) >= wanted:
                break
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.05))
        victim = moments.randrange(RANKS)
        os.kill(ranks[victim], signal.SIGKILL)
        killed = time.monotonic()
        while rank_processes(executable) and time.monotonic() < killed + 60:
            time.sleep(0.01)
        _, errors = process.communicate(timeout=60)
        slowest = max(slowest, time.monotonic() - killed)
        statuses.add(process.returncode)
        text = errors.decode(errors="replace")
        if f"rank {victim}" in text:
            named += 1
        else:
            print(f"killed rank {victim}:\n{text}")
        reached.append(steps_in(log))
    test.run(*again)

    test.check(0 not in statuses, f"exit statuses {sorted(statuses)}")
    test.check(slowest < 10, f"mpirun and all ranks ended within {slowest:.1f} s")
    test.check(named == KILLS, f"{named} messages name the rank")
    test.check(KILLS < reached[-1] < STEPS, f"{KILLS} kills at steps {reached}")
    test.check_same_runs("whole", "killed", STEPS)
    test.end()


if __name__ == "__main__":
    main()

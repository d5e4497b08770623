#!/usr/bin/env python3
"""With a slow stage the number of micro-batches moves by the rule, and settles.

Ranks sleep instead of computing (MGQ_TEST_SLOW), so that what is measured hardly
depends on the machine. Three stages, 36 samples a step, windows of 5 steps. One
stage is slow: waiting makes the number grow, by a quarter to the next divisor,
until less than 30 % is waited for. Where each micro-batch costs a constant besides,
the first step up is taken back, and tried again after five windows. A run that is
cut goes on as the whole one would. Losses are those of a fixed number, but for the
order of sums; bit by bit with --replay.
"""

import json
import os
import re
import subprocess

import onnx
from harness import Test, read_log

import mlp  # harness adds its folder to the path
import st

BATCH, EVERY = 36, 5
COUNTS = [c for c in range(1, BATCH + 1) if BATCH % c == 0]
CHANGE = re.compile(
    r"micro-batches (\d+) -> (\d+) after step (\d+): bubble ([\d.]+) %, ([\d.]+) samples per busy "
    r"second(?:, ([\d.]+) before)?$",
    re.MULTILINE,
)
# Devices so slow that only work counts in the simulation.
CLUSTER = """
devices:
  slow: {flops_f32: 1 MFLOP/s, bandwidth: 1 GB/s, memory: 1 GiB}
nodes:
  - devices: [{type: slow, count: 3}]
    link: {latency: 1 us, bandwidth: 1 GB/s}
"""


class Policy:
    def __init__(self):
        self.test = Test("adaptive-policy", __doc__)
        work = self.test.work
        onnx.save(mlp.build(batch="batch", blocks=6), work / "model.onnx")
        data = {k: v.reshape(-1, 4) for k, v in mlp.data(100, batch=1).items()}
        st.write(work / "data.st", data)
        (work / "cluster.yaml").write_text(CLUSTER)
        self.program = self.test.compile(
            work / "model.onnx", mlp.TRAINABLE, f"--micro-batches=1:{BATCH}",
            f"--global-batch={BATCH}", "--stages=3", "--schedule=one_f_one_b",
            f"--cluster={work / 'cluster.yaml'}",
        )  # fmt: skip

    def run(self, name, steps, *options, slow=""):
        """Log of a run, and the changes that it told of."""
        log = self.test.work / f"{name}.jsonl"
        text = self.test.run(
            self.program, "--data", self.test.work / "data.st", "--steps", steps, "--threads", 1,
            "--learning-rate", 1e-2, "--log-file", log, *options,
            env={**os.environ, "MGQ_TEST_SLOW": slow},
        )  # fmt: skip
        found = [
            (int(a), int(b), int(step), float(bubble), float(rate), float(before or 0))
            for a, b, step, bubble, rate, before in CHANGE.findall(text)
        ]
        return read_log(log), found

    def check_rule(self, name, log, changes):
        """Each change is at the end of a window, to the number that the rule says, and in the
        log from the next step on."""
        good = True
        for start, to, step, bubble, rate, before in changes:
            if to > start:
                wanted = min([c for c in COUNTS if c >= 1.25 * start])
                good &= bubble > 30
            else:
                wanted = max([c for c in COUNTS if c <= start / 1.25])
                good &= rate < 0.951 * before
            good &= to == wanted and step % EVERY == 0
        self.test.check(good and changes, f"{name}: each change follows the rule: {changes}")
        count, numbers = 4, []
        pending = {step: to for _, to, step, *_ in changes}
        for line in log:
            numbers.append(count)
            count = pending.get(line["step"], count)
        self.test.check([line["micro_batches"] for line in log] == numbers, f"{name}: logged")

    def check_slow_stage(self):
        log, changes = self.run("slow", 8 * EVERY, "--adapt-every", EVERY, slow="sample=1e-3,rank=1,factor=1.4")
        self.check_rule("a slow stage", log, changes)
        path = [to for _, to, *_ in changes]
        # 40 % of 4 micro-batches is waiting, 35 % of 6, 30 % of 9, 28 % of 12.
        self.test.check(path in ([6, 9], [6, 9, 12]), f"a slow stage: up to where it fits: {path}")
        last = {line["micro_batches"] for line in log[-4 * EVERY :]}
        self.test.check(len(last) == 1, f"a slow stage: settles: {last}")
        again, none = self.run(
            "again", 8 * EVERY, "--adapt-every", EVERY, "--replay", self.test.work / "slow.jsonl"
        )
        self.test.check(again == log and not none, "a slow stage: replays bit by bit")
        fixed, none = self.run("fixed", 8 * EVERY, "--adapt-every", 0)
        self.test.check(
            not none and {line["micro_batches"] for line in fixed} == {4}, "0: never changes"
        )
        close = all(abs(a["loss"] - b["loss"]) <= 1e-5 * b["loss"] for a, b in zip(log, fixed))
        self.test.check(close and len(log) == len(fixed), "a slow stage: losses of a fixed number")

    def check_costs(self):
        slow = "op=6e-4,sample=2e-4,rank=1,factor=1.3"
        folder = self.test.work / "costs"
        options = ("--adapt-every", EVERY, "--output-dir", folder)
        # The cut is in the middle of a window, while 6 is rejected.
        first, some = self.run("costs", 4 * EVERY + 2, *options, slow=slow)
        state = json.loads(next(folder.glob("*/trainer_state.json")).read_text())["adaptive"]
        self.test.check(
            state["micro_batches"] == 4 and state["window_steps"] == 2
            and state["rejected"] == [{"micro_batches": 6, "windows": 3}],
            f"costs: a checkpoint knows: {state}",
        )  # fmt: skip
        log, more = self.run(
            "costs", 8 * EVERY + 1, *options, "--resume-from-checkpoint", "latest", slow=slow
        )
        changes = some + more
        self.check_rule("costs", log, changes)
        path = [(to, step // EVERY) for _, to, step, *_ in changes]
        self.test.check(
            path == [(6, 1), (4, 2), (6, 7), (4, 8)],
            f"costs: taken back, and tried again after five windows: {path}",
        )

    def check_environment(self):
        for text in ("op", "op=x", "stage=1", "sample=-1"):
            done = subprocess.run(
                [self.program, "--data", self.test.work / "data.st", "--steps", "1"],
                env={**os.environ, "MGQ_TEST_SLOW": text}, capture_output=True, text=True,
            )  # fmt: skip
            self.test.check(
                done.returncode == 2 and f"MGQ_TEST_SLOW is '{text}', expected" in done.stderr,
                f"MGQ_TEST_SLOW={text} is wrong usage",
            )


def main():
    policy = Policy()
    policy.check_slow_stage()
    policy.check_costs()
    policy.check_environment()
    policy.test.end()


if __name__ == "__main__":
    main()

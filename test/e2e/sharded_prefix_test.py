#!/usr/bin/env python3
"""Where the frozen prefix runs changes no bit: --frozen=stage, replicated, sharded.

Losses, norms, evaluations (of a number of records that replicas do not share
evenly), gradients and parameters of each way must be those of --frozen=stage: on
replicas of one stage, on stages (more than micro-batches too), on both, with and
without --overlap, with micro-batches without a label, as processes, over a link,
and resumed. By the plan a rank keeps a slice of the weights and two buffers; by
the trace each layer is gathered once a step.
"""

import json
import os
import re
import subprocess

import onnx
from harness import DATA, LORA, Test, read_folder, read_log

import mlp  # harness adds its folder to the path
import st

LINK = "delay=3e-4,bandwidth=1e9"
STEPS = 3


class Sharded:
    def __init__(self):
        self.test = Test("sharded-prefix", __doc__)
        self.mlp = self.test.work / "mlp.onnx"
        # Wide enough for weights to be packed; the prefix of a1 is not.
        onnx.save(mlp.build(width=64, hidden=144, blocks=6, length=24), str(self.mlp))
        data = mlp.data(25, length=24)
        data["labels"][2::5] = -100
        data["labels"][6:12] = -100
        self.data = self.test.work / "data.safetensors"
        st.write(self.data, data)

    def results(self, executable, data, launcher=(), stops=(), **environment):
        folder = self.test.work / "run"
        self.test.run("rm", "-rf", folder)
        folder.mkdir()
        for stop in (*stops, STEPS):
            self.test.run(
                *launcher, executable, "--data", data, "--steps", stop, "--learning-rate", 1e-2,
                "--max-grad-norm", 1, "--threads", 1, "--shuffle", "off", "--eval-data", data,
                "--eval-steps", 2, "--output-dir", folder / "out", "--save-steps", 2,
                "--resume-from-checkpoint", "latest", "--log-file", folder / "log",
                env={**os.environ, **environment},
            )  # fmt: skip
        log = read_log(folder / "log")
        (folder / "log").unlink()
        return log, read_folder(folder)

    def check(self, what, model, trainable, data, options, ways, mpi=0):
        stage = self.test.compile(model, trainable, *options, "--frozen=stage", name=f"{what} stage")
        expected = self.results(stage, data)
        for way in ways:
            name = f"{what} {' '.join(way)}"
            executable = self.test.compile(model, trainable, *options, *way, name=name)
            self.test.check(self.results(executable, data) == expected, name)
        linked = self.results(executable, data, MGQ_TEST_LINK=LINK)
        self.test.check(linked == expected, f"{name}: over a link")
        resumed = self.results(executable, data, stops=(2,))
        self.test.check(resumed == expected, f"{name}: resumed")
        if mpi:
            processes = self.results(executable, data, ("mpirun", "-n", mpi))
            self.test.check(processes == expected, f"{name}: processes")
        self.test.check(expected[0][0] != expected[0][-1], f"{what}: trains")
        return executable


def ceil(bytes_, to):
    return (bytes_ + to - 1) // to * to


def read_ranks(text):
    """Of each rank of an IR: bytes of weights, and shards as (slice, buffer, panels)."""
    ranks = []
    for part in text.split("pipe.rank @")[1:]:
        weights = int(re.search(r"memory \[(\d+),", part).group(1))
        shards = []
        for shard in re.findall(r"pipe\.shard .*?\n    }", part, re.DOTALL):
            sizes = re.search(r"slice\(<\d+, (\d+)>\) buffer\(<(\d+), (\d+)>\)", shard)
            panels = re.findall(r"#pipe\.arena<\d+, (\d+)>\] results", shard)
            panels = [ceil(int(p), 64) for p in panels]
            shards.append((int(sizes[1]), (int(sizes[2]), int(sizes[3])), panels))
        ranks.append((weights, shards))
    return ranks


def check_memory(test, what, model, trainable, options, members):
    """Bytes that a rank keeps: a slice of each layer and two buffers, instead of all."""
    texts = {}
    for frozen in ("replicated", "sharded"):
        ir = test.work / "ir"
        test.run(
            test.args.mgq_compile, model, "-o", ir, f"--trainable={trainable}", *options,
            f"--frozen={frozen}", "--stop-after=schedule",
        )  # fmt: skip
        texts[frozen] = read_ranks(ir.read_text())
    for rank, ((whole, none), (kept, shards)) in enumerate(zip(*texts.values())):
        total = sum(sum(panels) for _, _, panels in shards)
        slices = [ceil(-(-sum(panels) // members), 64) for _, _, panels in shards]
        buffers = [max(slices[i::2]) * members for i in (0, 1)]
        places = {buffer[0] for _, buffer, _ in shards}
        test.check(not none and len(shards) > 3 and total > 0, f"{what} rank {rank}: shards")
        test.check([s for s, _, _ in shards] == slices, f"{what} rank {rank}: slices")
        test.check(len(places) == 2, f"{what} rank {rank}: two buffers")
        test.check(
            kept == whole - total + sum(slices) + sum(buffers),
            f"{what} rank {rank}: {kept} bytes, {total} / {members} + {sum(buffers)}",
        )


def check_gathers(sharded, executable, data, members):
    """Each layer is gathered once a step."""
    test, trace = sharded.test, sharded.test.work / "trace"
    test.run(executable, "--data", data, "--steps", STEPS, "--threads", 1, "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    for rank in range(members):
        mine = [e for e in events if e["pid"] == rank]
        gathers = [e for e in mine if e.get("cat") == "all_gather"]
        layers = len(gathers) // STEPS
        test.check(len(gathers) == layers * STEPS and layers > 3, f"rank {rank}: {layers} layers")


def main():
    sharded = Sharded()
    test = sharded.test
    replicated, shard = ("--frozen=replicated",), ("--frozen=sharded",)
    shard_off = ("--frozen=sharded", "--overlap=off")
    a1 = (DATA / "a1" / "model.onnx", LORA, DATA / "a1" / "inputs.safetensors")
    upper = (sharded.mlp, "blocks.[45].lora_[AB],head", sharded.data)
    sharded.check("mlp replicas", *upper, ["--replicas=3", "--micro-batches=2"], [shard_off, shard])
    executable = sharded.check(
        "mlp stages", *upper, ["--stages=3", "--micro-batches=2"], [replicated, shard], mpi=3
    )
    check_gathers(sharded, executable, sharded.data, 3)
    words = [executable, "--data", sharded.data, "--steps", "1", "--cache-frozen", "memory"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    test.check(
        done.returncode == 1 and "of --frozen=sharded; supported" in done.stderr,
        f"a cache is refused: {done.stderr.strip()}",
    )
    check_memory(test, "stages", *upper[:2], ["--stages=2"], 2)
    check_memory(test, "replicas", *upper[:2], ["--replicas=3"], 3)
    sharded.check("a1 stages", *a1, ["--stages=2", "--micro-batches=3"], [replicated, shard])
    sharded.check(
        "mlp both", *upper, ["--stages=2", "--replicas=2", "--micro-batches=2"],
        [replicated, shard_off, shard],
    )  # fmt: skip
    test.end()


if __name__ == "__main__":
    main()

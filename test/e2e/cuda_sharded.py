"""Frozen weights that are spread over GPUs, for cuda_ranks_test.py.

On the test device --frozen=sharded must give the bits of --frozen=stage, gather each
layer once a step, keep a slice of each and two buffers, and take nothing in a step;
a fault of a gather is told, and each wait that is left out is a race.
"""

import json
import math
import re
import subprocess

import launch
import onnx
from cuda import fresh
from harness import read_folder, read_log

import mlp  # harness adds its folder to the path
import st

# Odd sizes: slices end inside of weights.
SIZES = dict(batch=2, length=4, vocabulary=18, width=12, hidden=40, rank=2, blocks=5)
TRAINABLE = "blocks.[34].lora_[AB],head"
LAYERS = 4  # that are spread: the embedding, and blocks 0 to 2
STEPS, RECORDS = 4, 13
BYTES = {"f32": 4, "bf16": 2}


class Runs:
    def __init__(self, test):
        self.test, self.work = test, fresh(test.work / "sharded")
        self.model, self.data = self.work / "model.onnx", self.work / "data"
        onnx.save(mlp.build(**SIZES), self.model)
        # Micro-batches without a label; records that replicas do not share evenly.
        data = mlp.data(RECORDS, batch=2, length=4, vocabulary=18)
        data["labels"][[1, 4, 5]] = -100
        st.write(self.data, data)

    def compile(self, name, *options):
        return self.test.compile_cuda(self.model, TRAINABLE, *options, name=f"sharded-{name}")

    def words(self, executable, *options, steps=STEPS):
        return [
            executable, "--data", self.data, "--eval-data", self.data, "--shuffle", "off",
             "--learning-rate", 1e-2, "--steps", steps, "--threads", 1, *options,
        ]  # fmt: skip

    def run(self, executable, name, *options, launcher=(), steps=STEPS, **changes):
        """Log and checkpoint."""
        folder = fresh(self.work / name)
        words = self.words(executable, "--output-dir", folder, "--log-file", folder / "log",
                           *options, steps=steps)  # fmt: skip
        env = self.test.environment(MGQ_FAKE_DEVICES="4", **changes)
        self.test.run(*launcher, *words, env=env)
        return read_log(folder / "log"), read_folder(folder / f"checkpoint-{steps}")

    def fail(self, executable, ranks=2, changes=()):
        """Statuses and error texts of processes."""
        env = self.test.environment(MGQ_FAKE_DEVICES=str(ranks))
        commands = [self.words(executable)] * ranks
        return launch.end(launch.start(commands, env=env, changes=changes))


def check_bits(runs):
    """Replicas, which run ahead, and stages, also where one runs none of the prefix,
    with and without graphs, give the bits of weights that are not spread."""
    cases = {
        "replicas": (("--replicas=2", "--micro-batches=2"), ()),
        "stages": (("--stages=3", "--micro-batches=2"), ("mpirun", "-n", 3)),
        "both": (
            ("--stages=2", "--replicas=2", "--micro-batches=2", "--precision=layered"),
            ("mpirun", "-n", 4),
        ),
    }
    for name, (options, launcher) in cases.items():
        stage = runs.compile(f"{name}-stage", *options, "--frozen=stage")
        evaluates = ("--eval-steps", 2)
        expected = runs.run(stage, f"{name}-stage", "--cuda-graphs=off", *evaluates)
        sharded = runs.compile(name, *options, "--frozen=sharded")
        got = runs.run(sharded, name, *evaluates, launcher=launcher)
        trains = got[0][0] != got[0][1] and len(got[0]) == STEPS
        runs.test.check(got == expected and trains, f"sharded {name}: the bits of stage")


def plan(runs, frozen, *options):
    """By rank, bytes of weights in the arena, and of each shard slice, buffer and copies."""
    test, ir = runs.test, runs.work / "ir"
    test.run(
        test.args.mgq_compile, runs.model, "-o", ir, f"--trainable={TRAINABLE}", *options,
        "--target=cuda", "--gpu-arch=sm_80", f"--frozen={frozen}", "--stop-after=schedule",
    )  # fmt: skip
    text = ir.read_text()
    shapes = dict(re.findall(r"nn\.param @(\S+) frozen : tensor<([\dx]+)xf32>", text))
    ranks = []
    for part in text.split("pipe.rank @")[1:]:
        shards = []
        for shard in re.findall(r"pipe\.shard .*?\n    }", part, re.DOTALL):
            sizes = re.search(r"slice\(<\d+, (\d+)>\) buffer\(<(\d+), (\d+)>\)", shard)
            copies = re.findall(r"place_param @(\S+) value\(\d+\) as\((\w+)\)", shard)
            bytes_ = [
                math.prod(map(int, shapes[name].split("x"))) * BYTES[kind] for name, kind in copies
            ]
            shards.append((int(sizes[1]), (int(sizes[2]), int(sizes[3])), bytes_))
        ranks.append((int(re.search(r"memory \[(\d+),", part)[1]), shards))
    return ranks


def predicted(runs, frozen, *options):
    """What the planner expects: by rank, bytes of weights and of what all ranks have."""
    path = runs.work / "plan.json"
    runs.test.run(
        runs.test.args.mgq_compile, runs.model, f"--plan={path}", f"--trainable={TRAINABLE}",
        "--target=cuda", f"--frozen={frozen}", *options,
    )  # fmt: skip
    ranks = [rank["memory_bytes"] for rank in json.loads(path.read_text())["ranks"]]
    return [(rank["weights"], rank["fixed"]) for rank in ranks]


def lines(bytes_):
    return -(-bytes_ // 64) * 64


def check_memory(runs, members, *options):
    """A slice of each layer and two buffers, instead of all. Returns a rank's slices."""
    test = runs.test
    for (whole, none), (kept, shards) in zip(
        plan(runs, "replicated", *options), plan(runs, "sharded", *options), strict=True
    ):
        slices = [lines(-(-sum(map(lines, copies)) // members)) for *_, copies in shards]
        total = sum(sum(map(lines, copies)) for *_, copies in shards)
        buffers = [max(slices[i::2]) * members for i in (0, 1)]
        test.check(
            not none and len(shards) == LAYERS and [s for s, *_ in shards] == slices
            and len({place for _, (place, _), _ in shards}) == 2
            and kept == whole - total + sum(slices) + sum(buffers),
            f"sharded memory: {kept} of {whole} bytes, slices {slices}, buffers {buffers}",
        )  # fmt: skip
    layers = [sum(copies) for *_, copies in shards]
    saved = sum(layers) - sum(-(-layer // members) for layer in layers)
    for (weights, fixed), (less, more) in zip(
        predicted(runs, "replicated", *options), predicted(runs, "sharded", *options), strict=True
    ):
        test.check(
            less == weights - saved and more == fixed + 2 * max(layers),
            f"sharded memory: the planner expects {less} of {weights}, and {more - fixed} more",
        )
    return slices


def read_calls(path):
    """Calls of library functions, of all processes together."""
    counts = {}
    for name, count in re.findall(r"^(\S+) (\d+)$", path.read_text(), re.MULTILINE):
        counts[name] = counts.get(name, 0) + int(count)
    path.unlink()
    return counts


def check_calls(runs, executable, slices):
    """Each layer is gathered once a step and once an evaluated record, and each size
    once at the start. Steps take nothing. The summary tells of gathers."""
    test, calls, summary = runs.test, runs.work / "counts", runs.work / "summary"
    counts, sent = [], []
    for steps in (STEPS, STEPS + 2):
        runs.run(executable, "calls", "--summary", summary, steps=steps, MGQ_FAKE_CALLS=str(calls))
        counts.append(read_calls(calls))
        ranks = json.loads(summary.read_text())["ranks"]
        sent += [rank["bytes_sent"]["parameter"] for rank in ranks]
        test.check(
            all(0 < rank["communication_seconds"] for rank in ranks),
            f"sharded: gathers travel, {[rank['communication_seconds'] for rank in ranks]} s",
        )
    ran = [STEPS - 1, STEPS + 1]  # One step has no label.
    gathers = [2 * (LAYERS * (steps + RECORDS) + len(set(slices))) for steps in ran]
    test.check(
        [count["ncclAllGather"] for count in counts] == gathers
        and sent == [sum(slices) * steps for steps in ran for _ in range(2)],
        f"sharded: {[count['ncclAllGather'] for count in counts]} gathers of {gathers}, {sent}",
    )
    taken = [
        {name: n for name, n in count.items() if re.search("Alloc|Create|Instantiate|Init", name)}
        for count in counts
    ]
    test.check(
        taken[0] == taken[1] and taken[0]["cuMemAlloc"] > 0 and counts[0]["cuGraphLaunch"] > 0,
        f"sharded: steps take nothing: {taken}",
    )


def check_faults(runs, executable):
    """Of a communicator, at the start and in a step."""
    where = r"\(frozen weights of replica 0\): (internal|unhandled system) error"
    for failure, call in (
        ("ncclCommInitRank:3:2", "ncclCommInitRankConfig"),
        ("ncclAllGather:1:3", "ncclAllGather"),
        ("ncclAllGather:9:3", "ncclAllGather"),
    ):
        statuses, errors = runs.fail(executable, changes={1: {"MGQ_FAKE_FAIL": failure}})
        found = [line for text in errors for line in text.splitlines() if "error: " in line]
        good = statuses == [1, 1] and len(found) == 2
        good &= all(re.search(f"error: rank 1: {call} {where}", line) for line in found)
        runs.test.check(good, f"sharded {failure}: {statuses} {found or errors}")


def check_waits(runs, options):
    """A layer that does not wait for its gather, and a gather that does not wait until its
    buffer has been read, are races."""
    test = runs.test
    words = [test.args.mgq_compile, runs.model, "-o", runs.work / "none", "--target=cuda"]
    words += [f"--trainable={TRAINABLE}", *options, "--test-drop-wait=1000000"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    count = int(re.search(r"has (\d+) waits", done.stderr).group(1))
    silent = []
    for number in range(count):
        less = runs.compile("less", *options, f"--test-drop-wait={number}")
        statuses, errors = runs.fail(less)
        if statuses == [0, 0] or "mgq test device: stream race: " not in "".join(errors):
            silent.append(number)
    # Of a step and an evaluation: each layer for its gather, and two gathers.
    good = count == 2 * (LAYERS + 2) and not silent
    test.check(good, f"sharded: {count} waits left out, {silent} not reported")


def check_sharded(test):
    runs = Runs(test)
    check_bits(runs)
    check_memory(runs, 3, "--replicas=3", "--precision=layered")
    slices = check_memory(runs, 2, "--replicas=2")
    two = runs.compile("two", "--stages=2", "--micro-batches=2", "--frozen=sharded")
    check_calls(runs, two, slices)
    check_faults(runs, two)
    # One rank's program, so that each wait is there once.
    check_waits(
        runs, ("--replicas=2", "--micro-batches=1", "--overlap=off", "--frozen=sharded")
    )

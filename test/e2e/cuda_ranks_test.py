#!/usr/bin/env python3
"""CUDA executables of several ranks on the test device: the bits of one rank,
without CUDA graphs.

Stages, replicas and both, under every schedule, as processes of mpirun or with
torchrun's variables, and as threads: losses and gradients equal those of one
stage bit by bit, and are within 1e-5 and 1e-4 of the CPU executable. The test
device reports nothing. Messages of a wrong size and waits that are left out are
reported. A sample runs by default, --full runs everything.
"""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import launch
import numpy as np
import onnx
from cuda import MODELS, RATE, CudaTest, fresh, rate_of, write_data
from cuda_compression import check_compression
from cuda_sharded import check_sharded
from harness import DATA, read_folder, read_log

import mlp  # harness adds its folder to the path
import st

FAULT = 86  # status of a process in which the test device has found a fault
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
LAUNCHERS = ("mpirun", "torchrun", "threads")
# Stages, replicas, schedule, launcher.
SAMPLE = {
    "a1": ((2, 2, "zero_bubble", "torchrun"),),
    "a9": ((4, 1, "interleaved", "threads"),),
}
MICRO_BATCHES = 4  # of all replicas together


def full():
    """Every model on 2 and 4 ranks, every schedule and launcher."""
    cuts = ((2, 1), (4, 1), (1, 2), (2, 2))
    return {
        model: [
            (*cut, schedule, LAUNCHERS[(i + j) % 3])
            for i, cut in enumerate(cuts)
            for j, schedule in enumerate(SCHEDULES)
            if cut[0] > 1 or j == 0
        ]
        for model in MODELS
    }


class Ranks:
    def __init__(self, test):
        self.test = test

    def run(self, executable, data, ranks, launcher, name, *options, rate=RATE):
        """Losses, norms and first gradients of ten steps."""
        if launcher != "torchrun":
            words = ("mpirun", "-n", ranks) if launcher == "mpirun" else ()
            return self.test.train_cuda(
                executable, data, *options, name=name, rate=rate, launcher=words,
                MGQ_FAKE_DEVICES=str(ranks),
            )  # fmt: skip
        log, gradients = (self.test.work / f"{name}.{kind}" for kind in ("jsonl", "gradients"))
        command = [
            executable, "--data", data, "--steps", 10, "--learning-rate", rate,
            "--threads", 1, "--log-file", log, "--dump-gradients", gradients, *options,
        ]  # fmt: skip
        env = self.test.environment(MGQ_FAKE_DEVICES=str(ranks))
        statuses, errors = launch.end(launch.start([command] * ranks, env=env))
        if any(statuses):
            self.test.check(False, f"{name}: {statuses} {''.join(errors)}")
            self.test.end()
        return read_log(log), st.read(gradients)

    def check_same(self, what, got, expected):
        same = got[0] == expected[0]
        self.test.check(same and len(got[0]) == 10, f"{what}: same losses and norms")
        equal = got[1].keys() == expected[1].keys() and all(
            np.array_equal(got[1][name], expected[1][name]) for name in got[1]
        )
        self.test.check(equal, f"{what}: same gradients")

    def check_model(self, model, cases):
        """Each case against one stage with as many replicas, that against the CPU."""
        test, path, trainable = self.test, DATA / model / "model.onnx", MODELS[model]
        data, rate = write_data(model, test.work / f"{model}.safetensors"), rate_of(model)
        all_micro = f"--micro-batches={MICRO_BATCHES}"
        cpu = test.compile(path, trainable, all_micro, name=f"{model}-cpu")
        right = test.train(cpu, data, name=f"{model}-cpu", rate=rate)
        references = {}
        for stages, replicas, schedule, launcher in cases:
            options = (f"--micro-batches={MICRO_BATCHES // replicas}", f"--replicas={replicas}")
            if replicas not in references:
                one = test.compile_cuda(path, trainable, *options, name=f"{model}-1x{replicas}")
                references[replicas] = self.run(
                    one, data, replicas, "threads", f"{model}-1x{replicas}", "--cuda-graphs=off",
                    rate=rate,
                )  # fmt: skip
                test.check_close(f"{model} 1x{replicas}", references[replicas], right)
            if stages == 1:
                continue
            name = f"{model}-{stages}x{replicas}-{schedule}-{launcher}"
            cut = test.compile_cuda(
                path, trainable, *options, f"--stages={stages}", f"--schedule={schedule}", name=name
            )
            got = self.run(cut, data, stages * replicas, launcher, name, rate=rate)
            self.check_same(name, got, references[replicas])
            cut.unlink()


class Small:
    """A small model on two stages, for faults."""

    def __init__(self, test):
        self.test, self.data = test, test.work / "mlp.data"
        model = mlp.build(batch=2, blocks=2, length=6, vocabulary=16, width=8)
        self.model = test.work / "mlp.onnx"
        onnx.save(model, self.model)
        st.write(self.data, mlp.data(12, batch=2, length=6))
        self.options = (
            "--micro-batches=3", "--stages=2", "--schedule=one_f_one_b", "--partition=uniform",
        )  # fmt: skip
        self.two = test.compile_cuda(self.model, mlp.TRAINABLE, *self.options, name="two")

    def start(self, executables, *options, steps=3, changes=(), **variables):
        env = self.test.environment(MGQ_FAKE_DEVICES="2", **variables)
        commands = [
            [
                executable, "--data", self.data, "--eval-data", self.data, "--steps", steps,
                "--threads", 1, *options,
            ]
            for executable in executables
        ]  # fmt: skip
        return launch.start(commands, env=env, changes=changes)

    def run(self, *executables, **variables):
        return launch.end(self.start(executables or (self.two, self.two), **variables))

    def check_fault(self, what, expected, *, changes=(), **variables):
        """All ranks end, each with a line that has the text expected."""
        began = time.monotonic()
        statuses, errors = self.run(changes=changes, **variables)
        seconds = time.monotonic() - began
        lines = [line for text in errors for line in text.splitlines() if "error: " in line]
        good = statuses == [1, 1] and len(lines) == 2 and seconds < 30
        good &= all(re.search(expected, line) for line in lines)
        self.test.check(good, f"{what}: {lines or errors}, statuses {statuses}, {seconds:.0f} s")


def check_faults(small):
    """A fault of one rank's GPU, or of NCCL, ends all with that rank's text."""
    test, device = small.test, small.test.args.device
    # Whatever call meets it first.
    broken = r"error: rank 1: .*an illegal memory access.*CUDA_ERROR_ILLEGAL_ADDRESS"
    small.check_fault("a kernel", broken, changes={1: {"MGQ_FAKE_FAIL": "kernel:30:700"}})
    small.check_fault(
        "a send", r"error: rank 0: ncclSend \(messages from rank 0 to rank 1\): internal error",
        changes={0: {"MGQ_FAKE_FAIL": "ncclSend:3:3"}},
    )  # fmt: skip
    small.check_fault(
        "a start", r"error: rank 1: ncclCommInitRankConfig \(messages from rank 0 to rank 1\): "
        "unhandled system error", changes={1: {"MGQ_FAKE_FAIL": "ncclCommInitRank:1:2"}},
    )  # fmt: skip
    small.check_fault(
        "an id", r"error: rank 0: ncclGetUniqueId: unhandled system error",
        changes={0: {"MGQ_FAKE_FAIL": "ncclGetUniqueId:1:2"}},
    )  # fmt: skip
    without = fresh(test.work / "without")
    for name in ("libcuda.so.1", "libcublasLt.so.13"):
        (without / name).symlink_to(device / name)
    (without / "libnccl.so.2").touch()  # Hides what the machine may have.
    nowhere = {"CUDA_HOME": str(without), "HOME": "", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    small.check_fault(
        "no NCCL", r"error: cannot load libnccl.so.2: .*'pip install nvidia-nccl-cu13'",
        LD_LIBRARY_PATH=str(without), **nowhere,
    )  # fmt: skip
    one = {rank: {"MGQ_FAKE_DEVICES": "1"} for rank in range(2)}
    small.check_fault("one GPU for two", r"error: ranks 0 and 1 would share one GPU", changes=one)
    done = subprocess.run(
        [small.two, "--data", small.data, "--steps", "3"], capture_output=True, text=True,
        env=test.environment(MGQ_FAKE_DEVICES="1"), timeout=60,
    )  # fmt: skip
    good = done.returncode == 1 and "2 ranks need a GPU each, this machine has 1" in done.stderr
    test.check(good, f"threads with one GPU: {done.stderr}")
    check_signal(small, signal.SIGKILL, "error: rank 0 has lost rank 1")
    # The other waits for its GPU or for a message of the host.
    silent = "error: rank 0 waits for (rank 1|the others): no sign of life for 2 s"
    check_signal(small, signal.SIGSTOP, silent)


def check_signal(small, number, expected):
    """A rank dies or stops: the other ends within the timeout."""
    log = small.test.work / "killed.jsonl"
    log.unlink(missing_ok=True)
    processes = small.start(
        (small.two, small.two), "--log-file", log, "--timeout", 2, steps=10000
    )
    limit = time.monotonic() + 60
    while (not log.exists() or not log.read_bytes()) and time.monotonic() < limit:
        time.sleep(0.01)
    processes[1].send_signal(number)
    began = time.monotonic()
    statuses, errors = launch.end(processes[:1])
    processes[1].kill()
    launch.end(processes[1:])
    good = statuses == [1] and re.search(expected, errors[0]) and time.monotonic() < began + 15
    small.test.check(good, f"a rank that gets signal {number.name}: {errors[0].strip()}")


def check_schedules(ranks, small):
    """Two stages under every schedule and launcher compute the bits of one."""
    test, micro = small.test, "--micro-batches=4"
    one = test.compile_cuda(small.model, mlp.TRAINABLE, micro, name="one")
    expected = ranks.run(one, small.data, 1, "threads", "one", "--cuda-graphs=off")
    for i, schedule in enumerate(SCHEDULES):
        name, launcher = f"small-{schedule}", LAUNCHERS[i % 3]
        cut = test.compile_cuda(
            small.model, mlp.TRAINABLE, micro, "--stages=2", f"--schedule={schedule}",
            "--partition=uniform", name=name,
        )  # fmt: skip
        got = ranks.run(cut, small.data, 2, launcher, name)
        ranks.check_same(f"{name} {launcher}", got, expected)


def check_times(ranks, small):
    """A summary tells of messages and of waiting, and changes no bit."""
    test, path = small.test, small.test.work / "summary.json"
    for name, cut in {
        "stages": ("--stages=2", "--schedule=one_f_one_b", "--partition=uniform"),
        "replicas": ("--replicas=2", "--bucket-size=256"),
    }.items():
        executable = test.compile_cuda(
            small.model, mlp.TRAINABLE, "--micro-batches=2", *cut, name=f"times-{name}"
        )
        plain = ranks.run(executable, small.data, 2, "threads", name)
        timed = ranks.run(
            executable, small.data, 2, "torchrun", f"timed-{name}", "--summary", path
        )
        ranks.check_same(f"a summary, {name}", timed, plain)
        summary = json.loads(path.read_text())
        samples = 4 * (2 if name == "replicas" else 1)  # of a step
        whole = summary["steps_run"] * samples / summary["samples_per_second"]
        for rank in summary["ranks"]:
            travelled, hidden, most = (
                rank[f"{what}_seconds"] for what in ("communication", "hidden", "largest_hidden")
            )
            good = 0 < travelled < whole and 0 <= hidden <= most <= travelled * (1 + 1e-9)
            test.check(good, f"{name}: messages travelled {travelled} s, hidden {hidden} s")
        share, bubble = summary["hidden_communication"], summary["bubble"]
        test.check(0 <= share <= 1 and 0 < bubble < 1, f"{name}: {share} hidden, bubble {bubble}")


def check_uneven(ranks, small):
    """Replicas of which some have micro-batches without a target, so that their sums
    begin in other orders; evaluation; a resume on another cut."""
    test = small.test
    holes = mlp.data(24, batch=2, length=6)
    holes["labels"][[0, 1, 2, 5, 9, 10, 11, 12, 13]] = -100
    data = test.work / "holes"
    st.write(data, holes)
    runs, options = {}, ("--micro-batches=2", "--replicas=2")
    for name, cut in {"whole": (), "cut": ("--stages=2", "--partition=uniform")}.items():
        executable = test.compile_cuda(
            small.model, mlp.TRAINABLE, *options, *cut, "--bucket-size=256", name=name
        )

        def run(what, *more, executable=executable):
            return test.train_cuda(
                executable, data, "--shuffle=off", "--eval-data", data, "--eval-steps", 5,
                "--output-dir", test.work / f"{what}-out", "--save-steps", 5, *more,
                name=what, MGQ_FAKE_DEVICES="4",
            )  # fmt: skip

        graphs = "off" if name == "whole" else "on"
        runs[name] = run(name, f"--cuda-graphs={graphs}")
    ranks.check_same("uneven replicas", runs["cut"], runs["whole"])
    resumed = ("--resume-from-checkpoint", test.work / "whole-out" / "checkpoint-5")
    log, _ = run("resumed", *resumed)
    test.check(log == runs["whole"][0][5:], "a resume on another cut: the log")
    last, right = (
        read_folder(test.work / f"{name}-out" / "checkpoint-10") for name in ("resumed", "whole")
    )
    test.check(len(last) == 3 and last == right, "a resume on another cut: the checkpoint")


def check_waits(small):
    """Each wait for a message is needed: without it the test device reports a race."""
    test = small.test
    calls = test.work / "calls"
    statuses, errors = small.run(MGQ_FAKE_CALLS=str(calls))
    test.check(statuses == [0, 0] and not any(errors), f"all waits: {statuses} {errors}")
    launches = re.findall(r"^cuGraphLaunch (\d+)$", calls.read_text(), re.MULTILINE)
    test.check(len(launches) == 2 and "0" not in launches, f"both ranks launch graphs: {launches}")
    words = [test.args.mgq_compile, small.model, "-o", test.work / "none", "--target=cuda"]
    words += [f"--trainable={mlp.TRAINABLE}", *small.options, "--test-drop-wait=1000000"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    count = int(re.search(r"has (\d+) waits", done.stderr).group(1))
    silent = []
    for number in range(count):
        drop = f"--test-drop-wait={number}"
        less = test.compile_cuda(small.model, mlp.TRAINABLE, *small.options, drop, name="less")
        statuses, errors = small.run(less, less)
        if statuses == [0, 0] or "mgq test device: stream race: " not in "".join(errors):
            silent.append(number)
    test.check(count >= 9 and not silent, f"{count} waits left out, {silent} not reported")


def check_sum_waits(small):
    """A sum over replicas waits for gradients, the update for the sum, compressed or not;
    waits that the runtime makes, and the program does not name."""
    test, calls = small.test, small.test.work / "calls"
    options = ("--micro-batches=2", "--replicas=2", "--bucket-size=1048576")
    for what, warmup, *compression in (
        ("a sum", ()),
        ("a compressed sum", ("--compression-warmup", 0), "--gradient-compression=sparse24"),
    ):
        two = test.compile_cuda(small.model, mlp.TRAINABLE, *options, *compression, name="sums")

        def run(two=two, warmup=warmup, **variables):
            return launch.end(small.start((two, two), *warmup, steps=2, **variables))

        calls.unlink(missing_ok=True)
        statuses, errors = run(MGQ_FAKE_CALLS=str(calls))
        counts = re.findall(r"^cuStreamWaitEvent (\d+)$", calls.read_text(), re.MULTILINE)
        test.check(statuses == [0, 0] and counts == ["4", "4"], f"{what}: waits {counts} {errors}")
        silent = []
        for number in range(1, 5):
            statuses, errors = run(changes={1: {"MGQ_FAKE_SKIP_WAIT": str(number)}})
            if statuses == [0, 0] or "mgq test device: stream race: " not in "".join(errors):
                silent.append(number)
        test.check(not silent, f"{what}: of 4 waits left out {silent} not reported")


# The fields of mgq_op up to `bytes`, and what they are of a message.
OP = struct.Struct("<8i2i2q")
SEND, RECEIVE = 4, 5


def shorten_messages(path, out, tag):
    """A copy of an executable whose two ops of a message have fewer bytes."""
    image = bytearray(path.read_bytes())
    found = 0
    for at in range(0, len(image) - OP.size, 8):
        kind, chunk, micro, slot, peer, itsTag, traffic, compression, *place, size = OP.unpack_from(
            image, at
        )
        if (
            kind in (SEND, RECEIVE) and itsTag == tag and peer in (0, 1) and 0 <= traffic <= 2
            and compression == 0 and -1 <= slot < 8 and -1 <= micro < 8 and 0 < size < 1 << 20
        ):  # fmt: skip
            struct.pack_into("<q", image, at + OP.size - 8, size - 4)
            found += 1
    out.write_bytes(image)
    shutil.copymode(path, out)
    return found


def check_size(small):
    """Two executables that do not agree on the bytes of a message."""
    test = small.test
    for tag in range(4):
        short = test.work / "short"
        found = shorten_messages(small.two, short, tag)
        if found == 2:
            break
    statuses, errors = small.run(small.two, short)
    text = "".join(errors)
    report = r"mgq test device: NCCL rank \d: message of \d+ u8 met a message of \d+ u8"
    good = 0 not in statuses and re.search(report, text)
    test.check(found == 2 and good, f"a message of another size: {found}, {statuses}, {text[:300]}")


def main():
    os.environ.pop("LD_LIBRARY_PATH", None)
    test = CudaTest("cuda-ranks", __doc__, flags=("full",))
    ranks = Ranks(test)
    for model, cases in (full() if test.args.full else SAMPLE).items():
        ranks.check_model(model, cases)
    small = Small(test)
    check_schedules(ranks, small)
    check_times(ranks, small)
    check_uneven(ranks, small)
    check_waits(small)
    check_sum_waits(small)
    check_compression(test)
    check_sharded(test)
    check_faults(small)
    check_size(small)
    test.end()


if __name__ == "__main__":
    main()

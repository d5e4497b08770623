#!/usr/bin/env python3
"""A 14B model in bf16: 28 GB of weights, compiled and looked at without reading them.

The file of weights is one hole, so it takes no room on disk. mgq-compile makes
executables for one, two and four stages; --dry-run checks that the file is
there, names the memory of each rank and reads none of it: no process holds more
than a small part of it in memory.
"""

import os
import re
import resource
import subprocess
import time

import onnx
from harness import DATA, LORA, Test
from onnx import TensorProto

import narrow  # harness adds its folder to the path

MODEL = DATA / "14b" / "mgq14b_lora_23.onnx"
ALIGNMENT = 64
# Machines that hold the model, which this one need not do.
CLUSTER = """
devices:
  big: {flops_f32: 2 TFLOP/s, memory: 96 GiB}
nodes:
  - devices: [{type: big, count: 4}]
    link: {latency: 10 us, bandwidth: 20 GB/s}
"""
HELD = 6 << 30  # bytes of memory a process may come to hold
UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def store_narrow(model, location):
    """Weights become bf16 in one file, with casts; returns its bytes."""
    offset, names = 0, []
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL or tensor.data_type != TensorProto.FLOAT:
            continue
        length = 2
        for size in tensor.dims:
            length *= size
        del tensor.external_data[:]
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        tensor.data_type = TensorProto.BFLOAT16
        offset += -(-length // ALIGNMENT) * ALIGNMENT
        names.append(tensor.name)
    narrow.add_casts(model, "bf16", names)
    return offset


def held(command):
    """Output, seconds and largest resident bytes of a command."""
    start = time.monotonic()
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    # The largest of all children so far: each must be small.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return done.stdout, time.monotonic() - start, peak


def memory_of(output):
    """Bytes of each rank that --dry-run names."""
    found = re.findall(r"memory:? ([0-9.]+) ([MGT]iB)", output)
    return [float(number) * UNITS[unit] for number, unit in found]


def main():
    test = Test("sparse-weights", __doc__)
    model = onnx.load(MODEL, load_external_data=False)
    size = store_narrow(model, "weights.bin")
    onnx.save(model, test.work / "model.onnx")
    (test.work / "cluster.yaml").write_text(CLUSTER)
    weights = test.work / "weights.bin"
    with open(weights, "wb") as file:
        file.truncate(size)
    test.check(size > 28e9, f"{size / 1e9:.1f} GB of weights")
    for ranks in (1, 2, 4):
        executable = test.work / f"train{ranks}"
        _, seconds, peak = held([
            test.args.mgq_compile, test.work / "model.onnx", "-o", executable,
            f"--trainable={LORA}", f"--stages={ranks}",
            f"--cluster={test.work / 'cluster.yaml'}",
        ])  # fmt: skip
        test.check(peak < HELD, f"{ranks} ranks: compiled in {seconds:.0f} s, {peak / 1e9:.2f} GB")
        output, seconds, peak = held([executable, "--dry-run"])
        memory = memory_of(output)
        test.check(peak < HELD, f"{ranks} ranks: dry run of {seconds:.1f} s, {peak / 1e9:.2f} GB")
        # Each frozen matrix in panels of 2 bytes an element, for the product and for its gradient.
        test.check(
            len(memory) == ranks and size < sum(memory) < 2.6 * size,
            f"{ranks} ranks: memory {[f'{m / 2**30:.1f} GiB' for m in memory]}",
        )
    test.check(os.stat(weights).st_blocks * 512 < 1 << 20, "the weights are still a hole")
    weights.unlink()
    test.end()


if __name__ == "__main__":
    main()

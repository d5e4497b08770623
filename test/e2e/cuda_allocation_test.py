#!/usr/bin/env python3
"""A step of a CUDA executable allocates nothing on the host.

A preloaded object counts calls of malloc, mmap and their kin, but for those of the
stand-ins: more steps must add none, with and without CUDA graphs, on stages and
replicas that are threads, with dense and compressed sums, frozen weights that are
spread, dynamic loss scales and changes of precision. (What the GPU takes in a step: cuda_test.py.)
"""

import os

import onnx
from cuda import CudaTest

import mlp  # harness adds its folder to the path
import st

FEW, MANY = 12, 32
REPLICAS = ("--replicas=2", "--bucket-size=256")
# Compiled, and run.
CASES = {
    "one rank": ((), ("--loss-scale", "dynamic")),
    "without graphs": ((), ("--cuda-graphs=off", "--max-grad-norm", 0.5)),
    "stages": (("--stages=2", "--schedule=interleaved"), ()),
    "replicas": (REPLICAS, ("--max-grad-norm", 0.5)),
    "compressed sums": (
        (*REPLICAS, "--gradient-compression=sparse24"), ("--compression-warmup", 0),
    ),
    "spread weights": ((*REPLICAS, "--frozen=sharded"), ()),
    "layered": (("--precision=layered", "--fp32-steps=6", "--stages=2"), ()),
}  # fmt: skip


def main():
    os.environ.pop("LD_LIBRARY_PATH", None)
    test = CudaTest("cuda-allocation", __doc__, "count-allocations")
    model, data, report = (test.work / name for name in ("mlp.onnx", "mlp.data", "count"))
    onnx.save(mlp.build(batch=2, blocks=4, length=6, vocabulary=16, width=8), model)
    st.write(data, mlp.data(14, batch=2, length=6))
    variables = {
        "LD_PRELOAD": str(test.args.count_allocations),
        "MGQ_ALLOCATIONS": str(report),
        "MGQ_ALLOCATIONS_EXCEPT": str(test.args.device),
        "MGQ_FAKE_DEVICES": "2",
        "MGQ_FAKE_DELAY": "1",
    }

    def count(executable, steps, *options):
        report.unlink(missing_ok=True)
        test.run(
            executable, "--data", data, "--steps", steps, "--threads", 1, "--log-file",
            test.work / "log.jsonl", *options, env=test.environment(**variables),
        )  # fmt: skip
        return int(report.read_text())

    for what, (compiled, options) in CASES.items():
        executable = test.compile_cuda(model, mlp.TRAINABLE, "--micro-batches=2", *compiled)
        few, many = (count(executable, steps, *options) for steps in (FEW, MANY))
        test.check(few > 100, f"{what}: the counter counts: {few}")
        test.check(few == many, f"{what}: {few} calls in {FEW} steps, {many} in {MANY}")
    saved = count(executable, FEW, "--output-dir", test.work / "out", *options)
    test.check(saved > few, f"{what}: the counter sees a checkpoint: {saved}")
    test.end()


if __name__ == "__main__":
    main()

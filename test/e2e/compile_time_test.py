#!/usr/bin/env python3
"""The real 14B graphs compile through differentiate in 20 s and 2 GB.

Their weights are external tensors of a file that does not exist.
"""

import resource
import time

from harness import DATA, LORA, Test

MODELS = {"mgq14b_proj_20": "llm_proj.*", "mgq14b_lora_23": LORA}
SECONDS = 20
BYTES = 2e9


def main():
    test = Test("compile-time", __doc__)
    for model, trainable in MODELS.items():
        output = test.work / f"{model}.mlir"
        start = time.monotonic()
        test.run(
            test.args.mgq_compile, DATA / "14b" / f"{model}.onnx",
            f"--trainable={trainable}", "--stop-after=differentiate", "-o", output,
        )  # fmt: skip
        seconds = time.monotonic() - start
        # The largest of all children so far; kilobytes.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        test.check("func.func @train" in output.read_text(), f"{model} has @train")
        test.check(seconds < SECONDS, f"{model} takes {seconds:.1f} s of {SECONDS}")
        test.check(peak < BYTES, f"{model} takes {peak / 1e6:.0f} MB of {BYTES / 1e6:.0f}")
    test.end()


if __name__ == "__main__":
    main()

"""Weights are written one at a time: memory does not grow with the model."""

import json
import subprocess
import sys
import unittest

import torch
from export_case import ExportTest
from mgq.onnx_weights import open_weights
from mgq.sources.random import RandomSource

# Exports twice in one process; prints the peak of resident memory in KiB after each.
PROGRAM = """
import json, resource, sys
from mgq.commands import export
peaks = []
for more in (["--no-weights"], []):
    export.main(["minigpt4qwen", "--size", "small", "--length", "64", *more, "-o", sys.argv[1]])
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


class MemoryTest(ExportTest):
    """Some hundreds of MB of weights."""

    def test_streaming(self):
        """Writing the weights takes a few of the greatest tensors' memory more than writing
        the graph alone, and what is written are the weights."""
        path = self.work / "small.onnx"
        done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True,
                              text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stderr)
        without, peak = (1024 * kib for kib in json.loads(done.stdout.splitlines()[-1]))
        data = (self.work / "small.onnx.data").stat().st_size
        weights = open_weights(path)
        greatest = max(4 * torch.Size(weight.shape).numel() for weight in weights.values())
        self.assertGreater(data, 400 << 20)
        print(f"graph {without >> 20} MiB, weights {data >> 20} MiB, "
              f"peak {peak >> 20} MiB, greatest tensor {greatest >> 20} MiB")
        self.assertLess(peak - without, 3 * greatest + (32 << 20))
        source = RandomSource(0)
        for name in ("query_tokens", "llm_proj.weight", "llm_model.lm_head.weight"):
            expected = source.draw(name, weights[name].shape)
            self.assertTrue(torch.equal(weights[name].load(), expected), name)


if __name__ == "__main__":
    unittest.main()

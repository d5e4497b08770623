#!/usr/bin/env python3
"""Where memory is short, layers are recomputed: less memory, the same bits.

a1 is planned for devices that have a little less memory than it takes, on one
and on two stages, and with layered precision. Some layers must be recomputed, the executable must fit, and
learn exactly what it learns with all the memory it likes. With far too little
memory the compiler says which stage needs how much.
"""

import json
import re
import subprocess

from harness import DATA, LORA, Test, read_folder, read_log

CLUSTER = """\
devices:
  small: {flops_f32: 100 GFLOP/s, memory: %d}
nodes:
  - devices: [{type: small, count: 2}]
    link: {latency: 1 us, bandwidth: 5 GB/s}
"""
MODEL = DATA / "a1" / "model.onnx"


def main():
    test = Test("recompute", __doc__)

    def run(executable, name):
        folder = test.work / name
        folder.mkdir()
        test.run(
            executable, "--data", DATA / "a1" / "inputs.safetensors", "--steps", 6,
            "--learning-rate", 1e-2, "--threads", 1, "--output-dir", folder / "out",
            "--log-file", folder / "log", "--summary", folder / "summary",
        )  # fmt: skip
        ranks = json.loads((folder / "summary").read_text())["ranks"]
        planned = max(rank["planned_bytes"] for rank in ranks)
        return read_log(folder / "log"), read_folder(folder / "out"), planned

    # With layered precision estimates are short, and more is held back than there is.
    for precision, stages, share in (("f32", 1, 0.95), ("f32", 2, 0.95), ("layered", 1, 0.98)):
        what = f"{precision}, {stages} stages"
        options = (
            "--micro-batches=4", f"--stages={stages}", "--schedule=one_f_one_b",
            f"--precision={precision}",
        )  # fmt: skip
        roomy = run(test.compile(MODEL, LORA, *options, name="roomy"), f"all {what}")
        memory = int(roomy[2] * share)
        cluster = test.work / "cluster.yaml"
        cluster.write_text(CLUSTER % memory)
        plan = test.work / "plan.json"
        tight = (*options, f"--cluster={cluster}", "--frozen=stage")
        test.run(
            test.args.mgq_compile, MODEL, f"--trainable={LORA}", *tight, f"--plan={plan}"
        )
        layers = json.loads(plan.read_text())["layers"]
        again = [layer["name"] for layer in layers if layer["recomputed"]]
        test.check(0 < len(again) < len(layers), f"{what}: recomputes {again}")
        got = run(test.compile(MODEL, LORA, *tight, name="tight"), f"less {what}")
        test.check(got[2] <= memory < roomy[2], f"{what}: {got[2]} bytes, not {roomy[2]}")
        test.check(got[:2] == roomy[:2], f"{what}: same results")

    def refused(what, expected):
        words = [
            test.args.mgq_compile, MODEL, f"--trainable={LORA}", *options, "--frozen=stage",
            f"--cluster={cluster}", "-o", test.work / "none",
        ]  # fmt: skip
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        test.check(not (test.work / "none").exists(), f"{what}: no file")
        good = done.returncode == 1 and re.search(expected, done.stderr)
        test.check(good, f"{what}: {done.stderr}")

    cluster.write_text(CLUSTER % (roomy[2] * 0.88))
    refused(
        "a little less than it takes",
        r"error: stage 0 needs 1\.\d+ MiB, its device node0/gpu0 \(small\) has 1\.\d+ MiB; "
        "more stages, --recompute=full or a smaller micro-batch would make it fit\n",
    )
    cluster.write_text(CLUSTER % 100000)
    refused("far too little", r"error: .*no plan fits: stage 0 .* 97\.7 KiB")
    test.end()


if __name__ == "__main__":
    main()

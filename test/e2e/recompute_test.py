#!/usr/bin/env python3
"""Where memory is short, layers are recomputed: less memory, the same bits.

a1 is planned for devices that have a little less memory than it takes, on one
and on two stages. Some layers must be recomputed, the executable must fit, and
learn exactly what it learns with all the memory it likes. With far too little
memory the compiler says which stage needs how much.
"""

import json
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

    for stages in (1, 2):
        options = ("--micro-batches=4", f"--stages={stages}", "--schedule=one_f_one_b")
        roomy = run(test.compile(MODEL, LORA, *options, name=f"roomy{stages}"), f"all {stages}")
        memory = roomy[2] * 19 // 20
        cluster = test.work / f"cluster{stages}.yaml"
        cluster.write_text(CLUSTER % memory)
        plan = test.work / f"plan{stages}.json"
        tight = (*options, f"--cluster={cluster}", "--frozen=stage")
        test.run(
            test.args.mgq_compile, MODEL, f"--trainable={LORA}", *tight, f"--plan={plan}"
        )
        layers = json.loads(plan.read_text())["layers"]
        again = [layer["name"] for layer in layers if layer["recomputed"]]
        test.check(0 < len(again) < len(layers), f"{stages} stages: recomputes {again}")
        got = run(test.compile(MODEL, LORA, *tight, name=f"tight{stages}"), f"less {stages}")
        test.check(got[2] <= memory < roomy[2], f"{stages} stages: {got[2]} bytes, not {roomy[2]}")
        test.check(got[:2] == roomy[:2], f"{stages} stages: same results")

    cluster.write_text(CLUSTER % 100000)
    words = [
        test.args.mgq_compile, MODEL, f"--trainable={LORA}", *options, f"--cluster={cluster}",
        "-o", test.work / "none",
    ]  # fmt: skip
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    test.check(done.returncode == 1 and not (test.work / "none").exists(), "too little: no file")
    test.check(
        "no plan fits: stage" in done.stderr and "97.7 KiB" in done.stderr,
        f"too little: {done.stderr.strip()[:120]}",
    )
    test.end()


if __name__ == "__main__":
    main()

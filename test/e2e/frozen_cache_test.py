#!/usr/bin/env python3
"""A cache of the frozen prefix: bitwise the same training, prefix calls left out.

In memory and in files, on several stages, replicas and processes; files that are
damaged, shared by two runs, of other weights; limits.
"""

import json
import shutil
import subprocess

import numpy as np
from harness import DATA, Test, read_folder, read_log
import st  # noqa: I001  (harness has set the path)

TRAINABLE = "llm_proj.*"
RECORDS = 6
MODEL = DATA / "a1" / "model.onnx"


class Runs:
    def __init__(self, test):
        self.test = test
        self.executables = {}
        inputs = st.read(DATA / "a1" / "inputs.safetensors")
        rng = np.random.default_rng(3)
        data = {name: array[np.arange(RECORDS) % len(array)] for name, array in inputs.items()}
        pixels = data["pixel_values"]
        data["pixel_values"] = pixels + rng.normal(0, 0.1, pixels.shape).astype(np.float32)
        st.write(test.work / "data.st", data)

    def executable(self, stages, replicas, *options):
        key = (stages, replicas, *options)
        if key not in self.executables:
            self.executables[key] = self.test.compile(
                MODEL, TRAINABLE, f"--stages={stages}", f"--replicas={replicas}", *options,
                name=f"train{len(self.executables)}",
            )  # fmt: skip
        return self.executables[key]

    def run(self, key, *options, steps=9, launcher=()):
        """Log, checkpoint, text, calls of the frozen prefix, hits of a run."""
        folder = self.test.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        printed = self.test.run(
            *launcher, self.executable(*key), "--data", self.test.work / "data.st",
            "--steps", steps, "--learning-rate", 1e-2, "--threads", 1,
            "--output-dir", folder / "out", "--log-file", folder / "log",
            "--trace", folder / "trace.json", "--summary", folder / "summary.json", *options,
        )  # fmt: skip
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        prefix = sum(
            event.get("cat") == "forward" and event["name"].startswith("visual_encoder")
            for event in events
        )
        ranks = json.loads((folder / "summary.json").read_text())["ranks"]
        hits = [rank.get("cached_micro_batches") for rank in ranks]
        return read_log(folder / "log"), read_folder(folder / "out"), printed, prefix, hits


def check_bits(test, runs):
    cases = [((1, 1), ()), ((2, 1), ()), ((3, 1), ()), ((1, 2), ()), ((2, 1), ("mpirun", "-n", 2))]
    for key, launcher in cases:
        what = f"{key[0]} stages, {key[1]} replicas{' in processes' if launcher else ''}"
        plain = runs.run(key, launcher=launcher)
        for kind in ("memory", "files"):
            place = "memory" if kind == "memory" else test.work / "cache"
            shutil.rmtree(test.work / "cache", ignore_errors=True)
            cached = runs.run(key, "--cache-frozen", place, launcher=launcher)
            test.check(cached[0] == plain[0], f"{what}, {kind}: same losses")
            test.check(cached[1] == plain[1], f"{what}, {kind}: same checkpoints")
            share = cached[3] / plain[3]
            test.check(0 < share < 0.95, f"{what}, {kind}: {share:.2f} of the prefix' calls run")
            if kind == "files":
                again = runs.run(key, "--cache-frozen", place, launcher=launcher)
                test.check(again[:2] == plain[:2], f"{what}: a second run is the same")
                test.check(again[3] < cached[3], f"{what}: it computes less: {again[3]}")
        if key == (1, 1):
            test.check(cached[4] == [9 - RECORDS], f"hits {cached[4]}")
            test.check(again[3] == 0 and again[4] == [9], "a second run computes no prefix")


def check_files(test, runs):
    """Needs the files of the last run on one rank."""
    folder = test.work / "cache"
    shutil.rmtree(folder, ignore_errors=True)
    plain = runs.run((1, 1))
    runs.run((1, 1), "--cache-frozen", folder)
    files = sorted(folder.iterdir())
    test.check(len(files) == RECORDS, f"{len(files)} files")
    sizes = {file.stat().st_size for file in files}
    test.check(len(sizes) == 1 and max(sizes) < 2**16, f"of {max(sizes)} bytes")
    # One bit, an early end, an empty file.
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 4
    files[0].write_bytes(data)
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[2].write_bytes(b"")
    damaged = runs.run((1, 1), "--cache-frozen", folder)
    test.check(damaged[:2] == plain[:2], "damaged files change nothing")
    test.check(damaged[2].count("is damaged; its values are computed again") == 3, "and are told of")
    repaired = runs.run((1, 1), "--cache-frozen", folder)
    test.check("damaged" not in repaired[2] and repaired[3] == 0, "and are written anew")
    # Other weights of the prefix are other files; those of what trains are not.
    moved = test.work / "moved"
    shutil.copytree(MODEL.parent, moved, dirs_exist_ok=True)
    other = runs.run((1, 1), "--cache-frozen", folder, "--weights", moved)
    test.check(other[3] == 0, "the place of the weights does not matter")
    # A limit: some are kept, the others computed.
    shutil.rmtree(folder)
    limit = 2 * max(sizes) + 10
    limited = runs.run((1, 1), "--cache-frozen", folder, "--cache-limit", limit)
    test.check(limited[:2] == plain[:2], "a limit changes nothing")
    test.check(len(list(folder.iterdir())) == 2, "it is respected in files")
    memory = runs.run((1, 1), "--cache-frozen", "memory", "--cache-limit", limit, steps=12)
    test.check(0 < memory[4][0] < 6, f"and in memory: {memory[4][0]} hits of 6")


def check_refusals(test, runs):
    """What the cache cannot serve yet is said before anything is trained."""
    executable = runs.executable(1, 1, "--precision=layered", "--fp32-steps=2")
    words = [executable, "--data", test.work / "data.st", "--steps", 1, "--cache-frozen", "memory"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    test.check(
        done.returncode == 1 and "with an executable of --fp32-steps" in done.stderr,
        f"refused: {done.stderr.strip()}",
    )


def main():
    test = Test("frozen-cache", __doc__)
    runs = Runs(test)
    check_bits(test, runs)
    check_files(test, runs)
    check_refusals(test, runs)
    test.end()


if __name__ == "__main__":
    main()

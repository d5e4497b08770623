#!/usr/bin/env python3
"""The number of threads changes no bit, nor does running again.

Models with LoRA (a1), full training with eager attention (a3) and trained parts
below frozen ones (a9), each with 1, 2, 3 threads and a second time with 2: logs,
gradients and checkpoints are equal.
"""

from harness import DATA, LORA, Test, read_folder, read_log

MODELS = {
    "a1": LORA,
    "a3": "llm_model.*,llm_proj.*",
    "a9": "query_tokens,visual_encoder.encoder.layers.1.*,llm_proj.*",
}


def main():
    test = Test("repeat", __doc__)
    for model, trainable in MODELS.items():
        executable = test.compile(
            DATA / model / "model.onnx", trainable, "--micro-batches=2", name=model
        )
        results = {}
        for run, threads in {"1": 1, "2": 2, "3": 3, "2 again": 2}.items():
            folder = test.work / f"{model} {run}"
            folder.mkdir()
            test.run(
                executable, "--data", DATA / model / "inputs.safetensors", "--steps", 12,
                "--learning-rate", 1e-2, "--max-grad-norm", 1, "--threads", threads,
                "--output-dir", folder / "out", "--save-steps", 6,
                "--log-file", folder / "log", "--dump-gradients", folder / "gradients",
            )  # fmt: skip
            log = read_log(folder / "log")
            (folder / "log").unlink()  # its times differ
            results[run] = (log, read_folder(folder))
        first_log, first_files = results["1"]
        test.check(len(first_log) == 12 and len(first_files) == 7, f"{model} writes all")
        test.check(first_log[0]["loss"] != first_log[-1]["loss"], f"{model} trains")
        for run, (log, files) in results.items():
            same = log == first_log and files == first_files
            test.check(same, f"{model} threads {run} equals threads 1")
    test.end()


if __name__ == "__main__":
    main()

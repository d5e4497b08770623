"""See run.sh. Parts are independent: one that fails is reported, and the others run."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

LOSSES = 1e-5  # relative, f32
STEPS, WARM_UP = 30, 10
SECONDS = 100  # of one program


def execute(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=SECONDS, **options
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def kernels(folder, work):
    """Every kernel of the op tests against NumPy, those of compressed gradients against the
    host's code."""
    test, results = folder / "kernels", []
    for program, cases in (("cuda_ops_test", test), ("cuda_compression_test", test / "compression")):
        done = subprocess.run(
            [sys.executable, test / f"{program}.py", "--run", cases],
            capture_output=True, text=True, timeout=2 * SECONDS,
        )  # fmt: skip
        print(done.stderr[-3000:], file=sys.stderr)
        if done.returncode:
            raise RuntimeError(f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
        results += done.stdout.strip().splitlines()[-1:]
    return {"result": results}


def tiny(folder, work):
    """Losses of the CUDA executable against the CPU's, with and without CUDA graphs."""
    losses = {}
    for name, target, *options in (
        ("cpu", "cpu"), ("cuda", "cuda"), ("no graphs", "cuda", "--cuda-graphs=off"),
    ):  # fmt: skip
        log = work / f"{name}.jsonl"
        execute(
            folder / f"tiny-{target}", "--data", folder / "inputs.safetensors", "--steps", 10,
            "--learning-rate", 1e-2, "--weights", folder, "--log-file", log, *options,
        )  # fmt: skip
        losses[name] = [line["loss"] for line in read_log(log)]
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses["cuda"], losses["cpu"], strict=True))
    if worst > LOSSES:
        raise RuntimeError(f"losses differ by {worst:.2e}, {LOSSES} are allowed: {losses}")
    if losses["no graphs"] != losses["cuda"]:
        raise RuntimeError(f"CUDA graphs change losses: {losses}")
    return {"worst_relative": worst}


def write_weights(model, folder):
    """The graph, and the file of weights that it names, of random values, in `folder`."""
    import onnx

    (folder / model.name).symlink_to(model.resolve())
    random = np.random.default_rng(1)
    block = (random.standard_normal(1 << 22) * 0.02).astype(np.float32)
    sizes = {onnx.TensorProto.BFLOAT16: 2, onnx.TensorProto.FLOAT: 4}
    for tensor in onnx.load(model, load_external_data=False).graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if not where:
            continue
        size, start = sizes[tensor.data_type], int(where.get("offset", 0))
        count = int(np.prod(tensor.dims))
        values = np.resize(block, count)
        if tensor.name.endswith("lora_B") or tensor.name == "entry":
            values = np.zeros(count, np.float32)
        elif len(tensor.dims) == 1:
            values = np.ones(count, np.float32)
        if size == 2:
            values = (values.view(np.uint32) >> 16).astype(np.uint16)
        path = folder / where["location"]
        with open(path, "r+b" if path.exists() else "wb") as file:
            file.seek(start)
            file.write(values.tobytes())


def seconds_of_ours(folder, work, name, inputs):
    from safetensors.numpy import save_file

    write_weights(folder / f"{name}.onnx", work)
    data, result = work / f"{name}.safetensors", {}
    save_file({key: value.numpy()[None] for key, value in inputs.items()}, data)
    for graphs, entry in (("on", "seconds"), ("off", "seconds_without_graphs")):
        log = work / f"{name}-{graphs}.jsonl"
        execute(
            folder / name, "--data", data, "--steps", STEPS, "--weights", work, "--log-file", log,
            f"--cuda-graphs={graphs}",
        )  # fmt: skip
        lines = read_log(log)
        result[entry] = statistics.median(line["step_seconds"] for line in lines[WARM_UP:])
        result["losses"] = [lines[0]["loss"], lines[-1]["loss"]]
    return result


def seconds_of_torch(make, compiles):
    import torch

    module, inputs = make()
    module = module.cuda()
    inputs = {key: value.cuda().bfloat16() for key, value in inputs.items()}
    trained = [value for value in module.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    forward = torch.compile(module) if compiles else module

    def step():
        loss = forward(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    times = []
    for i in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        if i >= WARM_UP:
            times.append(time.perf_counter() - start)
    assert torch.isfinite(loss)
    return statistics.median(times)


def rate_of_device():
    """FLOP/s of a large product in bf16."""
    import torch

    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * 8192**3 / statistics.median(times[5:])


def timed(name):
    def part(folder, work):
        import models

        make = getattr(models, name)
        ours = seconds_of_ours(folder, work, name, make()[1])
        result = {"ours": ours, "flop": models.flops(name)}
        for kind in ("eager", "compile"):
            try:
                result[kind] = seconds_of_torch(make, kind == "compile")
            except Exception as error:  # the other one is still a comparison
                result[f"{kind}_error"] = str(error)[:500]
        best = min(result[kind] for kind in ("eager", "compile") if kind in result)
        result["speedup"] = best / ours["seconds"]
        result["flop_per_second"] = result["flop"] / ours["seconds"]
        result["share_of_device"] = result["flop_per_second"] / rate_of_device()
        return result

    return part


PARTS = {"kernels": kernels, "tiny": tiny, "stage": timed("stage"), "vit_g": timed("vit_g")}


def device_name():
    try:
        return execute("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    except (OSError, RuntimeError) as error:
        return str(error)


def main():
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(folder))
    wanted = os.environ.get("PARTS", ",".join(PARTS)).split(",")
    report = {"device": device_name().strip()}
    print(report["device"])
    for name in wanted:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as work:
            try:
                report[name] = PARTS[name](folder, Path(work))
            except Exception:
                report[name] = {"error": traceback.format_exc()[-2500:]}
        report[name]["part_seconds"] = round(time.perf_counter() - start, 1)
        print(f"{name}: {json.dumps(report[name], indent=1)}", flush=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
    return any("error" in report[name] for name in wanted)


if __name__ == "__main__":
    sys.exit(main())

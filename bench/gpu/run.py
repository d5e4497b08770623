"""See run.sh. Parts are independent, and so are the figures of a part: what fails is reported,
the rest runs, and the file has all that is known by then."""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

LOSSES = 1e-5  # relative, f32
STEPS, WARM_UP = 30, 10
SECONDS = 100  # of one program
BUDGET = float(os.environ.get("BUDGET", 460))  # seconds of all; what is late is left out
START = time.perf_counter()
REPORT, OUTPUT = {}, []


def time_left():
    return BUDGET - (time.perf_counter() - START)


def execute(*command, seconds=SECONDS):
    """Standard output of a program; an error has the end of what it said."""
    seconds = min(seconds, time_left())
    name = Path(str(command[0])).name
    if seconds < 5:
        raise RuntimeError(f"{name}: left out, the {BUDGET:.0f} s of all parts are over")
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as late:
        said = late.stderr or ""
        said = (said if isinstance(said, str) else said.decode(errors="replace"))[-1000:]
        raise RuntimeError(f"{name}: not done after {seconds:.0f} s: {said}") from None
    if done.returncode:
        said = f"{done.stdout[-500:]}\n{done.stderr[-2000:]}".strip()
        raise RuntimeError(f"{name}: status {done.returncode}: {said}")
    if done.stderr.strip():
        print(done.stderr[-3000:], file=sys.stderr)
    return done.stdout


def attempt(result, key, action):
    """`result[key]`, or why there is none in `result["errors"]`."""
    try:
        result[key] = action()
    except Exception as error:
        text = str(error) if isinstance(error, RuntimeError) else traceback.format_exc()
        result.setdefault("errors", {})[key] = text[-2500:]
    save()


def save():
    """After each figure: who ends this program has those before."""
    if OUTPUT:
        OUTPUT[0].write_text(json.dumps(REPORT, indent=1) + "\n")


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def kernels(folder, work, result):
    """Every kernel of the op tests against NumPy, those of compressed gradients against the
    host's code."""
    test = folder / "kernels"
    for name, cases in (("cuda_ops_test", test), ("cuda_compression_test", test / "compression")):

        def run(program=test / f"{name}.py", cases=cases):
            return execute(sys.executable, program, "--run", cases, seconds=2 * SECONDS)

        attempt(result, name, lambda run=run: "; ".join(run().strip().splitlines()[-3:]))


def tiny(folder, work, result):
    """Losses of the CUDA executable against the CPU's, with and without CUDA graphs."""

    def losses(name, target, *options):
        log = work / f"{name}.jsonl"
        execute(
            folder / f"tiny-{target}", "--data", folder / "inputs.safetensors", "--steps", 10,
            "--learning-rate", 1e-2, "--weights", folder, "--log-file", log, *options,
        )  # fmt: skip
        return [line["loss"] for line in read_log(log)]

    for name, target, *options in (
        ("cpu", "cpu"), ("cuda", "cuda"), ("no_graphs", "cuda", "--cuda-graphs=off"),
    ):  # fmt: skip
        attempt(result, name, lambda args=(name, target, *options): losses(*args))

    def worst():
        pairs = zip(result["cuda"], result["cpu"], strict=True)
        return max(abs(a - b) / abs(b) for a, b in pairs)

    if "cuda" in result and "cpu" in result:
        result["worst_relative"] = worst()
        if not result["worst_relative"] <= LOSSES:
            result.setdefault("errors", {})["worst_relative"] = f"{LOSSES} are allowed"
    if "cuda" in result and result.get("no_graphs", result["cuda"]) != result["cuda"]:
        result.setdefault("errors", {})["graphs"] = "CUDA graphs change losses"


def write_weights(model, folder):
    """The graph, and the file of weights that it names, of random values, in `folder`."""
    import numpy as np
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


def write_inputs(shapes, path):
    """One sample of random values."""
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(2)
    save_file(
        {name: random.standard_normal((1, *shape)).astype(np.float32)
         for name, shape in shapes.items()}, path
    )  # fmt: skip


def time_ours(folder, work, name, graphs):
    """Seconds of a step, and the first and the last loss."""
    log = work / f"{graphs}.jsonl"
    execute(
        folder / name, "--data", work / "inputs.safetensors", "--steps", STEPS, "--weights", work,
        "--log-file", log, f"--cuda-graphs={graphs}",
    )  # fmt: skip
    lines = read_log(log)
    return {
        "seconds": statistics.median(line["step_seconds"] for line in lines[WARM_UP:]),
        "losses": [lines[0]["loss"], lines[-1]["loss"]],
    }


def ask_torch(folder, *what):
    """A figure of PyTorch, in a process of its own, which gives back the GPU's memory."""
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError("PyTorch is not installed, so there is nothing to compare with")
    out = execute(sys.executable, Path(__file__), folder, "--torch", *what, seconds=1.5 * SECONDS)
    return float(out.strip().splitlines()[-1])


def timed(name):
    def part(folder, work, result):
        facts = json.loads((folder / "models.json").read_text())[name]
        result["flop"] = facts["flop"]

        def prepare():
            write_weights(folder / f"{name}.onnx", work)
            write_inputs(facts["inputs"], work / "inputs.safetensors")
            return True

        attempt(result, "prepared", prepare)
        if result.pop("prepared", False):
            for graphs, key in (("on", "ours"), ("off", "ours_without_graphs")):
                attempt(result, key, lambda on=graphs: time_ours(folder, work, name, on))
        for kind in ("eager", "compile"):
            attempt(result, kind, lambda kind=kind: ask_torch(folder, name, kind))
        attempt(result, "device_flop_per_second", lambda: ask_torch(folder, "rate"))
        ours = result.get("ours", {}).get("seconds")
        known = [result[kind] for kind in ("eager", "compile") if kind in result]
        if ours:
            result["flop_per_second"] = result["flop"] / ours
        if ours and known:
            result["speedup"] = min(known) / ours
        if ours and "device_flop_per_second" in result:
            result["share_of_device"] = (
                result["flop_per_second"] / result["device_flop_per_second"]
            )

    return part


PARTS = {"kernels": kernels, "tiny": tiny, "stage": timed("stage"), "vit_g": timed("vit_g")}


def print_torch(name, kind="rate"):
    """What ask_torch() asks: seconds of a step, or the device's FLOP/s in a product of bf16."""
    import torch

    def median(step, count, warm_up):
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times[warm_up:])

    if name == "rate":
        a = torch.randn(8192, 8192, device="cuda").bfloat16()
        return print(2 * 8192**3 / median(lambda: a @ a, 20, 5))
    import models

    with torch.device("cuda"):
        module, inputs = getattr(models, name)()
    inputs = {key: value.bfloat16() for key, value in inputs.items()}
    trained = [value for value in module.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    forward = torch.compile(module) if kind == "compile" else module
    losses = []

    def step():
        loss = forward(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses[:] = [loss]

    seconds = median(step, STEPS, WARM_UP)
    assert torch.isfinite(losses[0]), "the loss is not finite"
    print(seconds)


def device_name():
    try:
        return execute(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit",
            "--format=csv,noheader", seconds=30,
        ).strip()  # fmt: skip
    except (OSError, RuntimeError) as error:
        return f"not known: {error}"


def table(report):
    """Of all parts, a line for each figure."""

    def text(value):
        if isinstance(value, dict) and "seconds" in value:
            first, last = value["losses"]
            return f"{value['seconds'] * 1e3:.2f} ms, loss {first:.4g} to {last:.4g}"
        if isinstance(value, list):
            return f"{len(value)} values, {value[0]:.6g} to {value[-1]:.6g}"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [("device", line) for line in report["device"].splitlines()]
    for name, result in report.items():
        if not isinstance(result, dict):
            continue
        for key, value in result.items():
            if key == "errors":
                continue
            if key in ("eager", "compile"):
                value = f"{value * 1e3:.2f} ms"
            lines.append((f"{name} {key}", text(value)))
        for key, value in result.get("errors", {}).items():
            lines.append((f"{name} {key}", f"FAILED: {value.strip().splitlines()[-1][:300]}"))
    width = max(len(key) for key, _ in lines)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in lines)


def main():
    folder = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(folder))
    if sys.argv[2] == "--torch":
        return print_torch(*sys.argv[3:])
    OUTPUT.append(Path(sys.argv[2]))
    wanted = os.environ.get("PARTS", ",".join(PARTS)).split(",")
    REPORT["device"] = device_name()
    for name in wanted:
        start = time.perf_counter()
        result = REPORT[name] = {}
        with tempfile.TemporaryDirectory() as work:

            def run(part=PARTS[name], work=Path(work), result=result):
                part(folder, work, result)

            attempt(result, "all", run)
            result.pop("all", None)
        result["part_seconds"] = round(time.perf_counter() - start, 1)
        save()
        print(f"== {name}: {result['part_seconds']} s", flush=True)
    for name in wanted:
        for key, value in REPORT[name].get("errors", {}).items():
            print(f"\n{name} {key}: {value}", file=sys.stderr)
    print(table(REPORT))
    return any("errors" in REPORT[name] for name in wanted)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""CUDA executables of one rank on the test device train as CPU executables do.

Losses of ten steps within 1e-5, first gradients within 1e-4 of the CPU
executable, for LoRA (a1), projection only (a2), a whole language model (a3),
padded text (a5) and trained parts below frozen ones (a9), on instrumented twins
that report races, leaks and accesses out of bounds. Evaluation, resume, dropout,
loss scales, reports; and what is said where something is missing or fails.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from cuda import MODELS, CudaTest, fresh, rate_of, write_data
from harness import DATA, read_folder, read_log
from onnx import TensorProto, helper, numpy_helper

import mlp  # harness adds its folder to the path
import st

BATCH = 2  # micro-batches


def check_models(test):
    """Every model against the CPU executable."""
    for model in MODELS:
        data = write_data(model, test.work / f"{model}.safetensors")
        path, options = DATA / model / "model.onnx", (f"--micro-batches={BATCH}",)
        cpu = test.compile(path, MODELS[model], *options, name=f"{model}-cpu")
        cuda = test.compile_cuda(path, MODELS[model], *options, name=f"{model}-cuda")
        clip = ("--max-grad-norm", 1)
        rate = rate_of(model)
        right = test.train(cpu, data, *clip, name=f"{model}-cpu", rate=rate)
        got = test.train_cuda(cuda, data, *clip, name=f"{model}-cuda", rate=rate)
        test.check(right[0][0]["loss"] != right[0][-1]["loss"], f"{model}: trains")
        test.check_close(model, got, right)


def check_cache(test):
    """A cache of the frozen prefix, in memory and in files, changes no bit."""
    data = write_data("a2", test.work / "few.safetensors", records=3)
    summary = test.work / "cache.json"

    def run(name, *options):
        out = fresh(test.work / f"{name}-out")
        log, _ = test.train_cuda(
            test.work / "a2-cuda", data, "--output-dir", out, "--summary", summary,
            *options, name=name,
        )  # fmt: skip
        hits = json.loads(summary.read_text())["ranks"][0].get("cached_micro_batches")
        return log, read_folder(out), hits

    plain = run("plain", "--cuda-graphs=off")
    files = ("--cache-frozen", test.work / "cache")
    cases = {"memory": ("--cache-frozen=memory",), "files": files, "again": files}
    hits = []
    for name, options in cases.items():
        cached = run(f"cached-{name}", *options)
        test.check(cached[:2] == plain[:2], f"a cache, {name}: the same training")
        hits.append(cached[2])
    # Six records, two in each of ten steps.
    test.check(hits == [14, 14, 20], f"micro-batches that caches know: {hits}")


def errors(got, right):
    """Of the losses of two logs, relative."""
    return [abs(a["loss"] / b["loss"] - 1) for a, b in zip(got, right, strict=True)]


class Small:
    """A small model with dropout: what does not depend on models is tried on it."""

    def __init__(self, test):
        self.test, self.data = test, test.work / "mlp.data"
        model = mlp.build(batch=2, blocks=2, dropout=0.25, length=6, vocabulary=16, width=8)
        self.model = test.work / "mlp.onnx"
        onnx.save(model, self.model)
        st.write(self.data, mlp.data(12, batch=2, length=6))
        self.cpu = test.compile(self.model, mlp.TRAINABLE, "--micro-batches=3", name="mlp-cpu")
        self.cuda = test.compile_cuda(
            self.model, mlp.TRAINABLE, "--micro-batches=3", name="mlp-cuda"
        )

    def both(self, *options, name):
        right = self.test.train(self.cpu, self.data, *options, name=f"{name}-cpu")
        got = self.test.train_cuda(self.cuda, self.data, *options, name=f"{name}-cuda")
        return got, right

    def fault(self, *options, executable=None, steps=10, **changes):
        """Standard error and status of a run."""
        done = subprocess.run(
            [executable or self.cuda, "--data", self.data, "--steps", str(steps), *options],
            capture_output=True, text=True, timeout=120, env=self.test.environment(**changes),
        )  # fmt: skip
        return done.stderr, done.returncode

    def check_fault(self, what, expected, *options, status=1, **changes):
        """A run ends with `status` and one line that has each text expected."""
        text, code = self.fault(*options, **changes)
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        good = code == status and len(lines) == 1 and all(word in lines[0] for word in expected)
        self.test.check(good, f"{what}: {lines or text}, status {code}")


def check_training(small):
    """Dropout, evaluation, norms, clipping, groups, tokens and micro-batch means."""
    test = small.test
    got, right = small.both(
        "--eval-data", small.data, "--eval-steps", 4, "--max-grad-norm", 0.5,
        "--no-decay=blocks.0.*", "--learning-rate-of=blocks.1.*=0.02", name="train",
    )  # fmt: skip
    test.check_close("dropout", got, right)
    for key in ("eval_loss", "grad_norm"):
        values = [(a[key], b[key]) for a, b in zip(got[0], right[0], strict=True) if key in b]
        good = all(abs(a - b) <= 1e-5 * abs(b) for a, b in values)
        test.check(good and len(values) == (3 if key == "eval_loss" else 10), key)
    got, right = small.both("--loss-reduction=micro-batch", name="means")
    test.check_close("means of micro-batches", got, right)
    scaled = small.both("--loss-reduction=micro-batch", "--loss-scale=1024", name="scaled")
    test.check_close("a loss scale", scaled[0], right)
    same = all(np.array_equal(scaled[0][1][name], got[1][name]) for name in got[1])
    test.check(same, "a loss scale that is a power of two changes no gradient")


def check_holes(small):
    """A step and micro-batches without targets; gradients that are not finite."""
    test, data = small.test, st.read(small.data)
    data["labels"] = data["labels"].copy()
    data["labels"][[0, 3, 4, 5, 7, 8]] = -100
    st.write(test.work / "holes.data", data)
    logs = []
    for executable, train in ((small.cpu, test.train), (small.cuda, test.train_cuda)):
        name = f"holes-{len(logs)}"
        log, _ = train(executable, test.work / "holes.data", "--shuffle", "off", name=name)
        logs.append([line["loss"] for line in log])
    good = all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(*logs, strict=True))
    test.check(good and logs[1][1] == 0 < logs[1][0], f"holes in the labels: {logs[1][:3]}")
    small.check_fault(
        "gradients that are not finite", ("the gradient of parameter 'blocks.0.lora_A' is not "
        "finite in step 2; --on-nonfinite=skip skips such steps",), "--learning-rate-of=*=1e30",
    )  # fmt: skip


def check_change(small):
    """Layers of progressive precision run other kernels from their step on."""
    losses = []
    for steps in (5, 9):
        program = small.test.compile_cuda(
            small.model, mlp.TRAINABLE, "--micro-batches=3", "--precision=bf16",
            f"--fp32-steps={steps}", name=f"change-{steps}",
        )  # fmt: skip
        log, _ = small.test.train_cuda(program, small.data, name=f"change-{steps}")
        losses.append([line["loss"] for line in log])
    same = [a == b for a, b in zip(*losses, strict=True)]
    small.test.check(same == [True] * 5 + [False] * 5, f"kernels change in step 6: {same}")
    log, _ = small.test.train_cuda(program, small.data, "--cuda-graphs=off", name="change-off")
    small.test.check([line["loss"] for line in log] == losses[1], "the same without graphs")


def count_calls(small, name, *options, steps):
    """How often a run of so many steps calls each function of the libraries."""
    path = small.test.work / f"{name}-{steps}.calls"
    path.unlink(missing_ok=True)
    text, code = small.fault(*options, steps=steps, MGQ_FAKE_CALLS=str(path))
    small.test.check(code == 0 and not text, f"{name}: {text}, status {code}")
    return Counter({k: int(v) for k, v in map(str.split, path.read_text().splitlines())})


def check_graphs(small):
    """Layers that are given to the GPU at once: the same bits, fewer calls of the
    driver, and nothing is taken in a step."""
    test = small.test
    options = ("--eval-data", small.data, "--eval-steps", 4, "--max-grad-norm", 0.5)
    runs = [
        test.train_cuda(small.cuda, small.data, *options, f"--cuda-graphs={graphs}", name=graphs)
        for graphs in ("on", "off")
    ]
    test.check(runs[0][0] == runs[1][0], "graphs: the same log")
    same = all(np.array_equal(runs[0][1][name], right) for name, right in runs[1][1].items())
    test.check(same, "graphs: the same gradients")
    more = {}  # Calls of four steps.
    for graphs in ("on", "off"):
        words = ("--eval-data", small.data, f"--cuda-graphs={graphs}")
        few, many = (count_calls(small, graphs, *words, steps=steps) for steps in (2, 6))
        more[graphs] = {name: many[name] - few[name] for name in many}
    on, off = more["on"], more["off"]
    test.check(on["kernel"] == off["kernel"] > 0, f"the same kernels: {on['kernel']}")
    launches = [on["cuLaunchKernel"] + on["cuGraphLaunch"], off["cuLaunchKernel"]]
    test.check(
        launches[0] * 3 < launches[1] and on["cuGraphLaunch"] > 0 and "cuGraphLaunch" not in off,
        f"launches of four steps with and without graphs: {launches}",
    )
    taken = {name: on[name] for name in on if "Create" in name or "Alloc" in name}
    taken |= {name: on[name] for name in ("cuStreamBeginCapture", "cuGraphInstantiateWithFlags")}
    test.check(not any(taken.values()) and len(taken) > 6, f"nothing is taken in steps: {taken}")
    # What is timed call by call is enqueued call by call.
    traced = count_calls(small, "traced", "--trace", test.work / "calls.json", steps=2)
    test.check("cuGraphLaunch" not in traced, "a trace has no graphs")
    note = (
        "note: GPU 0 (mgq test device 0 (sm_80)) does some work without CUDA graphs: "
        "{}: out of memory (CUDA_ERROR_OUT_OF_MEMORY) in layer functions up to "
    )
    for function, call in (
        ("cuGraphInstantiateWithFlags", "cuGraphInstantiate"), ("cuGraphUpload", "cuGraphUpload"),
    ):  # fmt: skip
        text, code = small.fault(steps=2, MGQ_FAKE_FAIL=f"{function}:2:2")
        good = code == 0 and text.startswith(note.format(call))
        test.check(good, f"no memory for a graph: {text}")


def check_resume(small):
    """Going on from a checkpoint gives the bits of a run without interruption."""
    test = small.test
    options = ("--save-steps", 5, "--output-dir")
    whole, part = test.work / "whole", test.work / "part"
    test.train_cuda(small.cuda, small.data, *options, whole, name="whole")
    resumed = ("--resume-from-checkpoint", whole / "checkpoint-5")
    test.train_cuda(small.cuda, small.data, *options, part, *resumed, name="part")
    last = read_folder(whole / "checkpoint-10")
    test.check(len(last) == 3 and read_folder(part / "checkpoint-10") == last, "a resume")
    whole_log, part_log = (read_log(test.work / f"{name}.jsonl") for name in ("whole", "part"))
    test.check(whole_log[5:] == part_log, "the log of a resume")
    # A checkpoint does not depend on the target.
    right, _ = test.train(small.cpu, small.data, *resumed, name="moved")
    worst = max(errors(right, part_log))
    test.check(worst <= 1e-5, f"a resume on the CPU: {worst:.1e}")


def check_reports(small):
    """Times are the device's; memory is the plan's."""
    test = small.test
    names = [test.work / f"{name}.json" for name in ("trace", "profile", "summary")]
    options = [f"--{path.stem}={path}" for path in names]
    test.train_cuda(small.cuda, small.data, *options, name="reports")
    trace, profile, summary = (json.loads(path.read_text()) for path in names)
    rank = summary["ranks"][0]
    test.check(rank["peak_bytes"] == rank["planned_bytes"] > 0, "memory is the plan's")
    layers = profile["ranks"][0]["layers"]
    test.check(
        all(layer["forward_seconds"] > 0 for layer in layers if layer["forward_flops"]),
        "layers have times",
    )
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    kinds = {event.get("cat") for event in events}
    test.check({"forward", "backward", "optimizer"} <= kinds, f"events of {kinds}")


def gather_model(path):
    """loss = sum(table[ids + 3]): an index that only the kernel knows."""
    nodes = [
        helper.make_node("Add", ["ids", "three"], ["moved"], name="moved"),
        helper.make_node("Gather", ["table", "moved"], ["rows"], name="/gather/rows"),
        helper.make_node("ReduceSum", ["rows"], ["loss"], name="sum", keepdims=0),
    ]
    params = [
        numpy_helper.from_array(np.ones((4, 3), np.float32), "table"),
        numpy_helper.from_array(np.array(3, np.int64), "three"),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 2])]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "gather", inputs, [loss], params)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


def views_model(path):
    """Products of columns and rows of others, and into them: views that no 16 bytes align."""
    def weight(name, *shape):
        values = np.random.default_rng(len(name)).standard_normal(shape) / shape[0] ** 0.5
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "fc0.w"], ["a"]),
        helper.make_node("MatMul", ["x", "fc1.weight"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["both"], axis=1),
        helper.make_node("Slice", ["both", "first", "last", "axis"], ["rows"]),
        helper.make_node("Split", ["both"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("MatMul", ["right", "fc2.w"], ["high"]),
        helper.make_node("MatMul", ["rows", "fc3.weights"], ["low"]),
        helper.make_node("Concat", ["high", "low"], ["logits"], axis=0),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"]),
    ]
    params = [
        weight("fc0.w", 7, 3), weight("fc1.weight", 7, 7), weight("fc2.w", 5, 5),
        weight("fc3.weights", 10, 5), numpy_helper.from_array(np.array([1], np.int64), "first"),
        numpy_helper.from_array(np.array([3], np.int64), "last"),
        numpy_helper.from_array(np.array([0], np.int64), "axis"),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 7]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [8]),
    ]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "views", inputs, [loss], params)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def check_views(test):
    """Products take matrices that begin anywhere."""
    model, data = test.work / "views.onnx", test.work / "views.data"
    views_model(model)
    random = np.random.default_rng(3)
    st.write(data, {
        "x": random.standard_normal((10, 6, 7)).astype(np.float32),
        "labels": random.integers(0, 5, (10, 8)),
    })  # fmt: skip
    right = test.train(test.compile(model, "fc*", name="views"), data, name="cpu-views")
    program = test.compile_cuda(model, "fc*", name="cuda-views")
    test.check_close("views", test.train_cuda(program, data, name="views"), right)


def check_index(test):
    """An index out of range is said as by the CPU executable."""
    model, data = test.work / "gather.onnx", test.work / "gather.data"
    gather_model(model)
    st.write(data, {"ids": np.array([[[0, 0]], [[0, 2]]], np.int64)})
    texts = []
    for compile, env in ((test.compile, None), (test.compile_cuda, test.environment())):
        executable = compile(model, "table", name=f"gather-{len(texts)}")
        done = subprocess.run(
            [executable, "--data", data, "--steps", "4", "--shuffle", "off"],
            capture_output=True, text=True, timeout=60, env=env,
        )  # fmt: skip
        texts.append((done.returncode, done.stderr.splitlines()[-1:]))
    good = texts[0] == texts[1] and "index 5 is outside [0, 4)" in texts[1][1][0]
    test.check(good, f"an index out of range: {texts}")


def check_architectures(small):
    """Newer GPUs, and those of embedded machines, run the program's PTX: the same bits."""
    test = small.test
    lack = "the program has code for sm_80, GPU 0 (mgq test device 0 (sm_{0})) is sm_{0}"
    right, _ = test.train_cuda(small.cuda, small.data, name="sm-80")
    for sm in (87, 120):
        got, _ = test.train_cuda(small.cuda, small.data, name=f"sm-{sm}", MGQ_FAKE_SM=str(sm))
        losses = [[line["loss"] for line in log] for log in (got, right)]
        test.check(losses[0] == losses[1], f"on sm_{sm} the same losses")
    text, code = small.fault(steps=2, MGQ_FAKE_SM="120")
    note = f"note: {lack.format(120)}: the driver compiles it"
    good = code == 0 and text.count(note) == 1 and "--gpu-arch=sm_120" in text
    test.check(good, f"a newer GPU: {text}, status {code}")
    small.check_fault(
        "no compiler in the driver", (lack.format(120), "the driver does not compile it: "
        "cuModuleLoadDataEx: ", "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        "compile the program with --gpu-arch=sm_120"), MGQ_FAKE_SM="120", CUDA_DISABLE_PTX_JIT="1",
    )  # fmt: skip
    # The second call: the first is of a cubin, which this device refuses.
    small.check_fault(
        "PTX that is refused", ("cuModuleLoadDataEx: ", "CUDA_ERROR_INVALID_PTX", "ptxas fatal: "),
        MGQ_FAKE_SM="87", MGQ_FAKE_FAIL="cuModuleLoadData:2:218",
    )  # fmt: skip
    small.check_fault(
        "an old GPU", ("GPU 0 (mgq test device 0 (sm_75)) is sm_75; sm_80 (Ampere) or later is "
        "needed",), MGQ_FAKE_SM="75",
    )  # fmt: skip
    older = test.compile(
        small.model, mlp.TRAINABLE, "--micro-batches=3", "--target=cuda", "--gpu-arch=sm_90",
        name="mlp-90",
    )  # fmt: skip
    small.check_fault(
        "an older architecture", ("has code for sm_90, GPU 0 (mgq test device 0 (sm_80)) is sm_80; "
        "compile it with --gpu-arch=sm_80",), executable=older,
    )  # fmt: skip


def check_script(small):
    """bench/gpu/run.py: what fails or is late loses no other figure, in table and file."""
    test = small.test
    folder, output = fresh(test.work / "gpu"), test.work / "gpu.json"
    for name, file in (
        ("mlp.onnx", small.model), ("inputs.safetensors", small.data), ("tiny-cpu", small.cpu),
        ("tiny-cuda", small.cuda),
    ):  # fmt: skip
        (folder / name).symlink_to(file)
    (folder / "models.json").write_text(json.dumps({"stage": {"flop": 1, "inputs": {}}}))
    # A Python that has no packages.
    script = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "run.py"
    python = (f"{sys.base_prefix}/bin/python3", "-I", script)

    def run(**changes):
        done = subprocess.run(
            [*python, folder, output], capture_output=True, text=True, timeout=120,
            env=test.environment(**changes),
        )  # fmt: skip
        return json.loads(output.read_text()), done

    report, done = run(PARTS="tiny,stage")
    tiny, stage = report["tiny"], report["stage"].get("errors", {})
    good = "errors" not in tiny and 0 <= tiny["worst_relative"] <= 1e-5 and len(tiny["cuda"]) == 10
    test.check(good, f"the script's figures: {tiny} {done.stderr}")
    lacks = {"prepared": "No module named", "eager": "PyTorch is not installed"}
    good = all(text in stage.get(key, "") for key, text in lacks.items())
    table = all(word in done.stdout for word in ("tiny worst_relative", "stage eager", "FAILED: "))
    test.check(good and table and done.returncode == 1, f"what the script lacks: {done.stdout}")
    report, done = run(PARTS="tiny,kernels", BUDGET="0")
    errors = [text for name in ("tiny", "kernels") for text in report[name]["errors"].values()]
    good = len(errors) == 5 and all("the 0 s of all parts are over" in text for text in errors)
    test.check(good and done.returncode == 1, f"no time for the script: {report}")


def check_missing(small):
    """What is missing is said, with what helps."""
    test, device = small.test, small.test.args.device
    empty, driver = fresh(test.work / "empty"), fresh(test.work / "driver")
    (driver / "libcuda.so.1").symlink_to(device / "libcuda.so.1")
    (driver / "libcublasLt.so.13").touch()  # hides one that the system has
    nowhere = {"CUDA_HOME": str(empty), "VIRTUAL_ENV": "", "CONDA_PREFIX": "", "HOME": str(empty)}
    small.check_fault(
        "no driver", ("cannot load libcuda.so.1: ", "needs its driver"),
        LD_LIBRARY_PATH=str(empty), **nowhere,
    )  # fmt: skip
    small.check_fault(
        "no cuBLASLt", ("cannot load libcublasLt.so.13: ", "pip install nvidia-cublas"),
        LD_LIBRARY_PATH=str(driver), **nowhere,
    )  # fmt: skip
    small.check_fault("no GPU", ("no GPU is visible to this process",), MGQ_FAKE_DEVICES="0")
    small.check_fault(
        "too little memory", ("the plan needs ", " on GPU 0 (mgq test device 0 (sm_80)), ",
        " more than the 0 bytes that would fit (200.00 MiB are free, 288.00 MiB are for libraries",
        "--recompute=full"), MGQ_FAKE_MEMORY=str(200 << 20),
    )  # fmt: skip
    small.check_fault(
        "an old driver", ("the NVIDIA driver is for CUDA 12.4, 13.0 or later is needed",),
        MGQ_FAKE_DRIVER="12040",
    )  # fmt: skip
    wheel = test.work / "venv" / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libcublasLt.so.13").symlink_to(device / "libcublasLt.so.13")
    places = {**nowhere, "VIRTUAL_ENV": str(test.work / "venv")}
    text, code = small.fault(steps=1, LD_LIBRARY_PATH=str(driver), **places)
    test.check(code == 0, f"cuBLASLt in a wheel is found: {text}")
    (driver / "libcublasLt.so.13").unlink()
    (driver / "libcublasLt.so.13").symlink_to(device / "libcuda.so.1")
    small.check_fault(
        "another cuBLASLt", ("libcublasLt.so.13 is too old: it has no cublasLtCreate; ",),
        LD_LIBRARY_PATH=str(driver), **nowhere,
    )  # fmt: skip
    text, code = small.fault("--dry-run", LD_LIBRARY_PATH=str(empty), **nowhere)
    good = code == 0 and "warning: cannot load libcuda.so.1" in text
    test.check(good, f"a dry run without a driver warns: {text}")
    text, code = small.fault("--dry-run", MGQ_FAKE_MEMORY=str(200 << 20))
    good = code == 0 and text.startswith("warning: the plan needs ")
    test.check(good, f"a dry run with too little memory warns: {text}")
    text, code = small.fault("--dry-run")
    test.check(code == 0 and text == "", f"a dry run with a GPU is silent: {text}")


def check_failures(small):
    """What fails is said with the call and the library's text; no file is half
    written, nothing hangs."""
    test = small.test
    out = test.work / "failed"
    illegal = "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)"
    cases = (
        ("a kernel", "kernel:40:700", (illegal, "cu")),
        ("a launch", "cuLaunchKernel:40:701", ("cuLaunchKernel: too many resources", "in layer")),
        ("a graph", "cuGraphLaunch:9:1", ("cuGraphLaunch: invalid argument (CUDA_ERROR_INVALID_V"
         "ALUE) in layer functions up to ",)),
        ("a product", "cublasLtMatmul:3:13", ("cublasLtMatmul: the program failed to execute "
         "(CUBLAS_STATUS_EXECUTION_FAILED) (product of ", "in layer function")),
        ("no algorithm", "cublasLtMatmulAlgoGetHeuristic:2:15,cublasLtMatmulAlgoGetHeuristic:3:15",
         ("cublasLtMatmulAlgoGetHeuristic: ",)),
        ("an upload", "cuMemcpyHtoDAsync:30:1", ("cuMemcpyHtoDAsync: invalid argument",)),
        ("a download", "cuMemcpyDtoHAsync:9:1", ("cuMemcpyDtoHAsync: invalid argument",)),
        ("memory", "cuMemAlloc:1:2", ("cuMemAlloc of ", ": out of memory", "of the GPU's 2.00 GiB, ", " are free")),
        ("a stream", "cuStreamCreateWithPriority:1:2", ("cuStreamCreate: out of memory",)),
        ("an image", "cuModuleLoadData:1:200", ("cuModuleLoadData: device kernel image is inv",)),
    )  # fmt: skip
    for what, failure, expected in cases:
        fresh(out)
        small.check_fault(
            what, expected, "--output-dir", out, "--save-steps", "1", MGQ_FAKE_FAIL=failure
        )
        left = [path.name for path in out.iterdir() if not path.name.startswith("checkpoint-")]
        whole = all(len(list(path.iterdir())) == 3 for path in out.iterdir())
        test.check(not left and whole, f"{what}: no part of a checkpoint is left: {left}")


def main():
    os.environ.pop("LD_LIBRARY_PATH", None)
    test = CudaTest("cuda", __doc__)
    check_models(test)
    check_cache(test)
    small = Small(test)
    check_training(small)
    check_holes(small)
    check_change(small)
    check_graphs(small)
    check_resume(small)
    check_reports(small)
    check_index(test)
    check_views(test)
    check_architectures(small)
    check_script(small)
    check_missing(small)
    check_failures(small)
    test.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""mgq-run --records computes what a training executable computes inside.

Graphs are cut before the projection. mgq-run runs the frozen prefix over all
records, pixels as F32 and as U8, whatever the number of threads; the rest trains
from its file, with bitwise the losses, gradients and checkpoints of the whole
graph. Outputs of several files, shapes of rows and records, metadata and faults.
"""

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import onnx
from harness import DATA, LORA, Test, read_folder, read_log
from onnx import TensorProto, helper, numpy_helper

import st  # harness adds its folder to the path

MODELS = {"a1": LORA, "a2": "llm_proj.*", "a5": LORA}
FEATURES = "image_features"
STEPS = 4


def find_cut(graph):
    """The value that the projection reads: what its weight's product is of."""
    derived = {t.name for t in graph.initializer if t.name == "llm_proj.weight"}
    derived |= {i.name for i in graph.input if i.name == "llm_proj.weight"}
    for node in graph.node:
        if node.op_type in ("Transpose", "Identity") and node.input[0] in derived:
            derived.add(node.output[0])
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in derived:
            return node.input[0]
    raise AssertionError("no projection")


def cut(model):
    """Two models: pixels to features, and features with the rest to the loss."""
    prefix, rest = onnx.ModelProto(), onnx.ModelProto()
    prefix.CopyFrom(model)
    rest.CopyFrom(model)
    value = find_cut(model.graph)
    behind, needed = {value}, []
    for node in reversed(model.graph.node):
        if behind & set(node.output):
            behind |= set(node.input)
            needed.append(node)
    del prefix.graph.node[:], prefix.graph.output[:]
    prefix.graph.node.extend(reversed(needed))
    prefix.graph.node.append(helper.make_node("Identity", [value], [FEATURES]))
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    shape = [d.dim_value for v in inferred if v.name == value for d in v.type.tensor_type.shape.dim]
    info = helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, shape)
    prefix.graph.output.append(info)
    for node in rest.graph.node:
        node.input[:] = [FEATURES if name == value else name for name in node.input]
    for part in (prefix, rest):
        tidy(part.graph, FEATURES if part is rest else None, info)
    return prefix, rest


def tidy(graph, extra, info):
    """Drops nodes, weights and inputs that nothing needs."""
    wanted, nodes = {o.name for o in graph.output}, []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted |= set(node.input)
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(reversed(nodes))
    for field in (graph.initializer, graph.input):
        kept = [entry for entry in field if entry.name in wanted]
        del field[:]
        field.extend(kept)
    if extra:
        graph.input.append(info)


class Case:
    """A model with records of its own, whole and in two parts."""

    def __init__(self, test, name):
        self.test, self.name = test, name
        self.folder = test.work / name
        self.folder.mkdir()
        model = onnx.load(DATA / name / "model.onnx")
        model.metadata_props.add(key="pixel_values.mean", value="0.5,0.25,0.125")
        model.metadata_props.add(key="pixel_values.std", value="0.25,0.5,0.3")
        prefix, rest = cut(model)
        for part, proto in (("whole", model), ("prefix", prefix), ("rest", rest)):
            onnx.save(proto, self.folder / f"{part}.onnx")
        self.write_data(model)

    def write_data(self, model):
        """Eight records in two files: U8 pixels, and the same as F32."""
        rng = np.random.default_rng(3)
        tensors = st.read(DATA / self.name / "inputs.safetensors")
        rows = {k: np.concatenate([v] * 4) for k, v in tensors.items()}
        pixels = rng.integers(0, 256, rows["pixel_values"].shape, dtype=np.uint8)
        channels = (3, 1, 1)
        mean = np.array([0.5, 0.25, 0.125], np.float32).reshape(channels)
        deviation = np.array([0.25, 0.5, 0.3], np.float32).reshape(channels)
        floats = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
        metadata = {"pixel_values.mean": "0.5,0.25,0.125", "pixel_values.std": "0.25,0.5,0.3"}
        metadata["mgq.note"] = "kept"
        half = len(pixels) // 2
        self.u8, self.f32, self.mixed = [], [], []
        for i, part in enumerate((slice(0, half), slice(half, None))):
            both = {"u8": pixels[part], "f32": floats[part]}
            for kind, values in both.items():
                path = self.folder / f"{kind}-{i}.safetensors"
                st.write(path, {k: v[part] for k, v in rows.items()} | {"pixel_values": values}, metadata)
                getattr(self, kind).append(path)
        self.mixed = [self.u8[0], self.f32[1]]
        self.rows = rows

    def features(self, name, files, *options):
        path = self.folder / f"{name}.safetensors"
        inputs = [word for file in files for word in ("--inputs", file)]
        self.test.run(
            self.test.args.mgq_run, self.folder / "prefix.onnx", *inputs, "--outputs", path,
            "--records", *options,
        )  # fmt: skip
        return path

    def train(self, part, name, files):
        executable = self.folder / f"train-{part}"
        if not executable.exists():
            self.test.run(
                self.test.args.mgq_compile, self.folder / f"{part}.onnx", "-o", executable,
                f"--trainable={MODELS[self.name]}", "--micro-batches=2",
            )  # fmt: skip
        out = self.folder / f"out-{name}"
        self.test.run(
            executable, "--data", *files, "--steps", STEPS, "--learning-rate", 1e-2,
            "--output-dir", out, "--log-file", out.with_suffix(".jsonl"), "--threads", 1,
            "--dump-gradients", out.with_suffix(".grads"), "--save-steps", 1,
        )  # fmt: skip
        return read_log(out.with_suffix(".jsonl")), weights(out), out.with_suffix(".grads").read_bytes()


def weights(folder):
    """Checkpoints without what names their model."""
    return {k: v for k, v in read_folder(folder).items() if k.endswith(".safetensors")}


def check_cut(test, name):
    case = Case(test, name)
    whole = case.train("whole", "whole-u8", case.u8)
    test.check(len(whole[0]) == STEPS and len(whole[1]) == 2 * STEPS, f"{name}: trains")
    for kind in ("f32", "mixed"):
        got = case.train("whole", f"whole-{kind}", getattr(case, kind))
        test.check(got == whole, f"{name}: pixels of files {kind} give the bits of U8")
    one = case.features("one", case.u8, "--threads", 1)
    three = case.features("three", case.mixed, "--threads", 3)
    test.check(one.read_bytes() == three.read_bytes(), f"{name}: threads and types of pixels")
    found = st.read(one)
    rows = len(case.rows["input_ids"])
    whole_rows = len(found[FEATURES]) % rows == 0
    test.check(list(found) == [FEATURES] and whole_rows, f"{name}: rows of all records")
    data = case.folder / "features.data"
    rest = {k: v for k, v in case.rows.items() if k != "pixel_values"}
    st.write(data, {**rest, **found})
    got = case.train("rest", "rest", [data])
    test.check(got == whole, f"{name}: training from features is training from pixels")
    return case


def check_data_seconds(test, case):
    """Summary and trace tell how long reading took: little, but not nothing."""
    summary, trace = case.folder / "summary.json", case.folder / "trace.json"
    test.run(
        case.folder / "train-whole", "--data", *case.u8, "--steps", STEPS, "--threads", 1,
        "--summary", summary, "--trace", trace,
    )  # fmt: skip
    found = json.loads(summary.read_text())
    seconds = found["ranks"][0]["data_seconds"]
    test.check(0 < seconds < found["step_seconds"], f"reading takes {seconds} s a step")
    events = json.loads(trace.read_text())["traceEvents"]
    loads = [e for e in events if e.get("cat") == "load"]
    total = sum(e["dur"] for e in loads if e["args"]["step"] > 1) / 1e6
    test.check(abs(total / (STEPS - 1) - seconds) < 0.01 * seconds, "the trace says the same")


def metadata_of(path):
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get("__metadata__", {})


def check_metadata(test, case):
    path = case.features("meta", case.u8, "--metadata", "mgq.features=x", "--metadata", "a=b=c")
    expected = {"mgq.note": "kept", "mgq.features": "x", "a": "b=c"}
    test.check(metadata_of(path) == expected, "metadata of the inputs and of the command line")


def small_model(path):
    """y = 2 x of [2, 3], the sum of x as a scalar, and x > 0."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["x", "zero"], ["p"]),
        helper.make_node("Gather", ["table", "i"], ["g"], name="lookup"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    outputs.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    outputs.append(helper.make_tensor_value_info("p", TensorProto.BOOL, ["n", 3]))
    outputs.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, ["n", 2]))
    table = numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(4, 2), "table")
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    graph = helper.make_graph(nodes, "small", [x, i], outputs, [table, zero])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def check_outputs(test):
    """All shapes and types of outputs, of rows and of records."""
    model, data, out = (test.work / f"small.{end}" for end in ("onnx", "data", "out"))
    small_model(model)
    x = np.arange(-6, 18, dtype=np.float32).reshape(8, 3)
    i = np.array([0, 1, 2, 3, 3, 2, 1, 0])
    command = [test.args.mgq_run, model, "--inputs", data, "--outputs", out, "--records", "--dim", "n=2"]
    for what, shape in (("rows", (8,)), ("records", (4, 2))):
        other = np.zeros((5, 5), np.int8)
        st.write(data, {"x": x.reshape(*shape, 3), "i": i.reshape(shape), "other": other})
        test.run(*command)
        got = st.read(out)
        good = np.array_equal(got["y"], 2 * x) and np.array_equal(got["p"], x > 0)
        good &= np.array_equal(got["s"], x.reshape(4, -1).sum(1))
        good &= np.array_equal(got["g"], np.arange(8, dtype=np.float32).reshape(4, 2)[i])
        test.check(good and len(got) == 4, f"outputs of {what}")
    leader, follower = pty.openpty()
    subprocess.run([str(w) for w in command], stderr=follower, check=True, timeout=60)
    text = os.read(leader, 4096).decode()
    good = re.search(r"\rrecord 4/4  [\d.]+ records/s  0 s left.*\n$", text)
    test.check(bool(good), f"progress on a terminal: {text!r}")
    return model, data, out, command


def check_faults(test, model, data, out, command, case):
    """Each fault has a message and leaves no file."""
    out.unlink()

    def fails(what, text, *options, status=1, words=command):
        done = subprocess.run(
            [str(w) for w in (*words, *options)], capture_output=True, text=True, timeout=60
        )
        good = done.returncode == status and text in done.stderr
        if not good:
            print(done.returncode, done.stderr, file=sys.stderr)
        files = [p for p in test.work.glob("small.out*")]
        test.check(good and not files, what)

    x = np.zeros((4, 3), np.float32)
    st.write(data, {"x": x, "i": np.array([0, 1, 9, 0])})
    fails("an index beyond its table", "index 9 is outside [0, 4) in node 'lookup' (layer the graph, record 1)")
    st.write(data, {"x": x})
    fails("a missing input", "has no tensor 'i', an input of the model; it has: x")
    st.write(data, {"x": x[:3], "i": np.zeros(3, np.int64)})
    fails("rows that fill no record", "input 'x' has shape [3, 3], expected records of [2, 3] or rows of it, a multiple of 2")
    st.write(data, {"x": x.astype(np.float64), "i": np.zeros(4, np.int64)})
    fails("another type", "input 'x' has type F64, expected F32")
    other = test.work / "small.other"
    st.write(data, {"x": x, "i": np.zeros(4, np.int64)}, {"mgq.note": "one"})
    st.write(other, {"x": x, "i": np.zeros(4, np.int64)}, {"mgq.note": "two"})
    fails(
        "files of two kinds", f"metadata 'mgq.note' is 'one' in '{data}' and 'two' in '{other}'; "
        "give the right one with --metadata=mgq.note=VALUE", "--inputs", other,
    )  # fmt: skip
    fails("threads of nonsense", "--threads=0: expected a number from 1", "--threads", "0", status=2)
    fails("metadata of nonsense", "--metadata=x: expected KEY=VALUE", "--metadata", "x", status=2)
    once = [word for word in command if word != "--records"]
    fails("several files", "several --inputs need --records", "--inputs", other, status=2, words=once)
    fails("threads once", "--threads needs --records", "--threads", "1", status=2, words=once)
    fails("metadata once", "--metadata needs --records", "--metadata", "a=b", status=2, words=once)
    bad = case.folder / "bad.safetensors"
    tensors = st.read(case.f32[0])
    st.write(bad, tensors, {"pixel_values.std": "1"})
    prefix = [test.args.mgq_run, case.folder / "prefix.onnx", "--records", "--outputs", out]
    fails("other normalisation", "metadata 'pixel_values.std' is '1', the model's is '0.25,0.5,0.3'", "--inputs", bad, words=prefix)
    blocked = test.work / "absent" / "out"
    fails("a folder that is not there", f"cannot write '{blocked}'", "--outputs", blocked,
          words=[w for w in command if w not in ("--outputs", out)])


def main():
    test = Test("records", __doc__, "mgq-run")
    case = [check_cut(test, name) for name in MODELS][0]
    check_data_seconds(test, case)
    check_metadata(test, case)
    check_faults(test, *check_outputs(test), case)
    test.end()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Dropout in training mode: the same masks however a model is cut and fed.

Masks are those of Philox in numpy (test/lib/philox.py), read off the gradients
of a graph that shows them: over micro-batch sizes, replicas, steps, seeds, ops,
threads and a resume. A model with LoRA dropout learns what numpy's and torch's
autograd say with these masks, and the same bits on any number of stages, with
any schedule, with recomputation, as threads and as processes. Evaluation drops
nothing.
"""

import numpy as np
import onnx
import torch
from harness import Test, read_folder, read_log
from onnx import TensorProto, helper, numpy_helper

import mlp  # harness adds its folder to the path
import philox
import st

SAMPLES = 4  # of a step of the probe
RATIOS = (0.3, 0.05)  # of its two ops
SHAPES = ((13,), (3, 5, 2))  # of a sample: neither is a multiple of four
SEED = 2**40 + 7  # both words of the key count


def probe_model(path, batch, shapes=SHAPES, element=TensorProto.FLOAT):
    """loss = sum over ops of sum(dropout(x * w)); dloss/dw shows the mask. `element`:
    the type that is dropped of."""
    nodes, inputs, params, sums = [], [], [], []
    for i, (shape, ratio) in enumerate(zip(shapes, RATIOS)):
        inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [batch, *shape]))
        weights = np.ones(shape, np.float32)
        params.append(numpy_helper.from_array(weights, f"w{i}"))
        params.append(numpy_helper.from_array(np.array(ratio, np.float32), f"ratio{i}"))
        nodes.append(helper.make_node("Mul", [f"x{i}", f"w{i}"], [f"y{i}"]))
        nodes.append(helper.make_node("Cast", [f"y{i}"], [f"c{i}"], to=element))
        nodes.append(helper.make_node("Dropout", [f"c{i}", f"ratio{i}", "training"], [f"z{i}"]))
        nodes.append(helper.make_node("Cast", [f"z{i}"], [f"f{i}"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("ReduceSum", [f"f{i}"], [f"s{i}"], keepdims=0))
        sums.append(f"s{i}")
    params.append(numpy_helper.from_array(np.array(True), "training"))
    nodes.append(helper.make_node("Sum", sums, ["loss"]))
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "probe", inputs, [loss], params)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def probe_data(path, shapes=SHAPES):
    """Sample s of a step holds 4^s everywhere: sums over samples tell which."""
    powers = 4.0 ** (np.arange(2 * SAMPLES) % SAMPLES)
    tensors = {}
    for i, shape in enumerate(shapes):
        ones = np.ones((2 * SAMPLES, *shape), np.float32)
        tensors[f"x{i}"] = ones * powers.reshape(-1, *[1] * len(shape)).astype(np.float32)
    st.write(path, tensors)


class Probe:
    """The probe, compiled for one way to split a step's samples."""

    def __init__(self, test, batch, micro_batches, replicas, shapes=SHAPES, suffix="", **more):
        self.test, self.parts, self.shapes = test, micro_batches * replicas, shapes
        self.name = f"probe-{batch}-{micro_batches}-{replicas}{suffix}"
        model = test.work / f"{self.name}.onnx"
        probe_model(model, batch, shapes, **more)
        probe_data(test.work / f"{self.name}.data", shapes)
        self.executable = test.compile(
            model, "w*", f"--micro-batches={micro_batches}", f"--replicas={replicas}", name=self.name
        )

    def run(self, steps, *options):
        """Masks of the step before the first of this run, by op: [samples, ...]."""
        data, gradients = self.test.work / f"{self.name}.data", self.test.work / "gradients"
        self.test.run(
            self.executable, "--data", data, "--steps", steps, "--shuffle", "off",
            "--dump-gradients", gradients, *options,
        )  # fmt: skip
        found = st.read(gradients)
        return [self.decode(found[f"w{i}"], RATIOS[i]) for i in range(len(self.shapes))]

    def decode(self, gradient, ratio):
        """From sum of mask 4^s scale / parts to masks."""
        sums = np.rint(gradient * self.parts / philox.scale(ratio)).astype(np.int64)
        return np.stack([(sums >> (2 * s)) & 3 for s in range(SAMPLES)]) == 1


def expected(shapes, seed, step):
    return [
        philox.kept((SAMPLES, *shape), SAMPLES, ratio, seed, step, 0, op)
        for op, (shape, ratio) in enumerate(zip(shapes, RATIOS))
    ]


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b))


def check_masks(test):
    """Masks are numpy's, whoever shares a micro-batch, a replica or a thread."""
    for batch, micro_batches, replicas in ((1, 4, 1), (4, 1, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2)):
        probe = Probe(test, batch, micro_batches, replicas)
        what = f"{replicas} replicas of {micro_batches} x {batch}"
        first = probe.run(1, "--seed", SEED, "--threads", 2)
        test.check(equal(first, expected(SHAPES, SEED, 0)), f"masks of {what}")
        folder = test.work / f"{probe.name}-out"
        probe.run(3, "--seed", SEED, "--output-dir", folder, "--threads", 1)
        later = probe.run(4, "--seed", SEED, "--resume-from-checkpoint", folder / "checkpoint-3")
        test.check(equal(later, expected(SHAPES, SEED, 3)), f"masks of {what}, step 4, resumed")
    for i, sizes in enumerate((((3,), (4096,)), ((4099,), (8192,)))):
        odd = Probe(test, 2, 2, 1, sizes, f"-odd{i}")
        test.check(equal(odd.run(1), expected(sizes, 42, 0)), f"masks of {sizes} elements a sample")
    for name, element in (("bf16", TensorProto.BFLOAT16), ("f16", TensorProto.FLOAT16)):
        half = Probe(test, 2, 2, 1, suffix=f"-{name}", element=element)
        test.check(equal(half.run(1), expected(SHAPES, 42, 0)), f"masks of {name}")
    other = probe.run(1, "--seed", SEED + 1)
    test.check(equal(other, expected(SHAPES, SEED + 1, 0)), "masks of another seed")
    test.check(not equal(other, first), "another seed has other masks")


def correlation(a, b):
    return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def check_statistics(test):
    """The share kept is right; ops, samples and steps are independent."""
    shapes = ((20000,), (20000,))
    probe = Probe(test, 2, 2, 1, shapes, "-many")
    masks = probe.run(1)
    test.check(equal(masks, expected(shapes, 42, 0)), "masks of many elements, default seed")
    for mask, ratio in zip(masks, RATIOS):
        sigma = np.sqrt(ratio * (1 - ratio) / mask.size)
        share = 1 - mask.mean()
        test.check(abs(share - ratio) < 5 * sigma, f"dropped {share:.5f} of {ratio}")
    bound = 5 / np.sqrt(masks[0].size)
    next_step = expected(shapes, 42, 1)[0]
    test.check(correlation(masks[0], masks[1]) < bound, "ops are independent")
    test.check(correlation(masks[0], next_step) < bound, "steps are independent")
    between = max(correlation(masks[0][i], masks[0][j]) for i in range(4) for j in range(i))
    test.check(between < 5 / np.sqrt(20000), "samples are independent")
    shifted = correlation(masks[0][:, :-1], masks[0][:, 1:])
    test.check(shifted < bound, "neighbours are independent")


def check_evaluation(test):
    """Evaluation keeps everything and scales nothing."""
    probe = Probe(test, 2, 2, 1)
    log = test.work / "evaluation.jsonl"
    data = test.work / f"{probe.name}.data"
    probe.run(1, "--learning-rate", 0, "--eval-data", data, "--log-file", log)
    line = read_log(log)[0]
    whole = 2 * (1 + 4 + 16 + 64) / 4 * sum(np.prod(shape) for shape in SHAPES)
    test.check(line["eval_loss"] == whole, f"evaluation drops nothing: {line['eval_loss']}")
    test.check(line["loss"] != whole, "training drops")


#
# A model with LoRA dropout.
#
MLP = dict(length=6, vocabulary=16, width=8, hidden=16, rank=2)
DROPOUT = 0.25
RATE = 1e-2


def torch_losses(model, data, steps, micro_batches, batch, blocks):
    """Losses, first gradients and last parameters by torch, with numpy's masks."""
    values = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in model.graph.initializer}
    trained = {k: v.requires_grad_() for k, v in values.items() if ".lora_" in k}
    adam = torch.optim.AdamW(trained.values(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.05)
    losses, first = [], None
    for step in range(steps):
        adam.zero_grad()
        total = count = 0
        for m in range(micro_batches):
            record = step * micro_batches + m
            h = values["embed"][torch.tensor(data["tokens"][record])]
            for i in range(blocks):
                mask = philox.kept(h.shape, batch, DROPOUT, 42, step, m * batch, i)
                factor = torch.tensor(mask * philox.scale(DROPOUT))
                name = f"blocks.{i}"
                low = (h * factor) @ values[f"{name}.lora_A"] @ values[f"{name}.lora_B"]
                act = torch.nn.functional.gelu(h @ values[f"{name}.up"] + low)
                h = h + act @ values[f"{name}.down"]
            logits = (h @ values["head"]).reshape(-1, MLP["vocabulary"])
            labels = torch.tensor(data["labels"][record]).reshape(-1)
            total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            count += labels.numel()
        loss = total / count
        loss.backward()
        if first is None:
            first = {k: v.grad.numpy().copy() for k, v in trained.items()}
        adam.step()
        losses.append(loss.item())
    return losses, first, {k: v.detach().numpy() for k, v in trained.items()}


def close(a, b, tolerance):
    return np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


def check_learning(test):
    """Losses, gradients and weights are torch's."""
    steps, batch = 4, 2
    model = mlp.build(batch=batch, blocks=2, dropout=DROPOUT, **MLP)
    data = mlp.data(2 * steps, batch=batch, length=MLP["length"])
    path = test.work / "mlp.onnx"
    onnx.save(model, path)
    st.write(test.work / "mlp.data", data)
    executable = test.compile(path, mlp.TRAINABLE, "--micro-batches=2", name="mlp")
    folder, log, gradients = (test.work / name for name in ("out", "mlp.jsonl", "mlp.grads"))
    test.run(
        executable, "--data", test.work / "mlp.data", "--steps", steps, "--shuffle", "off",
        "--learning-rate", RATE, "--log-file", log, "--dump-gradients", gradients,
        "--output-dir", folder,
    )  # fmt: skip
    losses, first, last = torch_losses(model, data, steps, 2, batch, 2)
    got = [line["loss"] for line in read_log(log)]
    test.check(np.allclose(got, losses, rtol=1e-6), f"losses {got} are torch's {losses}")
    found, saved = st.read(gradients), st.read(folder / f"checkpoint-{steps}" / "model.safetensors")
    for name in first:
        test.check(close(found[name], first[name], 1e-5), f"gradient of {name}")
        test.check(close(saved[name], last[name], 1e-5), f"{name} after {steps} steps")


def check_bits(test):
    """Stages, schedules, recomputation, threads, processes and a resume."""
    steps = 5
    model = mlp.build(batch=2, blocks=6, dropout=DROPOUT, **MLP)
    path, data = test.work / "bits.onnx", test.work / "bits.data"
    onnx.save(model, path)
    st.write(data, mlp.data(12, batch=2, length=MLP["length"]))

    def compile(name, *options):
        return test.compile(path, mlp.TRAINABLE, "--micro-batches=4", *options, name=name)

    def run(executable, name, *options, ranks=0, steps=steps):
        launcher = ["mpirun", "-n", ranks] if ranks else []
        test.run(
            *launcher, executable, "--data", data, "--steps", steps, "--learning-rate", RATE,
            "--max-grad-norm", 1, "--log-file", test.work / f"{name}.jsonl",
            "--output-dir", test.work / name, *options,
        )  # fmt: skip
        last = test.work / name / f"checkpoint-{steps}"
        return read_log(test.work / f"{name}.jsonl"), read_folder(last)

    reference = run(compile("one"), "bits-one", "--threads", 1)
    test.check(len(reference[0]) == steps and len(reference[1]) == 3, "the run is complete")
    cases = (
        ("two", ("--stages=2", "--schedule=gpipe"), ("--threads", 1), 0),
        ("three", ("--stages=3", "--schedule=zero_bubble"), ("--threads", 3), 0),
        ("four", ("--stages=4", "--schedule=one_f_one_b"), ("--threads", 1), 4),
        ("interleaved", ("--stages=2", "--schedule=interleaved", "--chunks=2"), (), 0),
        ("full", ("--recompute=full",), ("--threads", 2), 0),
        ("full3", ("--stages=3", "--recompute=full"), ("--threads", 1), 0),
        ("cheap", ("--recompute=cheap", "--stages=2"), (), 2),
    )
    for name, options, more, ranks in cases:
        executable = compile(name, *options)
        test.check(run(executable, f"bits-{name}", *more, ranks=ranks) == reference, f"bits: {name}")
    # Only the last block trains: five drop in a frozen prefix, which ranks share by turns.
    last = "blocks.5.lora_[AB]"
    prefix = [
        run(test.compile(path, last, "--micro-batches=4", *options, name=name), f"bits-{name}")
        for name, options in (("last", ()), ("spread", ("--stages=3",)))
    ]
    test.check(prefix[0] == prefix[1], "bits: dropout in a frozen prefix")
    test.check(prefix[0][0] != reference[0], "what trains matters")
    run(test.work / "two", "bits-cut", steps=2)
    cut = run(test.work / "full3", "bits-cut", "--resume-from-checkpoint", "latest")
    test.check(cut == reference, "bits: resumed on another number of stages")


def check_sizes(test):
    """One sample a micro-batch or four: up to the order of sums the same."""
    tokens = mlp.data(12, batch=1, length=MLP["length"])
    st.write(test.work / "rows.data", {k: v[:, 0] for k, v in tokens.items()})
    logs = []
    for batch, micro_batches in ((1, 4), (4, 1)):
        name = f"rows-{batch}"
        path = test.work / f"{name}.onnx"
        onnx.save(mlp.build(batch="batch", blocks=2, dropout=DROPOUT, **MLP), path)
        executable = test.compile(
            path, mlp.TRAINABLE, f"--dim=batch={batch}", f"--micro-batches={micro_batches}",
            name=name,
        )  # fmt: skip
        log = test.work / f"{name}.jsonl"
        test.run(
            executable, "--data", test.work / "rows.data", "--steps", 3, "--shuffle", "off",
            "--learning-rate", RATE, "--log-file", log,
        )  # fmt: skip
        logs.append([line["loss"] for line in read_log(log)])
    test.check(np.allclose(logs[0], logs[1], rtol=2e-7), f"losses of 4 x 1 and 1 x 4: {logs}")


def main():
    torch.set_num_threads(1)
    test = Test("dropout", __doc__)
    check_masks(test)
    check_statistics(test)
    check_evaluation(test)
    check_learning(test)
    check_bits(test)
    check_sizes(test)
    test.end()


if __name__ == "__main__":
    main()

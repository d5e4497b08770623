"""A hand-written ONNX language model without attention, for tests.

Token embedding, blocks of `x + gelu(x W_up) W_down` with LoRA on W_up, a linear
head, and a mean cross-entropy that ignores the label -100. Only the LoRA
matrices are meant to train: TRAINABLE. With a dropout ratio, LoRA drops of its
input as PEFT's does.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

TRAINABLE = "blocks.*.lora_[AB]"


def _random(random, name, *shape, scale=None):
    """Normal values; by default such that a product keeps their scale."""
    values = random.standard_normal(shape, dtype=np.float32)
    values *= np.float32(scale or shape[0] ** -0.5)
    return numpy_helper.from_array(values, name)


def _block(i, random, width, hidden, rank, dropout):
    """Nodes and parameters of one block."""
    name = f"blocks.{i}"
    source = f"h{i}"
    low_source = f"dropped{i}" if dropout else source

    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], name=f"/{name}/{output}", **attributes)

    nodes = [
        node("MatMul", [source, f"{name}.up"], f"up{i}"),
        node("MatMul", [low_source, f"{name}.lora_A"], f"low{i}"),
        node("MatMul", [f"low{i}", f"{name}.lora_B"], f"delta{i}"),
        node("Add", [f"up{i}", f"delta{i}"], f"sum{i}"),
        node("Gelu", [f"sum{i}"], f"act{i}"),
        node("MatMul", [f"act{i}", f"{name}.down"], f"down{i}"),
        node("Add", [source, f"down{i}"], f"h{i + 1}"),
    ]
    if dropout:
        nodes.insert(0, node("Dropout", [source, "ratio", "training"], low_source))
    params = [
        _random(random, f"{name}.up", width, hidden),
        _random(random, f"{name}.lora_A", width, rank),
        _random(random, f"{name}.lora_B", rank, hidden),
        _random(random, f"{name}.down", hidden, width),
    ]
    return nodes, params


def build(
    batch=2, length=4, vocabulary=16, width=8, hidden=16, rank=2, blocks=2, seed=0, dropout=0.0
):
    """The ModelProto; `batch` may be a name, then it is a symbolic dimension."""
    random = np.random.default_rng(seed)
    nodes = [helper.make_node("Gather", ["embed", "tokens"], ["h0"], name="/embed")]
    params = [_random(random, "embed", vocabulary, width, scale=1)]
    for i in range(blocks):
        more, own = _block(i, random, width, hidden, rank, dropout)
        nodes += more
        params += own
    nodes += [
        helper.make_node("MatMul", [f"h{blocks}", "head"], ["logits"], name="/head"),
        helper.make_node("Reshape", ["logits", "flat_logits_shape"], ["flat"], name="/flat"),
        helper.make_node("Reshape", ["labels", "flat_shape"], ["targets"], name="/targets"),
        helper.make_node(
            "SoftmaxCrossEntropyLoss", ["flat", "targets"], ["loss"],
            name="/loss", ignore_index=-100, reduction="mean",
        ),
    ]  # fmt: skip
    params.append(_random(random, "head", width, vocabulary))
    shapes = {"flat_logits_shape": [-1, vocabulary], "flat_shape": [-1]}
    params += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in shapes.items()]
    if dropout:
        params.append(numpy_helper.from_array(np.array(dropout, np.float32), "ratio"))
        params.append(numpy_helper.from_array(np.array(True), "training"))
    integers = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length])
        for name in ("tokens", "labels")
    ]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "mlp", integers, [loss], params)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def data(records, batch=2, length=4, vocabulary=16, seed=1):
    """Inputs of `records` micro-batches: each token's label is the token itself."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, vocabulary, (records, batch, length))
    return {"tokens": tokens, "labels": tokens.copy()}

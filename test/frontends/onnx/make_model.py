#!/usr/bin/env python3
"""Writes the small models of the importer's tests: FOLDER/CASE/model.onnx.

  make_model.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op, inputs, outputs, name=None, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), name=name or "", **attributes)


def array(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.array(value, dtype), name)


def value(name, shape, element=F):
    return helper.make_tensor_value_info(name, element, shape)


def model(nodes, inputs, outputs, initializers=(), opset=20, metadata=(), **others):
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset), *others.pop("imports", [])]
    result = helper.make_model(graph, opset_imports=imports, ir_version=10, **others)
    for key, text in metadata:
        result.metadata_props.add(key=key, value=text)
    return result


def linear(**others):
    """y = x W + b."""
    w = array("w", np.arange(6).reshape(2, 3))
    b = array("layer.bias", [1, 2, 3])
    nodes = [node("MatMul", "x w", "xw", "product"), node("Add", "xw layer.bias", "y", "sum")]
    return model(nodes, [value("x", [4, 2])], [value("y", [4, 3])], [w, b], **others)


def external(location, offset=0, length=24):
    """A linear layer whose weight lies outside the file."""
    result = linear()
    tensor = result.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(text))
    return result


def dropout(mask="", shape=(2, 4), batch=2, ratio=0.25, inputs=(), opset=20, **attributes):
    """Two dropouts in training mode, of x and of -x; batch: samples of x's neighbour."""
    if opset < 12:
        attributes["ratio"] = ratio
        first = node("Dropout", "x", "y", "the_node", **attributes)
        return model([first], [value("x", shape)], [value("y", shape)], opset=opset)
    nodes = [node("Dropout", "x ratio on", f"y {mask}", "the_node", seed=7),
             node("Neg", "y", "n"), node("Dropout", "n ratio on", "z", "second")]
    given = {i.name for i in inputs}
    constants = [array("ratio", ratio), array("on", True, np.bool_)]
    results = [value("z", shape)] + ([value(mask, shape, B)] if mask else [])
    return model(
        nodes, [value("first", [batch, 1]), value("x", shape), *inputs], results,
        [c for c in constants if c.name not in given], opset=opset)


def constant_if():
    """An If with a constant condition, in whose branch the outer graph is seen."""
    def branch(op):
        return helper.make_graph([node(op, "x", "r")], op, [], [value("r", [2])])
    return model(
        [node("If", "flag", "y", "choice", then_branch=branch("Neg"), else_branch=branch("Abs"))],
        [value("x", [2])], [value("y", [2])], [array("flag", False, np.bool_)],
    )  # fmt: skip


def dynamic_if():
    result = constant_if()
    del result.graph.initializer[:]
    result.graph.input.append(value("flag", [], B))
    return result


def local_function():
    """A function with an attribute that its body refers to."""
    scaled = node("LeakyRelu", "a", "b", "inner")
    scaled.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    function = helper.make_function(
        "mine", "Leaky", ["a"], ["c"], [scaled, node("Neg", "b", "c", "negate")],
        [helper.make_opsetid("", 20)], ["slope"],
    )  # fmt: skip
    call = node("Leaky", "x", "y", "call", domain="mine", slope=0.25)
    return model(
        [call], [value("x", [2])], [value("y", [2])],
        functions=[function], imports=[helper.make_opsetid("mine", 1)],
    )  # fmt: skip


def merged():
    """Two LoRA-like matrices of equal values, one tensor: as torch.onnx writes them."""
    def product(x, y, module):
        result = node("MatMul", f"{x} val_7", y, f"node_{module}")
        result.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', 'l']")
        result.metadata_props.add(
            key="pkg.torch.onnx.class_hierarchy",
            value="['M', 'torch.nn.modules.linear.Linear', 'aten.linear.default']",
        )
        return result
    return model(
        [product("x", "h", "a.lora_B"), product("h", "y", "b.lora_B")],
        [value("x", [4, 2])], [value("y", [4, 2])], [array("val_7", np.zeros((2, 2)))],
    )  # fmt: skip


def tied():
    """An embedding and, for the output layer, its transpose as the exporter folded it."""
    table = np.arange(6).reshape(3, 2)
    nodes = [node("Gather", "e.weight ids", "h", "embed"), node("MatMul", "h val_3", "y", "head")]
    result = model(
        nodes, [value("ids", [4], I)], [value("y", [4, 3])],
        [array("e.weight", table), array("val_3", table.T)],
    )  # fmt: skip
    copy = result.graph.value_info.add(name="val_3")
    copy.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value="['e.weight']")
    return result


def tied_small():
    """An embedding that is the output layer's weight as well, in one tensor of that name."""
    def scoped(result, module, kind):
        result.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', 'l']")
        result.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=f"['M', '{kind}', 'a']")
        return result
    nodes = [
        scoped(node("Gather", "head.weight ids", "h", "n1"), "e", "torch.nn.modules.sparse.Embedding"),
        node("Transpose", "head.weight", "t", "n2", perm=[1, 0]),
        scoped(node("MatMul", "h t", "y", "n3"), "head", "torch.nn.modules.linear.Linear"),
    ]  # fmt: skip
    table = array("head.weight", np.arange(6).reshape(3, 2))
    return model(nodes, [value("ids", [4], I)], [value("y", [4, 3])], [table])


def buffers():
    """Tensors that no star means: statistics, a buffer, a computed table; a lost parameter."""
    names = ["scale", "shift", "mean", "variance"]
    nodes = [
        node("BatchNormalization", "x " + " ".join(f"norm.{n}" for n in names), "a", "norm"),
        node("Mul", "a angles", "b", "mul"), node("Add", "b offset_cast", "y", "add"),
    ]  # fmt: skip
    tensors = [array(f"norm.{n}", [1, 2]) for n in names]
    tensors += [array("angles", [1, 2]), array("offset_cast", [3, 4])]
    result = model(nodes, [value("x", [4, 2])], [value("y", [4, 2])], tensors)
    kind = result.graph.value_info.add(name="angles")
    kind.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="BUFFER")
    folded = result.graph.value_info.add(name="offset_cast")
    folded.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value="['offset', 'c']")
    result.graph.metadata_props.add(
        key="pkg.torch.export.ExportedProgram.graph_signature",
        value="\n# inputs\np_s: PARAMETER target='norm.scale'\np_t: PARAMETER target='norm.shift'\np_o: PARAMETER target='offset'\n",
    )
    return result


def masked_scatter():
    """torch.masked_scatter as exported: sizes behind NonZero are unknown."""
    nodes = [
        node("NonZero", "mask", "hits", "hits"),
        node("Transpose", "hits", "tuples", "tuples", perm=[1, 0]),
        node("Shape", "tuples", "dims", "dims"),
        node("Gather", "dims zero", "count", "count"),
        node("Slice", "source zero count zero", "taken", "taken"),
        node("ScatterND", "x tuples taken", "y", "scatter"),
    ]
    return model(
        nodes, [value("x", [2, 3]), value("mask", [2, 3], B), value("source", [6])],
        [value("y", [2, 3])], [array("zero", [0], np.int64)],
    )  # fmt: skip


def nameless():
    """A TorchScript export that lost the name of its weight."""
    result = linear()
    result.graph.initializer[0].name = result.graph.node[0].input[1] = "onnx::MatMul_7"
    result.graph.initializer[0].dims[:] = [2, 3]
    return result


def shape_chain():
    """What TorchScript writes for x.view(x.shape[0], -1), and a mask."""
    nodes = [
        node("Shape", "x", "dims"), node("Gather", "dims zero", "batch", axis=0),
        node("Unsqueeze", "batch axis", "batch1"), node("Concat", "batch1 rest", "to", axis=0),
        node("Reshape", "x to", "flat"), node("Range", "zero four one", "positions"),
        node("Unsqueeze", "positions axis1", "columns"),
        node("LessOrEqual", "positions columns", "causal"),
        node("Cast", "causal", "mask", to=F), node("MatMul", "flat mask", "y"),
    ]  # fmt: skip
    constants = {"zero": 0, "one": 1, "four": 4, "axis": [0], "axis1": [1], "rest": [-1]}
    initializers = [array(name, v, np.int64) for name, v in constants.items()]
    return model(nodes, [value("x", [3, 2, 2])], [value("y", [3, 4])], initializers)


def old_forms():
    """Operator set 9: axes and bounds are attributes, softmax flattens."""
    nodes = [
        node("Unsqueeze", "x", "u", "unsqueeze", axes=[0]),
        node("Slice", "u", "s", "slice", axes=[2], starts=[1], ends=[9223372036854775807]),
        node("Clip", "s", "c", "clip", min=-1.0, max=1.0),
        node("ReduceSum", "c", "r", "sum", axes=[0], keepdims=0),
        node("Softmax", "r", "y", "softmax", axis=0),
    ]
    return model(nodes, [value("x", [2, 3])], [value("y", [2, 2])], opset=9)


def sequence():
    """torch.split as torch.onnx writes it without its optimizer."""
    nodes = [
        node("SplitToSequence", "x sizes", "parts", "split", axis=1),
        node("SequenceAt", "parts one", "y", "part"),
    ]
    constants = [array("sizes", [1, 2], np.int64), array("one", 1, np.int64)]
    return model(nodes, [value("x", [2, 3])], [value("y", [2, 2])], constants)


def simple(op, **attributes):
    return model([node(op, "x", "y", "the_node", **attributes)], [value("x", [2])], [value("y", [2])])


def late_definition():
    nodes = [node("Neg", "h", "y", "first"), node("Abs", "x", "h", "second")]
    return model(nodes, [value("x", [2])], [value("y", [2])])


def unknown_operators():
    nodes = [node("Foo", "x", "a", "n1"), node("Bar", "a", "b", "n2", domain="my"), node("Foo", "b", "y", "n3")]
    return model(nodes, [value("x", [2])], [value("y", [2])])


def duplicate():
    nodes = [node("Neg", "x", "y", "first"), node("Abs", "x", "y", "second")]
    return model(nodes, [value("x", [2])], [value("y", [2])])


def keep_initializers_as_inputs():
    result = linear()
    result.graph.input.extend([value("w", [2, 3]), value("layer.bias", [3])])
    return result


def half_weights():
    weights = helper.make_tensor("half", TensorProto.BFLOAT16, [2], np.array([0x803F, 0x0040], ">u2").tobytes(), raw=True)
    nodes = [node("Cast", "half", "wide", "widen", to=F), node("Mul", "x wide", "y", "product")]
    return model(nodes, [value("x", [2])], [value("y", [2])], [weights])


CASES = {
    "linear": linear, "metadata": lambda: linear(metadata=[("mgq.trainable", "layer.*")]),
    "constant_if": constant_if, "dynamic_if": dynamic_if, "local_function": local_function,
    "merged": merged, "tied": tied, "sequence": sequence, "tied_small": tied_small, "buffers": buffers, "masked_scatter": masked_scatter, "nameless": nameless,
    "shape_chain": shape_chain, "old_forms": old_forms, "duplicate": duplicate,
    "late_definition": late_definition, "unknown_operators": unknown_operators,
    "keep_initializers_as_inputs": keep_initializers_as_inputs, "half_weights": half_weights,
    "dangling": lambda: model([node("Add", "x nothing", "y", "the_node")], [value("x", [2])], [value("y", [2])]),
    "no_output": lambda: model([node("Neg", "x", "y")], [value("x", [2])], [value("z", [2])]),
    "symbolic": lambda: model([node("Neg", "x", "y")], [value("x", ["batch", 2])], [value("y", ["batch", 2])]),
    "no_size": lambda: model([node("Neg", "x", "y")], [value("x", [None, 2])], [value("y", [None, 2])]),
    "new_opset": lambda: linear(opset=99),
    "external_absent": lambda: external("weights.bin"), "external_present": lambda: external("weights.bin"),
    "external_short": lambda: external("weights.bin", offset=8), "external_parent": lambda: external("../w.bin"),
    "external_absolute": lambda: external("/w.bin"), "external_link": lambda: external("weights.bin"),
    "external_length": lambda: external("weights.bin", length=8),
    "dropout": lambda: dropout(),
    "dropout_mask": lambda: dropout("kept"),
    "dropout_nothing": lambda: dropout(ratio=0.0),
    "dropout_rows": lambda: dropout(shape=[3, 4], batch=2),
    "dropout_ratio": lambda: dropout(ratio=1.5),
    "dropout_input_mode": lambda: dropout(inputs=[value("on", [], B)]),
    "dropout_input_ratio": lambda: dropout(inputs=[value("ratio", [])]),
    "dropout_old": lambda: dropout(opset=6), "dropout_old_test": lambda: dropout(opset=6, is_test=1),
    "dropout_middle": lambda: dropout(opset=10),
    "training_batchnorm": lambda: model(
        [node("BatchNormalization", "x s s s s", "y m v", "the_node", training_mode=1)],
        [value("x", [2, 3])], [value("y", [2, 3])], [array("s", [1, 1, 1])]),
    "random_input": lambda: model(
        [node("Neg", "mgq.random.0", "y")], [value("mgq.random.0", [4])], [value("y", [4])]),
    "run_time_shape": lambda: model(
        [node("Reshape", "x to", "y", "the_node")], [value("x", [4]), value("to", [2], I)], [value("y", [2, 2])]),
    "bad_matmul": lambda: model(
        [node("MatMul", "x z", "y", "the_node")], [value("x", [2, 3]), value("z", [4, 5])], [value("y", [2, 5])]),
    "bad_axis": lambda: simple("Softmax", axis=3),
    "bad_cast": lambda: simple("Cast", to=TensorProto.STRING),
    "behind_non_zero": lambda: model(
        [node("NonZero", "x", "hits", "hits"), node("Neg", "hits", "y", "the_node")],
        [value("x", [2])], [value("y", [1, None], I)]),
}  # fmt: skip


BYTES = {
    "empty": lambda: b"",
    "random": lambda: bytes(range(255, 0, -1)) * 4,
    "truncated": lambda: linear().SerializeToString()[:-10],
}


def main():
    root = Path(sys.argv[1])
    for case in [*CASES, *BYTES]:
        folder = root / case
        folder.mkdir(parents=True)
        data = BYTES[case]() if case in BYTES else CASES[case]().SerializeToString()
        (folder / "model.onnx").write_bytes(data)
        if case in ("external_present", "external_short", "external_length"):
            (folder / "weights.bin").write_bytes(bytes(24))
    (root / "outside.bin").write_bytes(bytes(24))
    (root / "external_link" / "weights.bin").symlink_to(root / "outside.bin")
    checker.check_model(linear())


if __name__ == "__main__":
    main()

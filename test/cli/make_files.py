#!/usr/bin/env python3
"""Writes the models and data of the command line tests.

  make_files.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import mlp  # noqa: E402
import st  # noqa: E402

RECORDS = 8


def with_positions():
    """A position table that an integer initializer indexes."""
    model = mlp.build()
    graph = model.graph
    positions = numpy_helper.from_array(np.array([3, 1, 0, 2]), "positions")
    table = numpy_helper.from_array(np.ones((4, 8), np.float32), "table")
    graph.initializer.extend([positions, table])
    graph.node[0].output[0] = "words"
    graph.node.insert(1, helper.make_node("Gather", ["table", "positions"], ["places"]))
    graph.node.insert(2, helper.make_node("Add", ["words", "places"], ["h0"]))
    return model


def with_output(name, element, shape):
    """The model with `name`, the logits or the loss as an integer, as its output."""
    model = mlp.build()
    del model.graph.output[:]
    cast = helper.make_node("Cast", ["loss"], ["rounded"], name="/rounded", to=TensorProto.INT64)
    model.graph.node.append(cast)
    model.graph.output.append(helper.make_tensor_value_info(name, element, shape))
    return model


def with_metadata():
    model = mlp.build()
    model.metadata_props.add(key="mgq.trainable", value="blocks.*.lora_B")
    model.metadata_props.add(key="mgq.length", value="4")
    return model


def other_value():
    """The good model with another value of a frozen weight: the same graph."""
    model = mlp.build()
    head = next(t for t in model.graph.initializer if t.name == "head")
    head.raw_data = numpy_helper.to_array(head)[::-1].tobytes()
    return model


def other_graph():
    """A file of the same length whose graph is another one."""
    model = mlp.build()
    next(n for n in model.graph.node if n.op_type == "Gelu").op_type = "Relu"
    return model


def with_other_axis():
    """A symbolic number of samples that is not that of all inputs."""
    model = mlp.build(batch="batch")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "labels"
    return model


def with_scalar():
    """An input that has no samples."""
    model = mlp.build(batch="batch")
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
    model.graph.node.append(helper.make_node("Mul", ["loss", "scale"], ["scaled"]))
    model.graph.output[0].name = "scaled"
    return model


def with_own_loss():
    """A loss that is not recognised as a mean cross-entropy."""
    model = mlp.build(batch="batch")
    model.graph.node.append(helper.make_node("Mul", ["loss", "loss"], ["square"]))
    model.graph.output[0].name = "square"
    return model


def write_models(root):
    onnx.save(mlp.build(), root / "good.onnx")
    onnx.save(mlp.build(batch="batch"), root / "symbolic.onnx")
    onnx.save(with_other_axis(), root / "axes.onnx")
    onnx.save(with_scalar(), root / "scalar.onnx")
    onnx.save(with_own_loss(), root / "own-loss.onnx")
    onnx.save(with_positions(), root / "positions.onnx")
    onnx.save(with_output("logits", TensorProto.FLOAT, [2, 4, 16]), root / "tensor.onnx")
    onnx.save(with_output("rounded", TensorProto.INT64, []), root / "integer.onnx")
    onnx.save(with_metadata(), root / "metadata.onnx")
    for name, model in (("value", other_value()), ("graph", other_graph())):
        (root / name).mkdir()
        onnx.save(model, root / name / "good.onnx")
    good = (root / "good.onnx").read_bytes()
    for name, content in (("short", good[:1500]), ("long", good + good[-9:])):
        (root / name).mkdir()
        (root / name / "good.onnx").write_bytes(content)
    external = mlp.build()
    external_data_helper.convert_model_to_external_data(
        external, location="weights.bin", size_threshold=80
    )
    (root / "external").mkdir()
    onnx.save(external, root / "external" / "model.onnx")


def changed(array, value, record=3):
    """A copy with one element of a record changed."""
    copy = array.copy()
    copy[record, 1, 2] = value
    return copy


def write_data(root):
    good = mlp.data(RECORDS)
    tokens, labels = good["tokens"], good["labels"]
    ignored = np.full_like(labels, -100)
    some = labels.copy()
    some[:2] = -100
    cases = {
        "good": good,
        "rows": {k: v.reshape(-1, 4) for k, v in good.items()},
        "seven": {k: v.reshape(-1, 4)[:7] for k, v in good.items()},
        "key": {"tokens": tokens, "label": labels},
        "shape": {"tokens": tokens[:, :, :3], "labels": labels},
        "type": {"tokens": tokens.astype(np.int32), "labels": labels},
        "token": {"tokens": changed(tokens, 16), "labels": labels},
        "negative": {"tokens": changed(tokens, -1), "labels": labels},
        "label": {"tokens": tokens, "labels": changed(labels, 99)},
        "ignored": {"tokens": tokens, "labels": ignored},
        "some": {"tokens": tokens, "labels": some},
        "none": {"tokens": tokens[:0], "labels": labels[:0]},
        "unequal": {"tokens": tokens, "labels": labels[:3]},
        "one": {"tokens": tokens[:1], "labels": labels[:1]},
    }
    for name, tensors in cases.items():
        st.write(root / f"{name}.st", tensors)
    st.write(root / "length.st", good, {"mgq.length": "5"})
    (root / "empty.st").write_bytes(b"")
    (root / "random.st").write_bytes(bytes(range(255, 0, -1)))
    (root / "cut.st").write_bytes((root / "good.st").read_bytes()[:-100])


def main():
    root = Path(sys.argv[1])
    root.mkdir(parents=True)
    write_models(root)
    write_data(root)


if __name__ == "__main__":
    main()

"""ONNX models whose weights are stored in bf16 or f16, for tests.

`narrow` gives what an export with such weights looks like: float initializers
in the narrow type, each with a Cast to float that all its users read. `widen`
gives its twin: f32 initializers of the same (rounded) values. Both must compute
the same bits.
"""

import ml_dtypes
import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

TYPES = {
    "bf16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
    "f16": (TensorProto.FLOAT16, np.dtype(np.float16)),
}


def rounded(values, kind):
    """f32 values as type `kind` holds them, an array of that type."""
    with np.errstate(over="ignore"):
        return values.astype(TYPES[kind][1])


def _inline(model, kind, chosen):
    """Chosen f32 initializers that the type can hold, and their rounded values."""
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or not tensor.dims or not chosen(tensor.name):
            continue
        values = rounded(numpy_helper.to_array(tensor), kind)
        if np.isfinite(values.astype(np.float32)).all():
            yield tensor, values


def _replace(tensor, values, data_type):
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    tensor.raw_data = values.tobytes()


def widen(model, kind, chosen=lambda name: True):
    """Rounds f32 initializers to values of type `kind`; in place."""
    for tensor, values in _inline(model, kind, chosen):
        _replace(tensor, values.astype(np.float32), TensorProto.FLOAT)
    return model


def add_casts(model, kind, names):
    """All users of initializers `names`, of type `kind`, read them cast to f32.

    A cast stands before the first user, so that parameters keep their order,
    which is that of the sum over their norms.
    """
    data_type, wide = TYPES[kind][0], {name: f"{name}.f32" for name in names}
    nodes, known = [], set()
    for old in model.graph.node:
        node = NodeProto()
        node.CopyFrom(old)
        for i, name in enumerate(old.input):
            if name not in wide:
                continue
            if name not in known:
                cast = f"/cast/{name}"
                nodes.append(
                    helper.make_node("Cast", [name], [wide[name]], name=cast, to=TensorProto.FLOAT)
                )
            known.add(name)
            node.input[i] = wide[name]
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for value in model.graph.input:  # parameters may be graph inputs, too
        if value.name in wide:
            value.type.tensor_type.elem_type = data_type


def narrow(model, kind, chosen=lambda name: True):
    """Stores f32 initializers in type `kind`, with a Cast to f32; in place."""
    names = []
    for tensor, values in _inline(model, kind, chosen):
        _replace(tensor, values, TYPES[kind][0])
        names.append(tensor.name)
    add_casts(model, kind, names)
    return model

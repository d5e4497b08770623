"""Export of a training graph to ONNX with every parameter under its own name.

PyTorch's exporter folds transposed weights into nameless constants and merges
equal small initializers: LoRA's zero matrices would become one tensor. Here the
optimizer never sees a parameter's value: while it runs, parameters are graph
inputs.
"""

from pathlib import Path

import onnx_ir
import torch
from onnxscript import optimizer

# What a node tells about the module it comes from; the rest holds file paths.
KEPT = ("pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes")
# Tells parameters from buffers and constants.
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
INLINE_LIMIT = 64 << 20  # bytes of weights that may stay inside the .onnx file


def hide_parameters(graph, names):
    """Makes the initializers `names` valueless inputs; returns their values."""
    values = {}
    for name in names:
        if name in graph.initializers:
            parameter = graph.initializers.pop(name)
            values[parameter] = parameter.const_value
            parameter.const_value = None
            graph.inputs.append(parameter)
    return values


def restore_parameters(graph, values):
    """Undoes hide_parameters; leaves out what the loss no longer reaches."""
    for parameter, value in values.items():
        graph.inputs.remove(parameter)
        if parameter.uses():
            parameter.const_value = value
            graph.register_initializer(parameter)


def drop_debug_metadata(graph):
    """Removes what the exporter records for itself, but for names."""
    signature = graph.metadata_props.get(SIGNATURE)
    graph.metadata_props.clear()
    if signature:
        graph.metadata_props[SIGNATURE] = signature
    for node in graph:
        kept = {key: node.metadata_props[key] for key in KEPT if key in node.metadata_props}
        node.metadata_props.clear()
        node.metadata_props.update(kept)


def export_loss(model, inputs, opset=20):
    """The graph of `model`'s scalar loss for the example `inputs` (name -> tensor)."""
    with torch.no_grad():
        program = torch.onnx.export(
            model,
            kwargs=inputs,
            input_names=list(inputs),
            output_names=["loss"],
            dynamo=True,
            opset_version=opset,
            optimize=False,
            verbose=False,
        )
    exported = program.model
    # Tied parameters go by any of their names.
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    values = hide_parameters(exported.graph, names)
    optimizer.optimize(exported)
    restore_parameters(exported.graph, values)
    drop_debug_metadata(exported.graph)
    return exported


def save(exported, path, metadata):
    """Writes the model with `metadata`; large weights go to PATH.data beside it."""
    exported.metadata_props.update(metadata)
    weights = sum(v.const_value.nbytes for v in exported.graph.initializers.values())
    path = Path(path)
    external = f"{path.name}.data" if weights > INLINE_LIMIT else None
    onnx_ir.save(exported, path, external_data=external)

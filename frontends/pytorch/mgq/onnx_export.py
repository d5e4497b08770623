"""Export of a training graph to ONNX with every parameter under its own name.

PyTorch's exporter folds transposed weights into nameless constants and merges
equal small initializers: LoRA's zero matrices would become one tensor. Here the
optimizer never sees a parameter's value: while it runs, parameters are graph
inputs. Nor does the trace need values: those of parameters come last, one by one
(onnx_weights).
"""

import contextlib
import io
import logging
import warnings

import onnx_ir
import torch
from onnx_ir.passes import common
from onnxscript import optimizer, rewriter

from mgq.errors import UserError

# What a node tells about the module it comes from; the rest holds file paths.
KEPT = ("pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes")
# Tells parameters from buffers and constants.
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
OPSETS = range(18, 24)
BATCH = "batch"  # name of a symbolic number of samples
# SlicesSplit compares every node with every other: minutes where a model has thousands.
RULES = [rule for rule in rewriter._DEFAULT_REWRITE_RULES if rule.name != "SlicesSplit"]
ROUNDS = 2  # of folding and rewriting


def export_graph(model, inputs, output="loss", opset=20, dynamic=None):
    """The graph of `model` for the example `inputs` (name -> tensor).

    Parameters are initializers without values. `dynamic`: shapes that stay symbolic,
    as torch.export's dynamic_shapes.
    """
    exported = trace(model, inputs, opset, dynamic)
    keep_scalars(exported.graph)
    tell_dropouts_apart(exported.graph)
    exported.graph.outputs[0].name = output
    # Tied parameters go by any of their names.
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    parameters = hide_parameters(exported.graph, names)
    with distinct_dropouts(exported.graph):
        simplify(exported)
    restore_parameters(exported.graph, parameters)
    drop_debug_metadata(exported)
    return exported


def simplify(exported):
    """What onnxscript's optimizer does, in time that is linear in the nodes."""
    common.InlinePass()(exported)
    for _ in range(ROUNDS):
        optimizer.fold_constants(exported, onnx_shape_inference=True)
        rewriter.RewritePass(RULES)(exported)
        common.RemoveUnusedNodesPass()(exported)
    common.RemoveUnusedFunctionsPass()(exported)
    common.RemoveUnusedOpsetsPass()(exported)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(exported)
    common.DeduplicateInitializersPass()(exported)
    common.CommonSubexpressionEliminationPass()(exported)
    common.OutputFixPass()(exported)
    common.NameFixPass()(exported)


def trace(model, inputs, opset, dynamic):
    """The graph as PyTorch's exporter gives it, not optimized."""
    give_storage(model)
    # The exporter would take one tensor that is given twice for one input.
    inputs = {name: tensor.clone() for name, tensor in inputs.items()}
    try:
        with torch.no_grad(), quiet():
            return torch.onnx.export(
                model,
                kwargs=inputs,
                input_names=list(inputs),
                dynamic_shapes=dynamic,
                dynamo=True,
                opset_version=opset,
                optimize=False,
                verbose=False,
            ).model
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"PyTorch cannot export the model: {innermost(error)}") from error


def keep_scalars(graph):
    """Of the outputs after the first, leaves those that are numbers."""
    for value in list(graph.outputs)[1:]:
        if value.shape is None or len(value.shape) or not value.dtype.is_floating_point():
            graph.outputs.remove(value)


def tell_dropouts_apart(graph):
    """Gives each Dropout node a seed of its own. mgq does not read it, but without it the
    optimizer would let all that drop of one value share a mask, as LoRA of q and v does."""
    dropouts = (node for node in graph.all_nodes() if node.op_type == "Dropout")
    for number, node in enumerate(dropouts):
        node.attributes["seed"] = onnx_ir.AttrInt64("seed", number)


def innermost(error):
    """The first lines of what is at the root of a chain of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:3])


@contextlib.contextmanager
def quiet():
    """Keeps the exporter's progress, warnings and logs from the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def give_storage(model):
    """Replaces parameters on the meta device by ones whose memory is never touched.

    Untouched pages take no memory; the trace reads shapes only.
    """
    given = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in given:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                given[id(parameter)] = parameter, torch.nn.Parameter(empty, False)
            module._parameters[name] = given[id(parameter)][1]


def hide_parameters(graph, names):
    """Makes the initializers `names` valueless inputs; returns them."""
    parameters = [graph.initializers.pop(name) for name in names if name in graph.initializers]
    for parameter in parameters:
        parameter.const_value = None
        graph.inputs.append(parameter)
    return parameters


def restore_parameters(graph, parameters):
    """Undoes hide_parameters but for values; leaves out what the loss no longer reaches."""
    for parameter in parameters:
        graph.inputs.remove(parameter)
        if parameter.uses():
            graph.initializers[parameter.name] = parameter


@contextlib.contextmanager
def distinct_dropouts(graph):
    """Keeps the optimizer from making one of several Dropouts of the same value."""
    for number, node in enumerate(dropouts(graph)):
        node.attributes["seed"] = onnx_ir.AttrInt64("seed", number)
    yield
    for node in dropouts(graph):
        del node.attributes["seed"]


def dropouts(graph):
    """The Dropout nodes of `graph`."""
    return [node for node in graph.all_nodes() if node.op_type == "Dropout"]


def drop_debug_metadata(exported):
    """Removes what the exporter records for itself, but for names."""
    graph = exported.graph
    signature = graph.metadata_props.get(SIGNATURE)
    graph.metadata_props.clear()
    if signature:
        graph.metadata_props[SIGNATURE] = signature
    for node in graph.all_nodes():
        kept = {key: node.metadata_props[key] for key in KEPT if key in node.metadata_props}
        node.metadata_props.clear()
        node.metadata_props.update(kept)
        node.doc_string = None


def store_as_bf16(exported, names):
    """Makes the parameters `names` of type bf16, cast to f32 where the graph begins."""
    graph = exported.graph
    first = graph[0]
    for name in names:
        parameter = graph.initializers[name]
        cast = onnx_ir.node(
            "Cast",
            [parameter],
            {"to": onnx_ir.DataType.FLOAT},
            outputs=[onnx_ir.Value(
                name=f"{name}.f32", shape=parameter.shape,
                type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT),
            )],
            name=f"{name}.f32",
        )
        parameter.replace_all_uses_with(cast.outputs[0])
        cast.replace_input_with(0, parameter)
        parameter.type = onnx_ir.TensorType(onnx_ir.DataType.BFLOAT16)
        graph.insert_before(first, cast)

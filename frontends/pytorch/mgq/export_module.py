"""Exports any PyTorch module that returns a loss (docs/Exporting.md)."""

import importlib.util
import re
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from mgq import onnx_export, onnx_weights
from mgq.architecture import Lora
from mgq.errors import UserError
from mgq.tensor_files import LazyTensor

SETTINGS = {"trainable", "dynamic", "metadata"}


def export(reference, path, inputs=None, trainable=None, opset=20, no_weights=False):
    """Writes the module that `reference`, FILE.py:FACTORY, makes; returns notes to the user.

    `inputs`: a safetensors file of example inputs; `trainable`: globs as text. Both are
    in place of what the factory says.
    """
    module, example, settings = call_factory(reference)
    example = read_inputs(inputs) if inputs else example
    check_inputs(example, reference)
    check_loss(module, example, reference)
    exported = onnx_export.export_graph(
        module, example, opset=opset, dynamic=dynamic_shapes(settings, example, reference)
    )
    values = dict(module.named_parameters(remove_duplicate=False))
    globs = trainable or settings.get("trainable")
    if globs is None:
        globs = default_globs(exported, values, reference)
    exported.metadata_props.update(lora_metadata(module) | settings.get("metadata", {}))
    exported.metadata_props["mgq.trainable"] = globs if isinstance(globs, str) else ",".join(globs)

    def value(name, shape):
        return LazyTensor(shape, lambda: values[name].detach().cpu(), f"parameter '{name}'")

    onnx_weights.save(exported, path, value, no_weights)
    return unreached(exported, module)


def call_factory(reference):
    """(module, example inputs or None, settings) of FILE.py:FACTORY."""
    file, colon, name = reference.rpartition(":")
    if not colon or not file:
        raise UserError(f"'{reference}' is not of the form FILE.py:FACTORY")
    factory = getattr(load_source(Path(file)), name, None)
    if not callable(factory):
        raise UserError(f"'{file}' has no function '{name}'")
    try:
        made = factory()
    except Exception as error:  # the user's code
        raise UserError(f"'{reference}' failed: {type(error).__name__}: {error}") from error
    made = made if isinstance(made, tuple) else (made,)
    module, example, settings, *more = *made, *((None, {})[len(made) - 1 :])
    if not isinstance(module, torch.nn.Module) or more:
        raise UserError(f"'{reference}' must return a torch.nn.Module, (module, inputs) or "
                        "(module, inputs, settings)")
    if not isinstance(settings, dict) or set(settings) - SETTINGS:
        raise UserError(f"'{reference}': settings are a dictionary of "
                        f"{', '.join(sorted(SETTINGS))}, not {settings!r}")
    return module, example, settings


def load_source(file):
    """The Python module in `file`, whose folder it may import from."""
    if not file.is_file():
        raise UserError(f"'{file}' does not exist")
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None:
        raise UserError(f"'{file}' is not a Python file")
    source = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(source)
    except Exception as error:  # the user's code
        raise UserError(f"'{file}' failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return source


def read_inputs(path):
    """Example inputs in a safetensors file, name -> tensor."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read '{path}': {error}") from error


def check_inputs(example, reference):
    """Inputs are a dictionary of tensors."""
    if example is None:
        raise UserError(f"'{reference}' returns no example inputs; let it return "
                        "(module, inputs), or give --inputs")
    good = isinstance(example, dict) and example and all(
        isinstance(name, str) and isinstance(value, torch.Tensor)
        for name, value in example.items()
    )
    if not good:
        raise UserError(f"'{reference}': inputs must be a dictionary, name of an argument of "
                        "forward -> tensor")


def check_loss(module, example, reference):
    """The module's first output must be a float scalar."""
    try:
        with torch.no_grad():
            output = module(**example)
    except Exception as error:  # the user's code
        raise UserError(
            f"'{reference}': the module fails on its example inputs: "
            f"{type(error).__name__}: {error}"
        ) from error
    first = next(iter(torch.utils._pytree.tree_leaves(output)), None)
    if not isinstance(first, torch.Tensor):
        found = f"{type(first).__name__}"
    elif first.dim() or not first.is_floating_point():
        found = f"{first.dtype} of shape {list(first.shape)}"
    else:
        return
    raise UserError(f"'{reference}': the module must return a loss, a float scalar, first; "
                    f"it returns {found}")


def dynamic_shapes(settings, example, reference):
    """torch.export's dynamic_shapes of settings["dynamic"], input -> {axis: name}."""
    dynamic = settings.get("dynamic")
    if not dynamic:
        return None
    for name in dynamic:
        if name not in example:
            raise UserError(f"'{reference}': 'dynamic' names '{name}', which is no input")
    return {name: dynamic.get(name) for name in example}


def default_globs(exported, values, reference):
    """Names of the parameters in the graph that require gradients, as globs."""
    names = [p.name for p in onnx_weights.parameters(exported) if values[p.name].requires_grad]
    if not names:
        raise UserError(f"'{reference}': no parameter that the loss reaches requires a "
                        "gradient; set requires_grad, or give --trainable")
    return [re.sub(r"([\\*?\[\],])", r"\\\1", name) for name in names]


def lora_metadata(module):
    """Metadata `mgq.lora` of a module in which PEFT has wrapped models, for mgq-adapter; none
    where Lora cannot tell what they compute, or several differ."""
    found = set()
    for part in module.modules():
        for config in (getattr(part, "peft_config", None) or {}).values():
            plain = getattr(config, "peft_type", None) == "LORA" and not (
                config.use_rslora or config.use_dora or config.rank_pattern or config.alpha_pattern
            )
            targets = getattr(config, "target_modules", None) or ()
            targets = (targets,) if isinstance(targets, str) else tuple(sorted(targets))
            found.add(Lora(config.r, config.lora_alpha, config.lora_dropout, targets) if plain else None)
    return {"mgq.lora": found.pop().to_json()} if len(found) == 1 and None not in found else {}


def unreached(exported, module):
    """A note about parameters that require gradients and that the loss does not reach."""
    reached = set(exported.graph.initializers)
    aliases = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), (parameter, []))[1].append(name)
    left = [names[0] for parameter, names in aliases.values()
            if parameter.requires_grad and not reached & set(names)]
    if not left:
        return []
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return [f"the loss does not reach {', '.join(left[:3])}{more}: left out"]

"""Exports any PyTorch module that returns a loss (docs/Exporting.md)."""

import importlib.util
import re
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from mgq import globs, module_checks, onnx_export, onnx_weights
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
    check_inputs(module, example, reference)
    dynamic = dynamic_shapes(settings, example, reference)
    values = dict(module.named_parameters(remove_duplicate=False))
    check_parameters(values, reference)
    asked = trainable_globs(trainable or settings.get("trainable"), values, reference)
    trained = {name: value for name, value in values.items()
               if value.is_floating_point()
               and (globs.matches(asked, name) if asked else value.requires_grad)}
    reached = module_checks.check_module(module, example, trained, reference)
    exported = onnx_export.export_graph(module, example, opset=opset, dynamic=dynamic)
    if asked is None or len(reached) < len(trained):
        asked = default_globs(exported, reached, reference)
    exported.metadata_props.update(lora_metadata(module) | texts(settings, reference))
    exported.metadata_props["mgq.trainable"] = asked

    def value(name, shape):
        return LazyTensor(shape, lambda: values[name].detach().cpu(), f"parameter '{name}'")

    onnx_weights.save(exported, path, value, no_weights)
    return unreached(module, trained, reached)


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


def check_inputs(module, example, reference):
    """Inputs are a dictionary of tensors, whose names are not those of parameters."""
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
    for name in example:
        if name in module._parameters or name in module._buffers:
            raise UserError(f"'{reference}': '{name}' is an input and a parameter or buffer of the "
                            "module; rename one of them")


def dynamic_shapes(settings, example, reference):
    """torch.export's dynamic_shapes of settings["dynamic"], input -> {axis: name}."""
    dynamic = settings.get("dynamic")
    if not dynamic:
        return None
    for name in dynamic:
        if name not in example:
            raise UserError(f"'{reference}': 'dynamic' names '{name}', which is no input")
    return {name: dynamic.get(name) for name in example}


def trainable_globs(asked, values, reference):
    """The globs that were `asked` for, as one text, each of which matches a parameter; None
    where there are none."""
    if asked is None:
        return None
    text = asked if isinstance(asked, str) else ",".join(map(str, asked))
    for glob in globs.split_globs(text):
        if not any(globs.matches(glob, name) for name in values):
            raise UserError(f"'{reference}': no parameter matches the trainable '{glob}'; there "
                            f"are {few(list(values))}")
    return text


def few(names):
    """The first of `names`, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def check_parameters(values, reference):
    """Parameters must have values, of types that the file can hold."""
    for name, value in values.items():
        if value.is_meta:
            raise UserError(f"'{reference}': parameter '{name}' has no value: it is on the device "
                            "'meta'")
        if value.dtype not in onnx_weights.TORCH_TYPES.values():
            raise UserError(f"not supported yet: '{reference}': parameter '{name}' of type "
                            f"{value.dtype}")


def texts(settings, reference):
    """The metadata of settings."""
    metadata = settings.get("metadata", {})
    good = isinstance(metadata, dict) and all(
        isinstance(text, str) for pair in metadata.items() for text in pair
    )
    if not good:
        raise UserError(f"'{reference}': 'metadata' is a dictionary of texts, not {metadata!r}")
    return metadata


def default_globs(exported, reached, reference):
    """Names of the parameters in the graph that PyTorch gives a gradient, as globs."""
    present = [parameter.name for parameter in onnx_weights.parameters(exported)]
    names = [name for name in present if name in reached]
    if not names:
        raise UserError(f"'{reference}': no parameter that the loss reaches requires a "
                        "gradient; set requires_grad, or give --trainable")
    return ",".join(re.sub(r"([\\*?\[\],])", r"\\\1", name) for name in names)


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


def unreached(module, trained, reached):
    """A note about parameters that should train and that PyTorch gives no gradient."""
    found = {id(trained[name]) for name in reached}
    left = [name for name, parameter in module.named_parameters()
            if name in trained and id(parameter) not in found]
    if not left:
        return []
    return [f"no gradient of the loss reaches {few(left)}: not trained"]

"""Exports MiniGPT4Qwen: from a choice of weights and of what trains to ONNX files."""

import fnmatch
from dataclasses import dataclass

from mgq import minigpt4qwen, onnx_export, onnx_weights, parts
from mgq.architecture import Lora
from mgq.errors import UserError
from mgq.sources import Weights

DYNAMIC = "dynamic"  # --micro-batch: the number of samples stays symbolic
TRACED_SAMPLES = 2  # of a trace that keeps the number of samples symbolic


@dataclass(frozen=True)
class Request:
    """What to export. `weights` brings the architecture; `micro_batch`: samples or DYNAMIC."""

    weights: Weights
    image_token_id: int
    train: str
    images: int = 1
    lora: Lora | None = None
    micro_batch: int | str = 1
    dtype: str = "f32"
    opset: int = 20
    features: bool = False
    no_weights: bool = False


def export(request, path):
    """Writes the model, and with `features` its frozen prefix; returns the module of the
    training graph, without values."""
    architecture = request.weights.architecture
    blocks = architecture.vision.layers
    trained = parts.parse_parts(request.train, request.lora, blocks)
    check_length(architecture, request.images)
    whole = metadata(request, trained)
    if not request.features:
        return write(request, trained, path, whole, minigpt4qwen.MiniGPT4Qwen, None)
    block = parts.features_block(trained, blocks)
    whole["mgq.features"] = parts.features_name(block)
    prefix = onnx_weights.prefix_path(path)
    # Nothing of the prefix trains.
    frozen = {name: value for name, value in whole.items() if name != "mgq.trainable"}
    write(request, trained, prefix, frozen, minigpt4qwen.FrozenPrefix, block)
    return write(request, trained, path, whole, minigpt4qwen.FromFeatures, block)


def check_length(architecture, images):
    """Every image of a sample must find its tokens."""
    needed = images * architecture.queries
    if needed >= architecture.length:
        raise UserError(
            f"--length {architecture.length} has no room for text: {images} images take "
            f"{needed} tokens"
        )


def metadata(request, trained):
    """Metadata of the model, docs/Frontend.md."""
    architecture = request.weights.architecture
    build = minigpt4qwen.metadata(architecture, request.image_token_id, request.images)
    globs = parts.trainable_globs(trained, architecture.vision.layers)
    lora = {"mgq.lora": request.lora.to_json()} if request.lora else {}
    return {
        **build,
        "mgq.trainable": globs,
        "mgq.architecture": architecture.to_json(),
        "mgq.train": str(trained),
        **lora,
    }


def write(request, trained, path, values, part, block):
    """Writes one graph, `part` of the model."""
    model = minigpt4qwen.build(
        request.weights.architecture, request.image_token_id, request.images, request.lora,
        part, block,
    )
    samples, dynamic = request.micro_batch, None
    if samples == DYNAMIC:
        samples = TRACED_SAMPLES
    inputs = minigpt4qwen.example(model, samples)
    if request.micro_batch == DYNAMIC:
        dynamic = {name: {0: onnx_export.BATCH} for name in inputs}
    output = "image_features" if part is minigpt4qwen.FrozenPrefix else "loss"
    exported = onnx_export.export_graph(model, inputs, output, request.opset, dynamic)
    if request.dtype == "bf16":
        globs = values.get("mgq.trainable", "")
        names = [p.name for p in onnx_weights.parameters(exported)]
        names = [name for name in names if stored_as_bf16(name, trained, globs)]
        onnx_export.store_as_bf16(exported, names)
    exported.metadata_props.update(values)
    onnx_weights.save(exported, path, request.weights.tensor, request.no_weights)
    return model


def stored_as_bf16(name, trained, globs):
    """Whether --dtype=bf16 holds for a parameter.

    What trains stays f32, so that no step is lost to rounding when it is saved; but not
    a whole language model, whose checkpoints would be twice as large as the one it came
    from.
    """
    if name.startswith("llm_model.") and "llm" in trained.names:
        return True
    return not any(fnmatch.fnmatchcase(name, glob) for glob in globs.split(","))

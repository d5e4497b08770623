"""What a model and its data agree on (docs/Frontend.md), read from a model or given."""

import math
from dataclasses import dataclass, fields
from pathlib import Path

from mgq.architecture import IMAGE_MEAN, IMAGE_STD
from mgq.errors import UserError


@dataclass(frozen=True)
class Facts:
    """`length` and `tokens_per_image` in tokens, `image_size` in pixels, `images` a sample;
    `features`: name of the value that the graph starts from, None for pixels."""

    image_token_id: int | None = None
    tokens_per_image: int | None = None
    images: int | None = None
    image_size: int | None = None
    length: int | None = None
    vocabulary: int | None = None
    mean: tuple | None = None
    std: tuple | None = None
    features: str | None = None
    # Of the graph's inputs, no metadata: samples it takes at a time, shape of a sample's image_features.
    micro_batch: int | None = None
    features_shape: tuple | None = None

    def to_metadata(self):
        """The metadata of data files."""
        values = {}
        for name, key in KEYS.items():
            value = getattr(self, name)
            if value is not None:
                values[key] = ",".join(map(repr, value)) if isinstance(value, tuple) else str(value)
        if self.features is not None:  # there are no pixels to normalise
            del values[KEYS["mean"]], values[KEYS["std"]]
        return values


SHAPES = ("micro_batch", "features_shape")
KEYS = {field.name: f"mgq.{field.name}" for field in fields(Facts) if field.name not in SHAPES}
KEYS |= {"mean": "pixel_values.mean", "std": "pixel_values.std"}


def three_numbers(text):
    """`0.48,0.46,0.41` as a tuple; ValueError for anything else."""
    values = tuple(float(part) for part in text.split(","))
    if len(values) != 3 or not all(map(math.isfinite, values)):
        raise ValueError("expected three numbers")
    return values


def parse(name, text, where):
    """The value of fact `name` from its metadata."""
    try:
        if name == "features":
            return text
        if name in ("mean", "std"):
            return three_numbers(text)
        value = int(text)
    except ValueError as error:
        raise UserError(f"{where}: metadata {KEYS[name]} is '{text}': {error}") from error
    if value < 0 or (value == 0 and name != "image_token_id"):
        raise UserError(f"{where}: metadata {KEYS[name]} is {value}, expected a positive number")
    return value


def shape_facts(graph):
    """What the shapes of the graph's inputs tell."""
    shapes = {
        value.name: [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    facts = {}
    if len(shapes.get("input_ids", ())) == 2:
        facts["micro_batch"], facts["length"] = shapes["input_ids"]
    pixels = shapes.get("pixel_values", ())
    if len(pixels) in (4, 5):
        facts["image_size"] = pixels[-1]
        facts["images"] = pixels[1] if len(pixels) == 5 else 1
    features = shapes.get("image_features", ())
    if len(features) in (3, 4):
        facts["images"] = features[1] if len(features) == 4 else 1
        facts["features_shape"] = tuple(features[1:])
    return {name: value for name, value in facts.items() if value is not None}


def read_model(path):
    """(Facts, graph) of an ONNX file: its metadata, else its inputs' shapes. External data is not read."""
    import onnx
    from google.protobuf.message import DecodeError

    if not Path(path).is_file():
        raise UserError(f"model '{path}' does not exist")
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except (DecodeError, OSError) as error:
        raise UserError(f"model '{path}' cannot be read as ONNX: {error}") from error
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    found = shape_facts(model.graph)
    for name, key in KEYS.items():
        if key in metadata:
            value = parse(name, metadata[key], path)
            if found.get(name, value) != value:
                raise UserError(
                    f"{path}: metadata {key} is {value}, but the graph's inputs have {found[name]}"
                )
            found[name] = value
    return Facts(**found), model.graph


def option(name):
    """The option that gives a fact."""
    return "--" + name.replace("_", "-")


def combine(model, given, path):
    """Facts of the model (None: no model) and of the command line, complete.

    `given`: Facts of the options. Raises where both tell and differ, and where neither tells.
    """
    values = {}
    for name in (*KEYS, *SHAPES):
        ours, theirs = getattr(given, name), getattr(model, name, None)
        if ours is not None and theirs is not None and ours != theirs:
            raise UserError(f"{option(name)} is {ours}, but model '{path}' has {theirs}")
        values[name] = theirs if ours is None else ours
    defaults = {"images": 1, "micro_batch": 1, "mean": IMAGE_MEAN, "std": IMAGE_STD}
    for name, value in defaults.items():
        if values[name] is None:
            values[name] = value
    needed = ("tokens_per_image", "image_size", "length")
    missing = [option(name) for name in needed if values[name] is None]
    if missing:
        where = f"model '{path}' does not tell them" if path else "there is no --model to tell them"
        raise UserError(f"missing: {', '.join(missing)}; {where}")
    if min(values["std"]) <= 0:
        raise UserError(f"pixel_values.std (--std) is {values['std']}, expected positive numbers")
    return Facts(**values)

"""Where weights come from: sizes (random), Hugging Face folders, LAVIS files, Qwen folders.

A source gives `fields`, its share of an Architecture, and `tensor(name, shape)`, the
LazyTensor of a parameter by its name in MiniGPT4Qwen without LoRA.
"""

import re
from dataclasses import dataclass

from mgq.architecture import Architecture
from mgq.errors import UserError
from mgq.sources.random import RandomSource

LORA_WRAPPER = re.compile(r"^llm_model\.base_model\.model\.")


def base_name(name):
    """A parameter's name in a model without LoRA."""
    return LORA_WRAPPER.sub("llm_model.", name).replace(".base_layer.", ".")


def find(tensors, key, shape, where):
    """The tensor `key` of `tensors`, which come from `where`; checks its shape."""
    tensor = tensors.get(key)
    if tensor is None:
        raise UserError(f"'{where}' has no tensor '{key}'")
    if tuple(tensor.shape) != tuple(shape):
        raise UserError(f"{tensor.origin} has shape {list(tensor.shape)}, expected {list(shape)}")
    if tensor.dtype is not None and not tensor.dtype.is_floating_point:
        raise UserError(f"not supported yet: {tensor.origin} has type {tensor.dtype}, as weights "
                        "that were quantised have; give those in f32, f16 or bf16")
    return tensor


@dataclass(frozen=True)
class Weights:
    """The weights of a model: each source by the start of the names that it serves.

    Adapters, and what no source serves, come from `new`.
    """

    architecture: Architecture
    new: RandomSource
    sources: dict

    def tensor(self, name, shape):
        """The LazyTensor of the parameter `name`."""
        for start, source in self.sources.items():
            if name.startswith(start) and ".lora_" not in name:
                return source.tensor(base_name(name), shape)
        return self.new.tensor(name, shape)

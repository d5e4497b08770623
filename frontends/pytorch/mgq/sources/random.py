"""Random weights, one parameter at a time: a parameter's values depend on seed and name."""

import math
import zlib

import torch

from mgq.tensor_files import LazyTensor

DEVIATION = 0.02  # of weights, as in Hugging Face's models


class RandomSource:
    """Values as the models' own initialization gives them."""

    def __init__(self, seed):
        self.seed = seed

    def tensor(self, name, shape):
        """The LazyTensor of the parameter `name`."""
        return LazyTensor(tuple(shape), lambda: self.draw(name, shape), f"random '{name}'")

    def draw(self, name, shape):
        """Norms are 1, biases 0; LoRA and projection as PEFT and torch.nn.Linear have them."""
        last = name.rsplit(".", 1)[-1]
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ self.seed)
        if ".lora_B." in name or (last == "bias" and not name.startswith("llm_proj.")):
            return torch.zeros(shape)
        if last == "weight" and len(shape) == 1:
            return torch.ones(shape)
        if ".lora_A." in name or name == "llm_proj.weight":
            bound = 1 / math.sqrt(shape[1])
            return torch.empty(shape).uniform_(-bound, bound, generator=generator)
        return torch.randn(shape, generator=generator).mul_(DEVIATION)

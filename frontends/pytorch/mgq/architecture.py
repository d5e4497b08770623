"""Shapes of MiniGPT4Qwen and of its adapters, and their form in a model's metadata.

Free of torch, so that commands that need no model start at once.
"""

import json
from dataclasses import asdict, dataclass

IGNORED = -100  # a label that does not count

# Of the images that EVA-CLIP was trained with; red, green, blue, of values in 0..1.
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Tower:
    """A transformer: blocks, model width, attention heads, hidden width of the MLP."""

    layers: int
    width: int
    heads: int
    mlp: int


@dataclass(frozen=True)
class Architecture:
    """The shapes of a model. `image` and `patch` in pixels, `length` in tokens."""

    vision: Tower
    qformer: Tower
    language: Tower
    image: int
    patch: int
    queries: int  # tokens per image
    vocabulary: int
    length: int
    key_value_heads: int | None = None  # of the language model; None: as many as heads
    rope_theta: float = 10000.0
    language_norm_epsilon: float = 1e-6
    vision_norm_epsilon: float = 1e-6
    post_norm_epsilon: float | None = None  # of the norm after the ViT; None: as inside
    qformer_norm_epsilon: float = 1e-12
    tied_embeddings: bool = False
    # Q-Former: every `cross_attention_frequency`th layer reads the image.
    cross_attention_frequency: int = 2

    def to_json(self):
        """One line, for metadata `mgq.architecture`."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text):
        """Reads what to_json wrote."""
        values = json.loads(text)
        for tower in ("vision", "qformer", "language"):
            values[tower] = Tower(**values[tower])
        return Architecture(**values)


@dataclass(frozen=True)
class Lora:
    """Adapters on the language model, as peft.LoraConfig means it."""

    rank: int = 8
    alpha: float = 32
    dropout: float = 0.0
    targets: tuple = ("q_proj", "v_proj")

    def to_json(self):
        """One line, for metadata `mgq.lora`."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text):
        """Reads what to_json wrote."""
        values = json.loads(text)
        values["targets"] = tuple(values["targets"])
        return Lora(**values)


SIZES = {
    "tiny": Architecture(
        vision=Tower(2, 32, 2, 64),
        qformer=Tower(2, 32, 2, 64),
        language=Tower(2, 64, 4, 128),
        image=28, patch=14, queries=4, vocabulary=256, length=24,
    ),
    "small": Architecture(
        vision=Tower(12, 384, 6, 1536),
        qformer=Tower(6, 256, 4, 1024),
        language=Tower(12, 768, 12, 2048),
        image=224, patch=14, queries=32, vocabulary=16384, length=256,
    ),
    "7b": Architecture(
        vision=Tower(39, 1408, 16, 6144),
        qformer=Tower(12, 768, 12, 3072),
        language=Tower(32, 4096, 32, 11008),
        image=224, patch=14, queries=32, vocabulary=151936, length=512,
    ),
    "14b": Architecture(
        vision=Tower(39, 1408, 16, 6144),
        qformer=Tower(12, 768, 12, 3072),
        language=Tower(40, 5120, 40, 13696),
        image=224, patch=14, queries=32, vocabulary=152064, length=512,
    ),
}

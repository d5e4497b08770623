"""Weights in Hugging Face folders: BLIP-2 (whole, or its parts) and Qwen2."""

import math
from pathlib import Path

from mgq.architecture import Tower
from mgq.errors import UserError
from mgq.sources import find
from mgq.sources.positions import resize
from mgq.tensor_files import open_folder, read_json

BLIP2 = "a BLIP-2 folder (model_type blip-2)"
REFUSED_ROPE = "not supported yet: {where}: rotary embedding of type '{kind}'; 'default' is"


class FolderSource:
    """Parameters that a folder has under the same names, behind another start."""

    def __init__(self, folder, tensors, ours, theirs):
        """Our name `ours` + REST is tensor `theirs` + REST of `tensors`."""
        self.folder = folder
        self.tensors = tensors
        self.ours = ours
        self.theirs = theirs

    def key(self, name):
        """The folder's name of our parameter `name`."""
        return self.theirs + name.removeprefix(self.ours)

    def tensor(self, name, shape):
        """The LazyTensor of our parameter `name`."""
        return find(self.tensors, self.key(name), shape, self.folder)


class VisionSource(FolderSource):
    """A ViT, of another image size than it was trained with where that is asked for."""

    def tensor(self, name, shape):
        """The LazyTensor of our parameter `name`."""
        if name.endswith(".position_embedding"):
            return resize(self.tensors, self.key(name), shape, self.folder)
        return super().tensor(name, shape)


class TiedSource(FolderSource):
    """A language model whose embedding table is its head too: stored once, asked for by
    either name."""

    def key(self, name):
        """The folder's name of our parameter `name`."""
        return super().key(name.replace("lm_head.weight", "model.embed_tokens.weight"))


def need(config, key, where):
    """The value of `key` in the config of `where`."""
    if key not in config:
        raise UserError(f"'{where}/config.json' has no '{key}'")
    return config[key]


def count(config, key, where, default=None):
    """The whole number from 1 that is the value of `key`; `default` where it has none."""
    value = config.get(key)
    value = default if value is None and default is not None else need(config, key, where)
    if type(value) is not int or value < 1:
        raise UserError(f"'{where}/config.json': {key} is {value!r}, expected a whole number from 1")
    return value


def positive(config, key, where, default):
    """The number above 0 that is the value of `key`; `default` where it has none."""
    value = config.get(key)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UserError(f"'{where}/config.json': {key} is {value!r}, expected a number above 0")
    return float(value)


def require(config, key, wanted, where, default=None):
    """The setting `key` must be `wanted`; `default` is what its absence means."""
    found = config.get(key, wanted if default is None else default)
    if found != wanted:
        raise UserError(f"not supported yet: '{where}/config.json': {key} {found!r}; "
                        f"{wanted!r} is")


def tower(config, where):
    """The Tower of a config."""
    numbers = Tower(*(count(config, key, where) for key in (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")))
    if numbers.width % numbers.heads:
        raise UserError(f"'{where}/config.json': hidden_size {numbers.width} is not a multiple of "
                        f"num_attention_heads {numbers.heads}")
    return numbers


def with_defaults(config, kind):
    """A BLIP-2 part's config with the values that transformers leaves out as defaults."""
    from transformers import Blip2QFormerConfig, Blip2VisionConfig

    made = {"vision": Blip2VisionConfig, "qformer": Blip2QFormerConfig}[kind]()
    return {**made.to_dict(), **config}


def part_of_blip2(folder, whole, alone, inner):
    """(config of a part, what its tensors' names begin with) of a BLIP-2 folder or of a
    folder of that part alone. `inner`: where the whole model has the part."""
    config = read_json(Path(folder) / "config.json")
    kind = config.get("model_type")
    if kind == "blip-2":
        return config.get(whole, {}), inner
    if kind == alone:
        return config, ""
    raise UserError(f"'{folder}/config.json' has model_type '{kind}'; expected blip-2 or {alone}")


def square(value, what, folder):
    """One number of a size that may be given as two."""
    sides = {value} if isinstance(value, int) else set(value)
    if len(sides) != 1:
        raise UserError(f"not supported yet: '{folder}': {what} {value} is not square")
    return sides.pop()


def open_vision(folder):
    """(fields, source) of the ViT in a folder."""
    config, start = part_of_blip2(folder, "vision_config", "blip_2_vision_model",
                                  "vision_model.")
    config = with_defaults(config, "vision")
    require(config, "hidden_act", "gelu", folder)
    require(config, "qkv_bias", True, folder)
    fields = {
        "vision": tower(config, folder),
        "image": square(config["image_size"], "image_size", folder),
        "patch": square(config["patch_size"], "patch_size", folder),
        "vision_norm_epsilon": config["layer_norm_eps"],
    }
    return fields, VisionSource(folder, open_folder(folder), "visual_encoder.", start)


class QFormerSource(FolderSource):
    """A Q-Former and its query tokens."""

    def key(self, name):
        """The folder's name of our parameter `name`."""
        return name if name == "query_tokens" else super().key(name)


def open_qformer(folder):
    """(fields, source) of the Q-Former in a folder."""
    config, start = part_of_blip2(folder, "qformer_config", "blip_2_qformer", "qformer.")
    config = with_defaults(config, "qformer")
    require(config, "hidden_act", "gelu", folder)
    tensors = open_folder(folder)
    if "query_tokens" not in tensors:
        raise UserError(f"'{folder}' has no tensor 'query_tokens'; give {BLIP2}, or a folder "
                        "of the Q-Former whose weights have it too")
    fields = {
        "qformer": tower(config, folder),
        "queries": tensors["query_tokens"].shape[1],
        "qformer_norm_epsilon": config["layer_norm_eps"],
        "cross_attention_frequency": config["cross_attention_frequency"],
    }
    return fields, QFormerSource(folder, tensors, "Qformer.", start)


def open_qwen2(folder, length):
    """(fields, source) of a Qwen2 or Qwen1.5 folder, for sequences of `length` tokens."""
    config = read_json(Path(folder) / "config.json")
    require(config, "hidden_act", "silu", folder)
    check_window(config, folder, length)
    limit = config.get("max_position_embeddings", length)
    if length > limit:
        raise UserError(f"--length {length} is beyond the {limit} positions of '{folder}'")
    language = tower(config, folder)
    shared = count(config, "num_key_value_heads", folder, language.heads)
    if language.heads % shared:
        raise UserError(f"'{folder}/config.json': num_attention_heads {language.heads} is not a "
                        f"multiple of num_key_value_heads {shared}")
    fields = {
        "language": language,
        "vocabulary": count(config, "vocab_size", folder),
        "key_value_heads": shared,
        "rope_theta": rope_theta(config, folder),
        "language_norm_epsilon": positive(config, "rms_norm_eps", folder, 1e-6),
        "tied_embeddings": config.get("tie_word_embeddings", False),
    }
    kind = TiedSource if fields["tied_embeddings"] else FolderSource
    return fields, kind(folder, open_folder(folder), "llm_model.", "")


def rope_theta(config, where):
    """Base of the rotary embedding, in the old and the new form of config.json."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(REFUSED_ROPE.format(where=f"'{where}/config.json'", kind=kind))
    return positive(rope if "rope_theta" in rope else config, "rope_theta", where, 10000.0)


def check_window(config, where, length):
    """Sliding windows are refused where they would matter."""
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return
    windowed = config.get("max_window_layers", 28) < need(config, "num_hidden_layers", where)
    if windowed and length > config["sliding_window"]:
        raise UserError(
            f"not supported yet: '{where}/config.json' has a sliding window of "
            f"{config['sliding_window']} tokens, and --length is {length}"
        )

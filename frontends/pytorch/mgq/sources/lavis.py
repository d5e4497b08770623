"""Weights in checkpoint files of LAVIS and MPP-LLaVA.

The ViT is `eva_vit_g.pth`; the Q-Former, its queries and the norm before it are in a
BLIP-2 checkpoint such as `blip2_pretrained_flant5xxl.pth`; a projection is in one of
MPP-LLaVA's. The files hold no sizes but the tensors' own.
"""

import re

import torch

from mgq.architecture import Tower
from mgq.errors import UserError
from mgq.sources import find
from mgq.sources.positions import resize
from mgq.tensor_files import LazyTensor, open_torch

VISION_HEAD = 88  # width of an attention head of EVA-ViT-g
BERT_HEAD = 64  # and of BERT
POST_NORM_EPSILON = 1e-5  # of ln_vision, torch's default; the ViT's own norms have 1e-6

BLOCK = re.compile(r"visual_encoder\.encoder\.layers\.(\d+)\.(.*)")
BLOCK_NAMES = {
    "self_attn.qkv.weight": "attn.qkv.weight",
    "self_attn.projection": "attn.proj",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
EMBEDDINGS = {
    "visual_encoder.embeddings.class_embedding": "cls_token",
    "visual_encoder.embeddings.patch_embedding.weight": "patch_embed.proj.weight",
    "visual_encoder.embeddings.patch_embedding.bias": "patch_embed.proj.bias",
}


def checkpoint(content):
    """The tensors in a checkpoint: LAVIS puts them behind "model"."""
    return content["model"] if isinstance(content.get("model"), dict) else content


def open_checkpoint(path):
    """name -> LazyTensor of a checkpoint file."""
    return open_torch(path, checkpoint)


def count(tensors, pattern):
    """How many different numbers `pattern`'s group has among the names."""
    found = {int(m[1]) for m in map(re.compile(pattern).match, tensors) if m}
    return max(found) + 1 if found else 0


def width(tensors, key, axis, where):
    """Size of tensor `key` along `axis`."""
    if key not in tensors:
        raise UserError(f"'{where}' has no tensor '{key}'")
    shape = tensors[key].shape
    if len(shape) <= axis:
        raise UserError(f"{tensors[key].origin} has shape {list(shape)}")
    return shape[axis]


def heads(whole, head, what, where):
    """Number of attention heads of width `head`."""
    if whole % head:
        raise UserError(f"'{where}': the {what}'s width {whole} is not a multiple of {head}, "
                        "the width of its attention heads")
    return whole // head


class EvaSource:
    """The ViT's parameters in a LAVIS file. `norm`: the source of the norm after it."""

    def __init__(self, path, tensors, start, norm):
        self.path = path
        self.tensors = tensors
        self.start = start
        self.norm = norm

    def tensor(self, name, shape):
        """The LazyTensor of our parameter `name`."""
        if name.startswith("visual_encoder.post_layernorm."):
            return self.norm.tensor(name, shape)
        if name == "visual_encoder.embeddings.position_embedding":
            return resize(self.tensors, self.start + "pos_embed", shape, self.path)
        if name in EMBEDDINGS:
            return self.find(EMBEDDINGS[name], shape)
        block, rest = BLOCK.fullmatch(name).groups()
        if rest == "self_attn.qkv.bias":
            return self.bias(f"blocks.{block}.attn.", shape)
        theirs = BLOCK_NAMES.get(rest)
        if theirs is None:
            module, last = rest.rsplit(".", 1)
            theirs = f"{BLOCK_NAMES[module]}.{last}"
        return self.find(f"blocks.{block}.{theirs}", shape)

    def find(self, key, shape):
        return find(self.tensors, self.start + key, shape, self.path)

    def bias(self, attention, shape):
        """Biases of queries, keys (none) and values as one."""
        third = (shape[0] // 3,)
        query, value = (self.find(attention + name, third) for name in ("q_bias", "v_bias"))

        def load():
            query_bias, value_bias = query.load(), value.load()
            return torch.cat([query_bias, torch.zeros_like(query_bias), value_bias])

        return LazyTensor(tuple(shape), load, query.origin)


def open_vision(path, norm):
    """(fields, source) of the ViT in a LAVIS file; `norm`: as EvaSource.

    A file of the ViT alone has one block more than BLIP-2 uses; a whole BLIP-2
    checkpoint has those that it uses.
    """
    tensors = open_checkpoint(path)
    whole = "visual_encoder.cls_token" in tensors
    start = "visual_encoder." if whole else ""
    blocks = count(tensors, re.escape(start) + r"blocks\.(\d+)\.") - (not whole)
    if blocks < 1:
        raise UserError(f"'{path}' is no EVA-ViT of LAVIS: it has no tensors 'blocks.N.*'")
    size = width(tensors, start + "cls_token", 2, path)
    patch = width(tensors, start + "patch_embed.proj.weight", 3, path)
    patches = width(tensors, start + "pos_embed", 1, path) - 1
    fields = {
        "vision": Tower(blocks, size, heads(size, VISION_HEAD, "ViT", path),
                        width(tensors, start + "blocks.0.mlp.fc1.weight", 0, path)),
        "image": round(patches**0.5) * patch,
        "patch": patch,
        "vision_norm_epsilon": 1e-6,
        "post_norm_epsilon": POST_NORM_EPSILON,
    }
    return fields, EvaSource(path, tensors, start, norm)


class BertSource:
    """Q-Former, queries and the norm after the ViT in a BLIP-2 checkpoint of LAVIS."""

    def __init__(self, path, tensors):
        self.path = path
        self.tensors = tensors

    def key(self, name):
        """The file's name of our parameter `name`."""
        for ours, theirs in (
            ("visual_encoder.post_layernorm.", "ln_vision."),
            ("Qformer.layernorm.", "Qformer.bert.embeddings.LayerNorm."),
            ("Qformer.", "Qformer.bert."),
        ):
            if name.startswith(ours):
                name = theirs + name.removeprefix(ours)
                break
        # BERT has the projections of an attention in a module `self`.
        return re.sub(r"attention\.attention\.", "attention.self.", name)

    def tensor(self, name, shape):
        """The LazyTensor of our parameter `name`."""
        return find(self.tensors, self.key(name), shape, self.path)


def open_qformer(path):
    """(fields, source) of the Q-Former in a LAVIS file."""
    tensors = open_checkpoint(path)
    layer = "Qformer.bert.encoder.layer."
    layers = count(tensors, re.escape(layer) + r"(\d+)\.")
    if not layers:
        raise UserError(f"'{path}' is no BLIP-2 checkpoint of LAVIS: it has no tensors "
                        f"'{layer}N.*'")
    size = width(tensors, "query_tokens", 2, path)
    crossed = [n for n in range(layers)
               if f"{layer}{n}.crossattention.self.query.weight" in tensors]
    frequency = crossed[1] if len(crossed) > 1 else layers
    if crossed != list(range(0, layers, frequency)):
        raise UserError(f"not supported yet: '{path}': layers {crossed} of the Q-Former look "
                        "at the image; every Nth from 0 is supported")
    fields = {
        "qformer": Tower(
            layers, size, heads(size, BERT_HEAD, "Q-Former", path),
            width(tensors, f"{layer}0.intermediate_query.dense.weight", 0, path)),
        "queries": width(tensors, "query_tokens", 1, path),
        "qformer_norm_epsilon": 1e-12,
        "cross_attention_frequency": frequency,
    }
    return fields, BertSource(path, tensors)


class ProjectionSource:
    """A trained projection in a checkpoint file."""

    def __init__(self, path):
        self.path = path
        self.tensors = open_checkpoint(path)

    def tensor(self, name, shape):
        """The LazyTensor of `llm_proj.weight` or `llm_proj.bias`.

        Checkpoints of MPP-LLaVA's pipeline have it behind `visionpipe.`.
        """
        keys = [key for key in (name, f"visionpipe.{name}") if key in self.tensors]
        return find(self.tensors, keys[0] if keys else name, shape, self.path)

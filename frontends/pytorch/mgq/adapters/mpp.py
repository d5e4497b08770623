"""Checkpoints of MPP-LLaVA: one model.pth with the keys of its modules.

Its language model is first-generation Qwen, whose attention has one matrix for queries,
keys and values. Adapters on a part of it are nothing that PEFT could load there, so they
go into the weights of the layers that they adapt.
"""

from pathlib import Path

import torch

from mgq.adapters.names import lora_name
from mgq.errors import UserError
from mgq.sources import base_name
from mgq.sources.lavis import BLOCK, BLOCK_NAMES, EMBEDDINGS, BertSource, EvaSource
from mgq.sources.qwen import BLOCK as QWEN_BLOCK
from mgq.sources.qwen import BLOCK_NAMES as QWEN_NAMES
from mgq.sources.qwen import OUTSIDE, THIRDS, QwenSource
from mgq.tensor_files import LazyTensor, open_torch

FILE = "model.pth"
VISION = "visual_encoder."
LANGUAGE = "llm_model."
POSITIONS = VISION + "embeddings.position_embedding"
EMBEDDED = LANGUAGE + "model.embed_tokens.weight"
HEAD = LANGUAGE + "lm_head.weight"


class Merged:
    """The weights of `model` by base names, with the trained values and adapters in them."""

    def __init__(self, tensors, model):
        self.values = {}  # base name -> LazyTensor
        self.adapters = {}  # base name of the adapted weight -> {"A": LazyTensor, "B": ...}
        self.touched = []  # base names of what training changed
        for name in {**model.parameters, **tensors}:
            tensor = tensors.get(name) or model.parameters[name]
            lora = lora_name(name)
            base = f"{LANGUAGE}{lora.module}.weight" if lora else base_name(name)
            if lora:
                self.adapters.setdefault(base, {})[lora.side] = tensor
            else:
                self.values[base] = tensor
            if name in tensors and base not in self.touched:
                self.touched.append(base)
        self.factor = model.lora.alpha / model.lora.rank if self.adapters else 0
        self.model = model

    def load(self, name):
        """The value of a weight, in its stored type."""
        value = self.find(name).load()
        matrices = self.adapters.get(name)
        if not matrices:
            return value
        change = matrices["B"].load().float() @ matrices["A"].load().float() * self.factor
        return (value.float() + change).to(value.dtype)

    def find(self, name):
        if name not in self.values:
            raise UserError(f"'{self.model.path}' has no parameter '{name}'")
        return self.values[name]


def check_language(model):
    """Refuses a language model that first-generation Qwen is not."""
    architecture = model.architecture
    groups = architecture.key_value_heads
    if groups not in (None, architecture.language.heads):
        raise UserError(
            f"not supported yet: --to=mpp with trained weights of a language model with {groups} "
            f"key and value heads for {architecture.language.heads} query heads; "
            "first-generation Qwen has as many of each"
        )


def keys_of(name):
    """MPP-LLaVA's keys for the weight `name`, each with a function of the weights, given by
    `load`, that gives its value."""
    if name.startswith(LANGUAGE):
        return language_keys(name)
    if name == POSITIONS:
        return {VISION + "pos_embed": lambda load: load(name)}
    if name in EMBEDDINGS:
        return {VISION + EMBEDDINGS[name]: lambda load: load(name)}
    block = BLOCK.fullmatch(name)
    if not block:
        return {BertSource("", {}).key(name): lambda load: load(name)}
    number, rest = block.groups()
    start = f"{VISION}blocks.{number}."
    if rest == "self_attn.qkv.bias":  # a bias of keys changes no attention: there is none
        return {
            f"{start}attn.q_bias": lambda load: load(name).chunk(3)[0],
            f"{start}attn.v_bias": lambda load: load(name).chunk(3)[2],
        }
    module, last = rest.rsplit(".", 1)
    theirs = BLOCK_NAMES.get(rest) or f"{BLOCK_NAMES[module]}.{last}"
    return {start + theirs: lambda load: load(name)}


def language_keys(name):
    """keys_of for the language model: parts of attention's matrix bring the others with them."""
    if name in OUTSIDE:
        return {LANGUAGE + OUTSIDE[name]: lambda load: load(name)}
    number, module, last = QWEN_BLOCK.fullmatch(name).groups()
    start = f"{LANGUAGE}transformer.h.{number}."
    part = module.removeprefix("self_attn.")
    if part not in THIRDS:
        return {f"{start}{QWEN_NAMES[module]}.{last}": lambda load: load(name)}
    thirds = [name.replace(part, third) for third in THIRDS]
    return {f"{start}attn.c_attn.{last}": lambda load: torch.cat([load(t) for t in thirds])}


def write_file(folder, tensors, model):
    """Writes FOLDER/model.pth; returns notes for the user."""
    if model.architecture is None:
        raise UserError(f"--to=mpp is for exports of 'mgq-export minigpt4qwen'; '{model.path}' has "
                        "no metadata mgq.architecture")
    merged = Merged(tensors, model)
    if any(name.startswith(LANGUAGE) for name in merged.touched):
        check_language(model)
    keys = {}
    for name in merged.touched:
        keys |= keys_of(name)
    if model.architecture.tied_embeddings and HEAD in merged.touched:
        keys[LANGUAGE + OUTSIDE[EMBEDDED]] = lambda load: load(HEAD)
    with spilled(folder) as spill:
        state = {key: spill(value(merged.load)) for key, value in keys.items()}
        try:
            torch.save(state, Path(folder) / FILE)
        except (OSError, RuntimeError) as error:
            raise UserError(f"cannot write '{FILE}': {error}") from error
    if merged.adapters:
        return [f"{len(merged.adapters)} adapters are merged into the weights of their layers"]
    return []


class spilled:
    """Keeps tensors in files of `folder` until the end, so that few are in memory at a time."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.files = []

    def __enter__(self):
        return self.keep

    def keep(self, tensor):
        """A copy of the tensor, mapped from a file."""
        if not tensor.numel():
            return tensor.clone()
        path = self.folder / f".spilled-{len(self.files)}"
        self.files.append(path)
        try:
            with open(path, "wb") as file:
                file.truncate(tensor.numel() * tensor.element_size())
        except OSError as error:
            raise UserError(f"cannot write '{path}': {error.strerror}") from error
        mapped = torch.from_file(str(path), shared=True, size=tensor.numel(), dtype=tensor.dtype)
        return mapped.copy_(tensor.reshape(-1)).view(tensor.shape)

    def __exit__(self, *_):
        for path in self.files:
            path.unlink(missing_ok=True)


def tensors_of(content):
    """The dictionary of tensors in a checkpoint: LAVIS puts them behind "model", DeepSpeed
    behind "module"."""
    for key in ("model", "module"):
        if isinstance(content.get(key), dict):
            return content[key]
    return content


def open_file(path):
    """key -> LazyTensor; keys of the pipeline's first layer have `visionpipe.` before them."""
    if Path(path).suffix == ".safetensors":
        raise UserError(f"'{path}' is a safetensors file; expected a folder of PEFT, or a checkpoint "
                        ".pth of MPP-LLaVA")
    tensors = open_torch(path, tensors_of)
    return {key.removeprefix("visionpipe."): tensor for key, tensor in tensors.items()}


class Projection:
    """Keys that are the same here and there."""

    def __init__(self, path, tensors):
        self.path = path
        self.tensors = tensors

    def tensor(self, name, shape):
        return self.tensors[name]


def read_file(path, model, names):
    """Those of the parameters `names` of `model` that a checkpoint has, as name -> LazyTensor,
    and how many of its tensors are none of them."""
    tensors = open_file(path)
    bert = BertSource(path, tensors)
    language = {key.removeprefix(LANGUAGE): t for key, t in tensors.items() if key.startswith(LANGUAGE)}
    sources = {
        VISION: EvaSource(path, tensors, VISION, bert),
        LANGUAGE: QwenSource(path, language),
        "Qformer.": bert,
        "query_tokens": bert,
        "llm_proj.": Projection(path, tensors),
    }
    found, used = {}, set()
    for name in names:
        keys = () if lora_name(name) else keys_of(base_name(name))
        if not keys or any(key not in tensors for key in keys):
            continue
        source = next(s for start, s in sources.items() if name.startswith(start))
        found[name] = checked(source.tensor(base_name(name), model.parameters[name].shape), name, model)
        used.update(keys)
    if not found:
        raise UserError(f"'{path}' has none of the parameters that '{model.path}' trains")
    return found, len(set(tensors) - used)


def checked(tensor, name, model):
    """A tensor of the parameter's shape."""
    wanted = model.parameters[name].shape
    if tensor.shape != wanted:
        raise UserError(f"{tensor.origin} has shape {list(tensor.shape)}, the parameter '{name}' of "
                        f"'{model.path}' has {list(wanted)}")
    return LazyTensor(tensor.shape, tensor.load, tensor.origin, tensor.dtype)

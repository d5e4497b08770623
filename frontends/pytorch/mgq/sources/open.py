"""The weights that the options of mgq-export name."""

import dataclasses
from pathlib import Path

from mgq.architecture import SIZES, Architecture
from mgq.errors import UserError
from mgq.sources import Weights, huggingface, lavis, qwen
from mgq.sources.random import RandomSource
from mgq.tensor_files import read_json

LANGUAGE_MODELS = {"qwen2": huggingface.open_qwen2, "qwen": qwen.open_qwen}
DEFAULT_LENGTH = 512  # tokens, of MPP-LLaVA


def open_size(size, seed, length=None, image=None):
    """Random weights of one of SIZES; `length` and `image` in place of its own."""
    architecture = SIZES[size]
    changes = {"length": length, "image": image}
    changes = {name: value for name, value in changes.items() if value is not None}
    return checked(Weights(dataclasses.replace(architecture, **changes), RandomSource(seed), {}))


def open_checkpoints(vision, qformer, llm, projection=None, seed=0, length=None, image=None):
    """Weights from files and folders, a projection from `seed` where none is given.

    `vision`, `qformer`: a Hugging Face folder or a LAVIS file each; `llm`: a folder;
    `image`: another image size in pixels than the ViT's own.
    """
    for path in (vision, qformer, llm, projection):
        if path is not None and not Path(path).exists():
            raise UserError(f"'{path}' does not exist")
    length = length or DEFAULT_LENGTH
    qformer_fields, qformer_source = open_part(huggingface, qformer, "open_qformer")
    if Path(vision).is_dir():
        vision_fields, vision_source = huggingface.open_vision(vision)
    elif isinstance(qformer_source, lavis.BertSource):
        vision_fields, vision_source = lavis.open_vision(vision, qformer_source)
    else:
        raise UserError(f"--vision '{vision}' is a file of LAVIS, whose last norm is in its "
                        f"Q-Former's file; --qformer '{qformer}' is a folder")
    language_fields, language_source = open_language(llm, length)
    fields = {**vision_fields, **qformer_fields, **language_fields, "length": length}
    if image is not None:
        fields["image"] = image
    sources = {
        "visual_encoder.": vision_source,
        "query_tokens": qformer_source,
        "Qformer.": qformer_source,
        "llm_model.": language_source,
    }
    if projection is not None:
        sources["llm_proj."] = lavis.ProjectionSource(projection)
    return checked(Weights(Architecture(**fields), RandomSource(seed), sources))


def open_part(folders, path, opener):
    """What `opener` of `folders`, or for a file of LAVIS that of lavis, gives for `path`."""
    return getattr(folders if Path(path).is_dir() else lavis, opener)(path)


def open_language(folder, length):
    """(fields, source) of a language model's folder."""
    if not Path(folder).is_dir():
        raise UserError(f"--llm '{folder}' is not a folder")
    kind = read_json(Path(folder) / "config.json").get("model_type")
    if kind not in LANGUAGE_MODELS:
        raise UserError(f"not supported yet: '{folder}' holds a language model of type "
                        f"'{kind}'; {' and '.join(LANGUAGE_MODELS)} are")
    return LANGUAGE_MODELS[kind](folder, length)


def checked(weights):
    """Sizes that do not fit one another are the user's to hear of."""
    architecture = weights.architecture
    if architecture.image < 1 or architecture.image % architecture.patch:
        raise UserError(f"an image of {architecture.image} pixels is not a whole number of "
                        f"patches of {architecture.patch}")
    return weights


def lora_targets(weights, lora):
    """`lora` with the names that its targets have in the model: those of first-generation
    Qwen are other ones."""
    if lora is None or not isinstance(weights.sources.get("llm_model."), qwen.QwenSource):
        return lora
    names = [qwen.TARGETS.get(target, target) for target in lora.targets]
    return dataclasses.replace(lora, targets=tuple(dict.fromkeys(",".join(names).split(","))))

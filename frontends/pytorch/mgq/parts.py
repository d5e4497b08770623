"""What trains: the text of --train and --lora, and the names of parameters it means."""

from dataclasses import dataclass

from mgq.architecture import Lora
from mgq.errors import UserError

PARTS = ("projection", "lora", "queries", "pos_embed", "qformer", "vit_last=K", "llm")


@dataclass(frozen=True)
class Parts:
    """The parts that train; `vit_last`: how many of the ViT's last blocks."""

    names: tuple
    vit_last: int = 0

    def __str__(self):
        """As --train takes it."""
        return ",".join(
            f"{name}={self.vit_last}" if name == "vit_last" else name for name in self.names
        )


def parse_parts(text, lora, blocks):
    """Reads --train for a model with `lora` (None: without) and a ViT of `blocks` blocks."""
    names, vit_last = [], 0
    for word in text.split(","):
        name, equals, number = word.partition("=")
        if name not in [part.partition("=")[0] for part in PARTS] or \
                bool(equals) != (name == "vit_last"):
            raise UserError(f"--train: '{word}' is no part of the model; "
                            f"the parts are {', '.join(PARTS)}")
        if name in names:
            raise UserError(f"--train: '{name}' is given twice")
        if equals:
            if not number.isdigit() or not 1 <= int(number) <= blocks:
                raise UserError(f"--train: '{word}': the ViT has {blocks} blocks, "
                                f"K must be from 1 to {blocks}")
            vit_last = int(number)
        names.append(name)
    check_lora(names, lora)
    return Parts(tuple(names), vit_last)


def check_lora(names, lora):
    """The parts and --lora must mean the same."""
    if "lora" in names and not lora:
        raise UserError("--train has 'lora', but the model has no adapters; add --lora")
    if lora and "llm" in names:
        raise UserError("--train has 'llm', which trains the whole language model, and --lora "
                        "adds adapters, which are for a frozen one; leave one out")
    if lora and "lora" not in names:
        raise UserError("--lora adds adapters, but --train does not train them; add 'lora' "
                        "to --train or leave --lora out")


def default_parts(lora):
    """--train where it is not given."""
    return "projection,lora" if lora else "projection"


def trainable_globs(parts, blocks):
    """`mgq.trainable`: globs of exactly the parameters of `parts`."""
    vision = "visual_encoder.encoder.layers"
    globs = {
        "projection": ["llm_proj.*"],
        "lora": ["*.lora_[AB].*"],
        "queries": ["query_tokens"],
        "pos_embed": ["visual_encoder.embeddings.position_embedding"],
        # The norm between ViT and Q-Former goes with the Q-Former.
        "qformer": ["visual_encoder.post_layernorm.*", "Qformer.*"],
        "vit_last": [f"{vision}.{k}.*" for k in range(blocks - parts.vit_last, blocks)],
        "llm": ["llm_model.*"],
    }
    return ",".join(glob for name in parts.names for glob in globs[name])


def features_block(parts, blocks):
    """Where an export with --features begins: after how many blocks of the ViT.

    None: after the Q-Former.
    """
    if "pos_embed" in parts.names:
        raise UserError("--features: 'pos_embed' trains, so nothing of the model before it "
                        "can be computed once; leave --features or pos_embed out")
    if parts.vit_last:
        return blocks - parts.vit_last
    return blocks if {"queries", "qformer"} & set(parts.names) else None


def features_name(block):
    """Metadata `mgq.features` of an export that begins after `block`."""
    if block is None:
        return "Qformer"
    return f"visual_encoder.encoder.layers.{block - 1}" if block else "visual_encoder.embeddings"


def parse_lora(text):
    """Reads --lora, `r=8,alpha=32,dropout=0.05,targets=q_proj,v_proj`; all may be left out."""
    values = {}
    key = None
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if not equals:
            if key != "targets":
                raise UserError(f"--lora: '{word}' is not of the form NAME=VALUE with r, "
                                "alpha, dropout or targets")
            values["targets"].append(word)
            continue
        if name not in ("r", "alpha", "dropout", "targets"):
            raise UserError(f"--lora: no such setting '{name}'; there are r, alpha, dropout "
                            "and targets")
        if name in values:
            raise UserError(f"--lora: '{name}' is given twice")
        key = name
        values[name] = [value] if name == "targets" else lora_number(name, value)
    if "targets" in values:
        values["targets"] = tuple(dict.fromkeys(values["targets"]))
    if "r" in values:
        values["rank"] = values.pop("r")
    return Lora(**values)


def lora_number(name, text):
    """The number `text` of the setting `name`, in its range."""
    try:
        value = int(text) if name == "r" else float(text)
    except ValueError:
        value = -1
    good = {"r": value >= 1, "alpha": value > 0, "dropout": 0 <= value < 1}[name]
    if not good:
        wanted = {"r": "a whole number from 1", "alpha": "a number above 0",
                  "dropout": "a number from 0 to below 1"}[name]
        raise UserError(f"--lora: {name} must be {wanted}, not '{text}'")
    return value

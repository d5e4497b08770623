"""Names of parameters here, in PEFT's adapters and in Hugging Face's models.

A model may hold several models that PEFT has wrapped, each behind a prefix:

    llm_model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight
    prefix    wrapper          module                          side   adapter
"""

import re
from dataclasses import dataclass

from mgq.errors import UserError

WRAPPER = "base_model.model."
LORA = re.compile(
    r"(?P<prefix>(?:.*?\.)?)base_model\.model\.(?P<module>.+)"
    r"\.lora_(?P<side>[AB])\.(?P<adapter>[^.]+)\.weight"
)


@dataclass(frozen=True)
class LoraName:
    """A LoRA matrix; `module`: the adapted module in the wrapped model."""

    prefix: str
    module: str
    side: str
    adapter: str

    @property
    def key(self):
        """As PEFT's files call it."""
        return f"{WRAPPER}{self.module}.lora_{self.side}.weight"


def lora_name(name):
    """LoraName of a parameter, None if it is no LoRA matrix. Refuses other kinds."""
    found = LORA.fullmatch(name)
    if found:
        return LoraName(**found.groupdict())
    if ".lora_" in name:
        raise UserError(f"not supported yet: parameter '{name}'; adapters on linear modules are, "
                        "with names like MODULE.lora_A.default.weight")
    return None


def plain_name(name, prefix):
    """Name of a parameter that is no LoRA matrix: below `prefix`, that of the wrapped model
    without PEFT."""
    if not name.startswith(prefix):
        return name
    return name.removeprefix(prefix).removeprefix(WRAPPER).replace(".base_layer.", ".")


def listed(names, limit=3):
    """Names for a message, the first ones of many."""
    names = [f"'{name}'" for name in names]
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")

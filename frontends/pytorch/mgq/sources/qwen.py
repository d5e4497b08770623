"""First-generation Qwen folders (Qwen-7B, Qwen-14B-Chat), read as Qwen2.

Attention has queries, keys and values in one matrix, by thirds. The MLP is
c_proj(w1(x) * silu(w2(x))): w2 is Qwen2's gate.
"""

import re
from pathlib import Path

from mgq.architecture import Tower
from mgq.errors import UserError
from mgq.sources import find
from mgq.sources.huggingface import count, positive, require
from mgq.tensor_files import open_folder, read_json

THIRDS = ("q_proj", "k_proj", "v_proj")  # of attn.c_attn, in order
BLOCK = re.compile(r"llm_model\.model\.layers\.(\d+)\.(.*)\.(weight|bias)")
BLOCK_NAMES = {
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.gate_proj": "mlp.w2",
    "mlp.up_proj": "mlp.w1",
    "mlp.down_proj": "mlp.c_proj",
}
OUTSIDE = {
    "llm_model.model.embed_tokens.weight": "transformer.wte.weight",
    "llm_model.model.norm.weight": "transformer.ln_f.weight",
    "llm_model.lm_head.weight": "lm_head.weight",
}
# Names of its linear modules, and of those that an adapter can be on here.
TARGETS = {"c_attn": "q_proj,k_proj,v_proj", "w1": "up_proj", "w2": "gate_proj",
           "c_proj": "o_proj,down_proj"}


class QwenSource:
    """Parameters of a Qwen2 model in a first-generation folder."""

    def __init__(self, folder, tensors):
        self.folder = folder
        self.tensors = tensors

    def tensor(self, name, shape):
        """The LazyTensor of our parameter `name`."""
        if name in OUTSIDE:
            return find(self.tensors, OUTSIDE[name], shape, self.folder)
        block, module, last = BLOCK.fullmatch(name).groups()
        start = f"transformer.h.{block}"
        part = module.removeprefix("self_attn.")
        if part in THIRDS:
            fused = find(self.tensors, f"{start}.attn.c_attn.{last}",
                         (3 * shape[0], *shape[1:]), self.folder)
            first = THIRDS.index(part) * shape[0]
            return fused.then(lambda value: value[first : first + shape[0]], tuple(shape))
        return find(self.tensors, f"{start}.{BLOCK_NAMES[module]}.{last}", shape, self.folder)


def open_qwen(folder, length):
    """(fields, source) of a first-generation Qwen folder, for `length` tokens."""
    config = read_json(Path(folder) / "config.json")
    require(config, "no_bias", True, folder)
    require(config, "rotary_pct", 1.0, folder)
    limit = config.get("seq_length", length)
    if length > limit:
        raise UserError(
            f"not supported yet: --length {length} is beyond the {limit} tokens (seq_length) "
            f"that '{folder}' was trained with; there Qwen scales attention by the length"
        )
    width, heads = (count(config, key, folder) for key in ("hidden_size", "num_attention_heads"))
    if config.get("kv_channels", width // heads) * heads != width:
        raise UserError(f"not supported yet: '{folder}/config.json': kv_channels "
                        f"{config['kv_channels']} with {heads} heads for width {width}")
    fields = {
        "language": Tower(count(config, "num_hidden_layers", folder), width, heads,
                          count(config, "intermediate_size", folder) // 2),
        "vocabulary": count(config, "vocab_size", folder),
        "key_value_heads": heads,
        "rope_theta": positive(config, "rotary_emb_base", folder, 10000),
        "language_norm_epsilon": positive(config, "layer_norm_epsilon", folder, 1e-6),
        "tied_embeddings": False,
    }
    require(config, "tie_word_embeddings", False, folder)
    return fields, QwenSource(folder, open_folder(folder))

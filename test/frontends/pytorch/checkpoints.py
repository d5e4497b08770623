"""Tiny checkpoints of the same random weights in three layouts, and the models in plain PyTorch.

The weights are made in the layouts of LAVIS (EVA-ViT-g, BLIP-2) and of first-generation
Qwen; `huggingface` writes them as Hugging Face's own classes save them. The functions
`eva`, `bert` and `qwen` compute those layouts' models from their definition, sharing no
code with mgq.
"""

import json

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

WIDTH, HEADS, BLOCKS, MLP = 176, 2, 2, 80  # ViT: heads of 88, as in EVA-ViT-g
IMAGE, PATCH = 28, 14
BERT_WIDTH, BERT_HEADS, LAYERS, BERT_MLP, QUERIES = 128, 2, 3, 72, 4
QWEN_WIDTH, QWEN_HEADS, QWEN_BLOCKS, QWEN_MLP, VOCABULARY = 64, 4, 2, 56, 96
BASE, EPSILON = 5000, 1e-5  # of the rotary embedding, of RMS norms
QWEN_CONFIG = {
    "model_type": "qwen", "hidden_size": QWEN_WIDTH, "num_attention_heads": QWEN_HEADS,
    "num_hidden_layers": QWEN_BLOCKS, "intermediate_size": 2 * QWEN_MLP, "kv_channels": 16,
    "vocab_size": VOCABULARY, "seq_length": 64, "rotary_emb_base": BASE, "rotary_pct": 1.0,
    "layer_norm_epsilon": EPSILON, "no_bias": True, "tie_word_embeddings": False,
    "use_dynamic_ntk": True, "use_logn_attn": True, "max_position_embeddings": 8192,
}


class Draw:
    """Random tensors, each different, norms around 1."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape, around=0.0, scale=0.2):
        return around + scale * torch.randn(*shape, generator=self.generator)

    def linear(self, name, out, into, bias=True):
        tensors = {f"{name}.weight": self(out, into, scale=into**-0.5)}
        return tensors | ({f"{name}.bias": self(out)} if bias else {})

    def norm(self, name, width):
        return {f"{name}.weight": self(width, around=1.0), f"{name}.bias": self(width)}


def make_eva(draw, blocks=BLOCKS + 1):
    """eva_vit_g.pth, of which the last block is not used."""
    tensors = {
        "cls_token": draw(1, 1, WIDTH),
        "pos_embed": draw(1, 1 + (IMAGE // PATCH) ** 2, WIDTH),
        "patch_embed.proj.weight": draw(WIDTH, 3, PATCH, PATCH, scale=0.05),
        "patch_embed.proj.bias": draw(WIDTH),
    }
    for n in range(blocks):
        block = f"blocks.{n}"
        tensors |= {f"{block}.attn.q_bias": draw(WIDTH), f"{block}.attn.v_bias": draw(WIDTH)}
        tensors |= draw.linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH, bias=False)
        tensors |= draw.linear(f"{block}.attn.proj", WIDTH, WIDTH)
        tensors |= draw.linear(f"{block}.mlp.fc1", MLP, WIDTH)
        tensors |= draw.linear(f"{block}.mlp.fc2", WIDTH, MLP)
        tensors |= draw.norm(f"{block}.norm1", WIDTH) | draw.norm(f"{block}.norm2", WIDTH)
    return tensors


def make_blip2(draw):
    """What of blip2_pretrained_flant5xxl.pth is not the language model, behind "model"."""
    tensors = {"query_tokens": draw(1, QUERIES, BERT_WIDTH, scale=1.0)}
    tensors |= draw.norm("ln_vision", WIDTH)
    tensors |= draw.norm("Qformer.bert.embeddings.LayerNorm", BERT_WIDTH)
    tensors |= {"Qformer.bert.embeddings.position_ids": torch.arange(8).unsqueeze(0)}
    for n in range(LAYERS):
        layer = f"Qformer.bert.encoder.layer.{n}"
        sources = [("attention", BERT_WIDTH)] + [("crossattention", WIDTH)] * (n % 2 == 0)
        for attention, seen in sources:
            for name, into in (("query", BERT_WIDTH), ("key", seen), ("value", seen)):
                tensors |= draw.linear(f"{layer}.{attention}.self.{name}", BERT_WIDTH, into)
            tensors |= draw.linear(f"{layer}.{attention}.output.dense", BERT_WIDTH, BERT_WIDTH)
            tensors |= draw.norm(f"{layer}.{attention}.output.LayerNorm", BERT_WIDTH)
        for branch in ("_query", ""):  # queries' and text's; only the first is used
            tensors |= draw.linear(f"{layer}.intermediate{branch}.dense", BERT_MLP, BERT_WIDTH)
            tensors |= draw.linear(f"{layer}.output{branch}.dense", BERT_WIDTH, BERT_MLP)
            tensors |= draw.norm(f"{layer}.output{branch}.LayerNorm", BERT_WIDTH)
    return tensors | draw.linear("t5_proj", 24, BERT_WIDTH)


def make_qwen(draw):
    """The tensors of a first-generation Qwen folder."""
    tensors = {
        "transformer.wte.weight": draw(VOCABULARY, QWEN_WIDTH, scale=1.0),
        "transformer.ln_f.weight": draw(QWEN_WIDTH, around=1.0),
    }
    for n in range(QWEN_BLOCKS):
        block = f"transformer.h.{n}"
        tensors |= {f"{block}.{norm}.weight": draw(QWEN_WIDTH, around=1.0)
                    for norm in ("ln_1", "ln_2")}
        tensors |= draw.linear(f"{block}.attn.c_attn", 3 * QWEN_WIDTH, QWEN_WIDTH)
        tensors |= draw.linear(f"{block}.attn.c_proj", QWEN_WIDTH, QWEN_WIDTH, bias=False)
        tensors |= draw.linear(f"{block}.mlp.w1", QWEN_MLP, QWEN_WIDTH, bias=False)
        tensors |= draw.linear(f"{block}.mlp.w2", QWEN_MLP, QWEN_WIDTH, bias=False)
        tensors |= draw.linear(f"{block}.mlp.c_proj", QWEN_WIDTH, QWEN_MLP, bias=False)
    return tensors | draw.linear("lm_head", VOCABULARY, QWEN_WIDTH, bias=False)


def heads(x, count):
    """[B, T, W] -> [B, count, T, W / count]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attend(q, k, v, count, mask=None):
    """Attention of `count` heads; `mask` is added to the scores."""
    q, k, v = heads(q, count), heads(k, count), heads(v, count)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def linear(t, name, x):
    """x W^T + b of the tensors `t`."""
    return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def norm(t, name, x, epsilon):
    """Layer norm."""
    return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], epsilon)


def eva(t, pixels, blocks=BLOCKS):
    """EVA-ViT's output before ln_vision: [B, 1 + patches, WIDTH]."""
    patches = F.conv2d(pixels, t["patch_embed.proj.weight"], t["patch_embed.proj.bias"],
                       stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([t["cls_token"].expand(len(pixels), -1, -1), patches], 1) + t["pos_embed"]
    for n in range(blocks):
        block = f"blocks.{n}"
        seen = linear(t, f"{block}.attn.qkv", norm(t, f"{block}.norm1", x, 1e-6))
        q, k, v = seen.chunk(3, -1)
        q, v = q + t[f"{block}.attn.q_bias"], v + t[f"{block}.attn.v_bias"]
        x = x + linear(t, f"{block}.attn.proj", attend(q, k, v, HEADS))
        hidden = F.gelu(linear(t, f"{block}.mlp.fc1", norm(t, f"{block}.norm2", x, 1e-6)))
        x = x + linear(t, f"{block}.mlp.fc2", hidden)
    return x


def bert(t, image):
    """The Q-Former's output [B, QUERIES, BERT_WIDTH] for the ViT's output."""
    image = norm(t, "ln_vision", image, 1e-5)
    x = t["query_tokens"].expand(len(image), -1, -1)
    x = norm(t, "Qformer.bert.embeddings.LayerNorm", x, 1e-12)
    for n in range(LAYERS):
        layer = f"Qformer.bert.encoder.layer.{n}"
        for attention, seen in (("attention", None), ("crossattention", image)):
            name = f"{layer}.{attention}"
            if f"{name}.self.query.weight" not in t:
                continue
            seen = x if seen is None else seen
            found = attend(linear(t, f"{name}.self.query", x), linear(t, f"{name}.self.key", seen),
                           linear(t, f"{name}.self.value", seen), BERT_HEADS)
            x = norm(t, f"{name}.output.LayerNorm", x + linear(t, f"{name}.output.dense", found),
                     1e-12)
        hidden = F.gelu(linear(t, f"{layer}.intermediate_query.dense", x))
        hidden = linear(t, f"{layer}.output_query.dense", hidden)
        x = norm(t, f"{layer}.output_query.LayerNorm", x + hidden, 1e-12)
    return x


def rms(t, name, x):
    """RMS norm."""
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * t[f"{name}.weight"]


def rotate(x):
    """Rotary embedding of [B, T, W] of QWEN_HEADS heads, first half against second."""
    x = x.unflatten(-1, (QWEN_HEADS, -1))
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * BASE ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).flatten(2)


def qwen(t, embedded, attention_mask):
    """First-generation Qwen's logits [B, T, VOCABULARY] of embeddings."""
    tokens = embedded.shape[1]
    seen = torch.ones(tokens, tokens).tril().bool() & attention_mask[:, None, None].bool()
    mask = torch.where(seen, 0.0, torch.finfo().min)
    x = embedded
    for n in range(QWEN_BLOCKS):
        block = f"transformer.h.{n}"
        q, k, v = linear(t, f"{block}.attn.c_attn", rms(t, f"{block}.ln_1", x)).split(QWEN_WIDTH, -1)
        x = x + linear(t, f"{block}.attn.c_proj", attend(rotate(q), rotate(k), v, QWEN_HEADS, mask))
        y = rms(t, f"{block}.ln_2", x)
        gated = linear(t, f"{block}.mlp.w1", y) * F.silu(linear(t, f"{block}.mlp.w2", y))
        x = x + linear(t, f"{block}.mlp.c_proj", gated)
    return linear(t, "lm_head", rms(t, "transformer.ln_f", x))


def loss(tensors, batch, image_token_id):
    """MiniGPT4Qwen's loss in the layouts' own terms; one image a sample."""
    t = tensors
    rows = linear(t, "llm_proj", bert(t, eva(t, batch["pixel_values"])))
    x = t["transformer.wte.weight"][batch["input_ids"]].clone()
    for sample, ids in enumerate(batch["input_ids"]):
        places = (ids == image_token_id).nonzero()[:, 0]
        x[sample, places] = rows[sample, : len(places)]
    logits = qwen(t, x, batch["attention_mask"])[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, batch["labels"][:, 1:].flatten(), ignore_index=-100)


def to_vision(t):
    """The ViT's tensors by Hugging Face's names, without what comes before them."""
    made = {
        "embeddings.class_embedding": t["cls_token"],
        "embeddings.position_embedding": t["pos_embed"],
        "embeddings.patch_embedding.weight": t["patch_embed.proj.weight"],
        "embeddings.patch_embedding.bias": t["patch_embed.proj.bias"],
        "post_layernorm.weight": t["ln_vision.weight"],
        "post_layernorm.bias": t["ln_vision.bias"],
    }
    for n in range(BLOCKS):
        ours, theirs = f"encoder.layers.{n}", f"blocks.{n}"
        q, v = t[f"{theirs}.attn.q_bias"], t[f"{theirs}.attn.v_bias"]
        made[f"{ours}.self_attn.qkv.weight"] = t[f"{theirs}.attn.qkv.weight"]
        made[f"{ours}.self_attn.qkv.bias"] = torch.cat([q, torch.zeros(WIDTH), v])
        pairs = {"self_attn.projection": "attn.proj", "layer_norm1": "norm1",
                 "layer_norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
        made |= {f"{ours}.{a}.{end}": t[f"{theirs}.{b}.{end}"]
                 for a, b in pairs.items() for end in ("weight", "bias")}
    return made


def to_qformer(t):
    """The Q-Former's tensors by Hugging Face's names, without what comes before them."""
    made = {}
    for name, tensor in t.items():
        if not name.startswith("Qformer.bert.") or "position_ids" in name:
            continue
        name = name.removeprefix("Qformer.bert.").replace("embeddings.LayerNorm", "layernorm")
        if ".intermediate." in name or (".output." in name and "attention" not in name):
            continue  # the text's branch
        made[name.replace("attention.self.", "attention.attention.")] = tensor
    return made


def to_qwen2(t):
    """A Qwen2 model's tensors by Hugging Face's names."""
    made = {"model.embed_tokens.weight": t["transformer.wte.weight"],
            "model.norm.weight": t["transformer.ln_f.weight"],
            "lm_head.weight": t["lm_head.weight"]}
    for n in range(QWEN_BLOCKS):
        ours, theirs = f"model.layers.{n}", f"transformer.h.{n}"
        for end in ("weight", "bias"):
            parts = t[f"{theirs}.attn.c_attn.{end}"].split(QWEN_WIDTH)
            made |= {f"{ours}.self_attn.{part}_proj.{end}": tensor.clone()
                     for part, tensor in zip("qkv", parts)}
        pairs = {"self_attn.o_proj": "attn.c_proj", "mlp.gate_proj": "mlp.w2",
                 "mlp.up_proj": "mlp.w1", "mlp.down_proj": "mlp.c_proj",
                 "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2"}
        made |= {f"{ours}.{a}.weight": t[f"{theirs}.{b}.weight"] for a, b in pairs.items()}
    return made


def vision_config():
    """Of Blip2VisionModel."""
    return {"hidden_size": WIDTH, "intermediate_size": MLP, "num_hidden_layers": BLOCKS,
            "num_attention_heads": HEADS, "image_size": IMAGE, "patch_size": PATCH}


def qformer_config():
    """Of Blip2QFormerModel."""
    return {"hidden_size": BERT_WIDTH, "intermediate_size": BERT_MLP,
            "num_hidden_layers": LAYERS, "num_attention_heads": BERT_HEADS,
            "encoder_hidden_size": WIDTH}


def qwen2_config(**changes):
    """Of Qwen2ForCausalLM."""
    return {"vocab_size": VOCABULARY, "hidden_size": QWEN_WIDTH, "intermediate_size": QWEN_MLP,
            "num_hidden_layers": QWEN_BLOCKS, "num_attention_heads": QWEN_HEADS,
            "num_key_value_heads": QWEN_HEADS, "rms_norm_eps": EPSILON,
            "rope_parameters": {"rope_type": "default", "rope_theta": float(BASE)}, **changes}


def write_blip2(folder, t, shards=None):
    """Hugging Face's own class saves a BLIP-2 folder; `shards`: greatest size of a file."""
    from transformers import Blip2Config, Blip2ForConditionalGeneration, OPTConfig

    text = OPTConfig(vocab_size=16, hidden_size=8, ffn_dim=8, num_hidden_layers=1,
                     num_attention_heads=1, word_embed_proj_dim=8, max_position_embeddings=8)
    config = Blip2Config(vision_config=vision_config(), qformer_config=qformer_config(),
                         text_config=text.to_dict(), num_query_tokens=QUERIES)
    model = Blip2ForConditionalGeneration(config)
    wanted = {"query_tokens": t["query_tokens"]}
    wanted |= {f"vision_model.{name}": tensor for name, tensor in to_vision(t).items()}
    wanted |= {f"qformer.{name}": tensor for name, tensor in to_qformer(t).items()}
    save_pretrained(model, wanted, folder, shards)


def write_qwen2(folder, tensors, shards=None, **changes):
    """Hugging Face's own class saves a Qwen2 folder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    save_pretrained(Qwen2ForCausalLM(Qwen2Config(**qwen2_config(**changes))), tensors, folder,
                    shards)


def save_pretrained(model, tensors, folder, shards):
    """Saves `model` with the values `tensors`, every one of which it must know."""
    unknown = model.load_state_dict(tensors, strict=False).unexpected_keys
    assert not unknown, unknown
    model.save_pretrained(folder, max_shard_size=shards or "1GB")


def write_qwen(folder, tensors, shards=1, **changes):
    """A first-generation Qwen folder, of `shards` safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN_CONFIG | changes))
    if shards == 1:
        return save_file(tensors, folder / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-{1 + i % shards:05}-of-{shards:05}.safetensors"
             for i, name in enumerate(names)}
    for file in sorted(set(files.values())):
        save_file({n: tensors[n].contiguous() for n in names if files[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return None

"""MiniGPT4Qwen: BLIP-2 ViT -> Q-Former -> projection -> Qwen2.

The image tokens of a sample take that sample's own images, in order. A model is
built without values (`build`), which `fill` gives it.
"""

import warnings

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    Blip2QFormerConfig,
    Blip2QFormerModel,
    Blip2VisionConfig,
    Blip2VisionModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mgq.architecture import IGNORED, IMAGE_MEAN, IMAGE_STD
from mgq.errors import UserError

PROMPT = 2  # text tokens before the images in a random record


class MiniGPT4Qwen(nn.Module):
    """Returns the mean cross-entropy of the next token of one micro-batch.

    B samples, N images a sample, L tokens, S pixels, Q queries an image.
    """

    def __init__(self, architecture, image_token_id, images=1, block=None):
        """`block`: how many blocks of the ViT a part of the model leaves out or has;
        None: the part ends or begins after the Q-Former."""
        super().__init__()
        self.architecture = architecture
        self.image_token_id = image_token_id
        self.images = images
        self.block = block
        queries = (1, architecture.queries, architecture.qformer.width)
        self.visual_encoder = Blip2VisionModel(vision_config(architecture))
        if architecture.post_norm_epsilon is not None:
            self.visual_encoder.post_layernorm.eps = architecture.post_norm_epsilon
        self.query_tokens = nn.Parameter(torch.empty(queries))
        self.Qformer = Blip2QFormerModel(qformer_config(architecture))
        self.llm_proj = nn.Linear(architecture.qformer.width, architecture.language.width)
        self.llm_model = Qwen2ForCausalLM(language_config(architecture))

    def forward(self, pixel_values, input_ids, attention_mask, labels):
        """pixel_values [B, 3, S, S], or [B, N, 3, S, S] where N > 1; the others [B, L]."""
        blocks = len(self.visual_encoder.encoder.layers)
        features = self.read_image(self.see(pixel_values, blocks), blocks)
        return self.loss(features, input_ids, attention_mask, labels)

    def see(self, pixel_values, last):
        """Output of the ViT's first `last` blocks, [B * N, patches + 1, width]."""
        if self.images > 1:
            pixel_values = pixel_values.flatten(0, 1)
        hidden = self.visual_encoder.embeddings(pixel_values)
        for block in self.visual_encoder.encoder.layers[:last]:
            hidden = block(hidden)
        return hidden

    def read_image(self, hidden, first):
        """The Q-Former's output [B * N, Q, width] for the output of `first` blocks."""
        for block in self.visual_encoder.encoder.layers[first:]:
            hidden = block(hidden)
        image = self.visual_encoder.post_layernorm(hidden)
        queries = self.query_tokens.expand(image.shape[0], -1, -1)
        # Not by its forward, which would trace a mask that lets everything through.
        return self.Qformer.encoder(
            self.Qformer.layernorm(queries),
            encoder_hidden_states=image,
            query_length=queries.shape[1],
        ).last_hidden_state

    def embed(self, features, input_ids):
        """Embeddings [B, L, width] of text with the images' tokens in their places.

        `features`: the Q-Former's output, [B * N, Q, width].
        """
        tokens = self.llm_proj(features).flatten(0, 1)  # [B * N * Q, width]
        own = self.images * self.architecture.queries  # rows of a sample
        at_image = input_ids == self.image_token_id
        order = (at_image.long().cumsum(1) - 1).clamp(0, own - 1)
        sample = torch.arange(input_ids.shape[0], device=input_ids.device).unsqueeze(1)
        placed = nn.functional.embedding(order + own * sample, tokens)
        text = self.llm_model.get_input_embeddings()(input_ids)
        return torch.where(at_image.unsqueeze(-1), placed, text)

    def logits(self, features, input_ids, attention_mask):
        """[B, L, vocabulary]; `features` as in embed."""
        return self.llm_model(
            inputs_embeds=self.embed(features, input_ids),
            attention_mask=attention_mask,
            use_cache=False,
        ).logits

    def loss(self, features, input_ids, attention_mask, labels):
        """Mean over the labels that count; `features` as in embed."""
        logits = self.logits(features, input_ids, attention_mask)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(
            logits, labels[:, 1:].flatten(), ignore_index=IGNORED
        )


class FrozenPrefix(MiniGPT4Qwen):
    """What of the model depends on pixels alone and does not train."""

    def forward(self, pixel_values):
        """`image_features` [B, tokens, width], or [B, N, tokens, width] where N > 1."""
        blocks = len(self.visual_encoder.encoder.layers)
        if self.block is None:
            features = self.read_image(self.see(pixel_values, blocks), blocks)
        else:
            features = self.see(pixel_values, self.block)
        return features.unflatten(0, (-1, self.images)) if self.images > 1 else features


class FromFeatures(MiniGPT4Qwen):
    """The rest of the model: loss from what FrozenPrefix gives."""

    def forward(self, image_features, input_ids, attention_mask, labels):
        """image_features as FrozenPrefix gives them; the others [B, L]."""
        if self.images > 1:
            image_features = image_features.flatten(0, 1)
        if self.block is not None:
            image_features = self.read_image(image_features, self.block)
        return self.loss(image_features, input_ids, attention_mask, labels)


def vision_config(architecture):
    """The vision tower, as Blip2VisionModel wants it."""
    return Blip2VisionConfig(
        hidden_size=architecture.vision.width,
        intermediate_size=architecture.vision.mlp,
        num_hidden_layers=architecture.vision.layers,
        num_attention_heads=architecture.vision.heads,
        image_size=architecture.image,
        patch_size=architecture.patch,
        layer_norm_eps=architecture.vision_norm_epsilon,
        attn_implementation="sdpa",
    )


def qformer_config(architecture):
    """The Q-Former, as Blip2QFormerModel wants it."""
    return Blip2QFormerConfig(
        hidden_size=architecture.qformer.width,
        intermediate_size=architecture.qformer.mlp,
        num_hidden_layers=architecture.qformer.layers,
        num_attention_heads=architecture.qformer.heads,
        encoder_hidden_size=architecture.vision.width,
        layer_norm_eps=architecture.qformer_norm_epsilon,
        cross_attention_frequency=architecture.cross_attention_frequency,
        attn_implementation="sdpa",
    )


def language_config(architecture):
    """The language model, as Qwen2ForCausalLM wants it."""
    language = architecture.language
    return Qwen2Config(
        vocab_size=architecture.vocabulary,
        hidden_size=language.width,
        intermediate_size=language.mlp,
        num_hidden_layers=language.layers,
        num_attention_heads=language.heads,
        num_key_value_heads=architecture.key_value_heads or language.heads,
        max_position_embeddings=architecture.length,
        rms_norm_eps=architecture.language_norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=architecture.tied_embeddings,
        attn_implementation="sdpa",
    )


def build(architecture, image_token_id, images=1, lora=None, part=MiniGPT4Qwen, block=None):
    """A model on the meta device: shapes and names, no values but of its buffers.

    Only LoRA's dropout is in training mode. `part`, `block`: see the classes.
    """
    with torch.device("meta"):
        model = part(architecture, image_token_id, images, block)
        if lora:
            check_targets(model.llm_model, lora)
            with warnings.catch_warnings():  # PEFT's own, of no use here
                warnings.simplefilter("ignore")
                model.llm_model = get_peft_model(model.llm_model, lora_config(lora))
    rotary = language_model(model).model.rotary_emb
    rotary.inv_freq, _ = rotary.compute_default_rope_parameters(rotary.config)
    rotary.original_inv_freq = rotary.inv_freq.clone()
    model.eval()
    for name, module in model.named_modules():
        if name.endswith(".lora_dropout"):
            module.train()
    return model.requires_grad_(False)


def language_model(model):
    """The Qwen2ForCausalLM in `model`, below PEFT's wrappers."""
    return model.llm_model.get_base_model() if hasattr(model.llm_model, "peft_config") \
        else model.llm_model


def lora_config(lora):
    """`lora` as PEFT wants it."""
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )


def linear_names(language):
    """Last names of the linear modules of a language model that may have adapters."""
    return sorted({
        name.rsplit(".", 1)[-1] for name, module in language.named_modules()
        if isinstance(module, nn.Linear) and ".layers." in f".{name}"
    })


def check_targets(language, lora):
    """Every target must be the name of a linear module in a block of `language`."""
    present = linear_names(language)
    for target in lora.targets:
        if target not in present:
            raise UserError(
                f"LoRA target '{target}' does not exist in the language model; "
                f"its linear modules are {', '.join(present)}"
            )


def fill(model, value):
    """Gives every parameter the tensor `value(name, shape)`; tied ones are asked once."""
    filled = {}
    for prefix, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in filled:
                full = f"{prefix}.{name}" if prefix else name
                tensor = value(full, tuple(parameter.shape))
                filled[id(parameter)] = nn.Parameter(tensor, parameter.requires_grad)
            module._parameters[name] = filled[id(parameter)]
    return model


def metadata(architecture, image_token_id, images=1):
    """What the exported model and its data files must agree on."""
    numbers = {
        "mgq.image_token_id": image_token_id,
        "mgq.tokens_per_image": architecture.queries,
        "mgq.images": images,
        "mgq.image_size": architecture.image,
        "mgq.length": architecture.length,
        "mgq.vocabulary": architecture.vocabulary,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "pixel_values.mean": ",".join(map(str, IMAGE_MEAN)),
        "pixel_values.std": ",".join(map(str, IMAGE_STD)),
    }


def example(model, samples):
    """Inputs of the right shapes and types, name -> tensor, for tracing `model`."""
    architecture = model.architecture
    several = (model.images,) if model.images > 1 else ()
    tokens = torch.zeros(samples, architecture.length, dtype=torch.long)
    text = {"input_ids": tokens, "attention_mask": tokens + 1, "labels": tokens}
    if isinstance(model, FromFeatures):
        shape = feature_shape(architecture, model.block)
        return {"image_features": torch.zeros(samples, *several, *shape), **text}
    size = (3, architecture.image, architecture.image)
    pixels = {"pixel_values": torch.zeros(samples, *several, *size)}
    return pixels if isinstance(model, FrozenPrefix) else {**pixels, **text}


def feature_shape(architecture, block):
    """(tokens, width) of one image's features."""
    if block is None:
        return architecture.queries, architecture.qformer.width
    return (architecture.image // architecture.patch) ** 2 + 1, architecture.vision.width


def random_records(model, records, samples, seed=0):
    """`records` random micro-batches, one tensor per input of the model.

    Each sample is PROMPT text tokens, its images, text to the end. The first half
    of the last text is the prompt and has no labels.
    """
    length = model.architecture.length
    begin, end = PROMPT, PROMPT + model.images * model.architecture.queries
    if end >= length:
        raise UserError(
            f"length {length} has no room for text: {model.images} images take "
            f"{end - begin} tokens; give a greater --length"
        )
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        name: torch.randn(records, *tensor.shape, generator=generator)
        for name, tensor in example(model, samples).items() if tensor.is_floating_point()
    }
    ids = torch.randint(
        0, model.architecture.vocabulary - 1, (records, samples, length), generator=generator
    )
    ids[ids >= model.image_token_id] += 1  # no text token is the image token
    ids[..., begin:end] = model.image_token_id
    labels = ids.clone()
    labels[..., : (end + length) // 2] = IGNORED
    mask = torch.ones_like(ids)
    return {**inputs, "input_ids": ids, "attention_mask": mask, "labels": labels}

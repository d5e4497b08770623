"""MiniGPT4Qwen with random weights: BLIP-2 ViT -> Q-Former -> projection -> Qwen2.

Everything is frozen but LoRA adapters on the language model and the projection.
"""

from dataclasses import dataclass

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

TRAINABLE = "*.lora_[AB].*,llm_proj.*"  # what `mgq-compile --trainable` means by it
IMAGE_TOKEN_ID = 5
IGNORED = -100  # a label that does not count
PROMPT = 2  # text tokens before the image in a random record


@dataclass(frozen=True)
class Tower:
    """A transformer: blocks, model width, attention heads, hidden width of the MLP."""

    layers: int
    width: int
    heads: int
    mlp: int


@dataclass(frozen=True)
class Size:
    """The shapes of a model. `image` and `patch` in pixels, `length` in tokens."""

    vision: Tower
    qformer: Tower
    language: Tower
    image: int
    patch: int
    queries: int
    vocabulary: int
    length: int


SIZES = {
    "tiny": Size(
        vision=Tower(2, 32, 2, 64),
        qformer=Tower(2, 32, 2, 64),
        language=Tower(2, 64, 4, 128),
        image=28, patch=14, queries=4, vocabulary=256, length=24,
    ),
    "small": Size(
        vision=Tower(12, 384, 6, 1536),
        qformer=Tower(6, 256, 4, 1024),
        language=Tower(12, 768, 12, 2048),
        image=224, patch=14, queries=32, vocabulary=16384, length=256,
    ),
}


class MiniGPT4Qwen(nn.Module):
    """Returns the mean cross-entropy of the next token of one micro-batch."""

    def __init__(self, visual_encoder, query_tokens, qformer, llm_proj, llm_model):
        super().__init__()
        self.visual_encoder = visual_encoder
        self.query_tokens = query_tokens  # [1, queries, width]
        self.Qformer = qformer
        self.llm_proj = llm_proj
        self.llm_model = llm_model

    def forward(self, pixel_values, input_ids, attention_mask, labels):
        """pixel_values [batch, 3, image, image], the others [batch, length]."""
        image = self.visual_encoder(pixel_values).last_hidden_state
        queries = self.query_tokens.expand(image.shape[0], -1, -1)
        seen = self.Qformer(query_embeds=queries, encoder_hidden_states=image)
        tokens = self.llm_proj(seen.last_hidden_state)  # [batch, queries, width]
        text = self.llm_model.get_input_embeddings()(input_ids)
        at_image = (input_ids == IMAGE_TOKEN_ID).unsqueeze(-1).expand_as(text)
        output = self.llm_model(
            inputs_embeds=text.masked_scatter(at_image, tokens),
            attention_mask=attention_mask,
            use_cache=False,
        )
        logits = output.logits[:, :-1].flatten(0, 1)  # [batch * (length - 1), vocabulary]
        return nn.functional.cross_entropy(
            logits, labels[:, 1:].flatten(), ignore_index=IGNORED
        )


def vision_config(size):
    """The vision tower of `size`."""
    return Blip2VisionConfig(
        hidden_size=size.vision.width,
        intermediate_size=size.vision.mlp,
        num_hidden_layers=size.vision.layers,
        num_attention_heads=size.vision.heads,
        image_size=size.image,
        patch_size=size.patch,
        initializer_range=0.02,
        attn_implementation="sdpa",
    )


def qformer_config(size):
    """The Q-Former of `size`."""
    return Blip2QFormerConfig(
        hidden_size=size.qformer.width,
        intermediate_size=size.qformer.mlp,
        num_hidden_layers=size.qformer.layers,
        num_attention_heads=size.qformer.heads,
        encoder_hidden_size=size.vision.width,
        attn_implementation="eager",
    )


def language_config(size, length):
    """The language model of `size` for sequences of `length` tokens."""
    return Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.language.width,
        intermediate_size=size.language.mlp,
        num_hidden_layers=size.language.layers,
        num_attention_heads=size.language.heads,
        num_key_value_heads=size.language.heads,
        max_position_embeddings=length,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def build(size, length, lora_rank, seed=0):
    """A model in evaluation mode with seeded random weights."""
    torch.manual_seed(seed)
    lora = LoraConfig(
        r=lora_rank, lora_alpha=2 * lora_rank, target_modules=["q_proj", "v_proj"]
    )
    model = MiniGPT4Qwen(
        visual_encoder=Blip2VisionModel(vision_config(size)),
        query_tokens=nn.Parameter(0.02 * torch.randn(1, size.queries, size.qformer.width)),
        qformer=Blip2QFormerModel(qformer_config(size)),
        llm_proj=nn.Linear(size.qformer.width, size.language.width),
        llm_model=get_peft_model(Qwen2ForCausalLM(language_config(size, length)), lora),
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name or name.startswith("llm_proj."))
    return model.eval()


def metadata(length):
    """What the exported model and its data files must agree on."""
    return {"mgq.image_token_id": str(IMAGE_TOKEN_ID), "mgq.length": str(length)}


def random_records(size, records, micro_batch, length, seed=0):
    """`records` random micro-batches, one tensor per input of the model.

    Each sample is PROMPT text tokens, one image, text to the end. The first half
    of the last text is the prompt and has no labels.
    """
    begin, end = PROMPT, PROMPT + size.queries
    if end >= length:
        raise ValueError(f"length {length} has no room for text after {end} tokens")
    generator = torch.Generator().manual_seed(seed)
    leading = (records, micro_batch)
    pixels = torch.randn(*leading, 3, size.image, size.image, generator=generator)
    ids = torch.randint(
        IMAGE_TOKEN_ID + 1, size.vocabulary, (*leading, length), generator=generator
    )
    ids[..., begin:end] = IMAGE_TOKEN_ID
    labels = ids.clone()
    labels[..., : (end + length) // 2] = IGNORED
    return {
        "pixel_values": pixels,
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
    }

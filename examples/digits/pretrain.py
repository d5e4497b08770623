#!/usr/bin/env python3
"""Makes the base model of the digits example: `pretrain.py FOLDER`, about ten minutes.

Two halves that have never met, as MiniGPT4Qwen finds them. The picture half (ViT
and Q-Former) learns to tell digits apart, from the training pictures alone. The
language half learns to answer questions about digits from text: in place of a
picture, between <Img> and </Img>, it is given the digit's name. Nothing teaches it
what the picture half means: that is left to the projection and the adapters.
FOLDER gets Hugging Face's layouts: blip2/, qwen/ with its tokenizer.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    Blip2QFormerConfig,
    Blip2QFormerModel,
    Blip2VisionConfig,
    Blip2VisionModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import questions
from pictures import load_pictures

QUERIES = 4  # image tokens of a picture
IMAGE = 16  # pixels
VISION = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4)
QFORMER = dict(hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4)
LANGUAGE = dict(hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4)
VOCABULARY = 448
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>")
SYSTEM = "You are a helpful assistant."
LENGTH = 64  # tokens
IGNORED = -100


def make_tokenizer():
    """A byte-level BPE of the example's own sentences, with Qwen's marks."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for digit in range(10) for choice in range(questions.count())
             for text in questions.question_and_answer(digit, choice)]
    texts += [SYSTEM, "user\n", "assistant\n", "system\n", "<Img></Img> "] * 50
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def conversation(tokenizer, picture, question, answer):
    """Token ids and labels of one turn; `picture` stands where image tokens will."""
    def encode(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    prompt = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    ids = encode(prompt + "<Img>") + picture + encode(f"</Img> {question}")
    ids += encode("<|im_end|>\n<|im_start|>assistant\n")
    reply = encode(f"{answer}<|im_end|>\n")
    labels = [IGNORED] * len(ids) + reply
    ids += reply
    if len(ids) > LENGTH:
        raise ValueError(f"a conversation has {len(ids)} tokens")
    padding = LENGTH - len(ids)
    return ids + [tokenizer.pad_token_id] * padding, labels + [IGNORED] * padding


def pretrain_language(tokenizer, steps=1200, batch=32):
    """Answers about a digit whose name, in any language, stands for the picture."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, num_key_value_heads=LANGUAGE["num_attention_heads"],
        max_position_embeddings=256, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **LANGUAGE,
    )
    model = Qwen2ForCausalLM(config)
    samples, labels = [], []
    for digit in range(10):
        for names, _ in (questions.ENGLISH, questions.CHINESE):
            name = tokenizer(names[digit], add_special_tokens=False).input_ids
            picture = (name * QUERIES)[:QUERIES]
            for choice in range(questions.count()):
                pair = questions.question_and_answer(digit, choice)
                ids, targets = conversation(tokenizer, picture, *pair)
                samples.append(ids)
                labels.append(targets)
    samples, labels = torch.tensor(samples), torch.tensor(labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        rows = torch.randint(len(samples), (batch,))
        # Positions of the image tokens are nudged: what comes there later is no word.
        embedded = model.get_input_embeddings()(samples[rows])
        embedded = embedded + 0.1 * embedded.detach().std() * torch.randn_like(embedded)
        mask = samples[rows] != tokenizer.pad_token_id
        loss = model(inputs_embeds=embedded, attention_mask=mask, labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            print(f"language step {step + 1}: loss {loss.item():.4f}", flush=True)
    return model.eval()


def pretrain_vision(steps=5000, batch=64):
    """Tells the training pictures apart: the mean of the queries' outputs, ten classes."""
    torch.manual_seed(1)
    vision = Blip2VisionModel(
        Blip2VisionConfig(image_size=IMAGE, patch_size=4, initializer_range=0.02, **VISION)
    )
    qformer = Blip2QFormerModel(
        Blip2QFormerConfig(encoder_hidden_size=VISION["hidden_size"], **QFORMER)
    )
    queries = nn.Parameter(0.02 * torch.randn(1, QUERIES, QFORMER["hidden_size"]))
    head = nn.Linear(QFORMER["hidden_size"], 10)
    parameters = [*vision.parameters(), *qformer.parameters(), queries, *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, steps)

    def classify(pixels):
        image = vision(pixels).last_hidden_state
        tokens = queries.expand(len(pixels), -1, -1)
        seen = qformer(query_embeds=tokens, encoder_hidden_states=image).last_hidden_state
        return head(seen.mean(1))

    pictures, digits = load_pictures("train", IMAGE)
    for step in range(steps):
        rows = torch.randint(len(pictures), (batch,))
        shifts = torch.randint(-1, 2, (2,)).tolist()
        pixels = torch.roll(pictures[rows], shifts, (2, 3))
        loss = nn.functional.cross_entropy(classify(pixels), digits[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            print(f"vision step {step + 1}: loss {loss.item():.4f}", flush=True)
    pictures, digits = load_pictures("held-out", IMAGE)
    vision.eval()
    qformer.eval()
    with torch.no_grad():
        right = (classify(pictures).argmax(1) == digits).float().mean().item()
    print(f"vision: {100 * right:.1f} % of the held-out pictures right", flush=True)
    return vision, qformer, queries


def save_blip2(folder, vision, qformer, queries):
    """The layout of a BLIP-2 checkpoint without its language model, in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {f"vision_model.{name}": value for name, value in vision.state_dict().items()}
    state |= {f"qformer.{name}": value for name, value in qformer.state_dict().items()}
    state["query_tokens"] = queries.data
    state = {name: value.bfloat16().contiguous() for name, value in state.items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "blip-2",
        "num_query_tokens": QUERIES,
        "vision_config": vision.config.to_diff_dict(),
        "qformer_config": qformer.config.to_diff_dict(),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    folder = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder / "qwen")
    language = pretrain_language(tokenizer)
    language.bfloat16().save_pretrained(folder / "qwen")
    save_blip2(folder / "blip2", *pretrain_vision())


if __name__ == "__main__":
    main()

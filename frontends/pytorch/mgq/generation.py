"""Answers to questions about pictures, by an exported MiniGPT4Qwen in PyTorch. Greedy.

    assistant = generation.load("model.onnx", "tokenizer", checkpoint="out/checkpoint-100")
    questions = [assistant.question("What is this?", ["cat.png"])]
    texts = generation.answer(assistant, questions)
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mgq import minigpt4qwen, onnx_weights, tokenizer
from mgq.adapters import peft_folder
from mgq.adapters.checkpoint import open_checkpoint
from mgq.adapters.model import Model
from mgq.data import pictures
from mgq.data.chat import SYSTEM, Template
from mgq.data.conversations import (
    AFTER_IMAGE, BEFORE_IMAGE, LLAVA_MARK, MARK, MPP_MARK, VIDEO_MARK, Conversation, RecordError,
    Turn, join_texts, split_marks,
)
from mgq.data.metadata import read_model
from mgq.data.samples import beyond_vocabulary, check_marks
from mgq.errors import UserError

BATCH = 64  # questions at a time
NEW_TOKENS = 256  # at most, of an answer


@dataclass(frozen=True)
class Question:
    """`ids`: the prompt, up to where the answer begins; `pixels`: U8 [images, 3, S, S] of the
    question's own images, in the order of their tokens."""

    ids: list
    pixels: np.ndarray


@dataclass(frozen=True)
class Assistant:
    """A model with its tokenizer; `facts`: mgq.data.metadata.Facts."""

    model: torch.nn.Module
    facts: object
    template: Template
    root: Path = Path(".")  # of relative paths of pictures

    def question(self, text, images=()):
        """The Question with `text` about `images`, paths or bytes of picture files. Its marks
        <ImageHere> or <image> say where they are; without a mark they stand before the text."""
        return self.ask(conversation_of(text, images))

    def ask(self, conversation):
        """The Question that a Conversation ends with. Raises RecordError."""
        turns = conversation.turns
        turns = turns[:-1] if turns and turns[-1].role == "assistant" else turns
        if not turns:
            raise RecordError("has no question")
        asked = Conversation(turns, conversation.pictures, conversation.video, conversation.system)
        check_marks(asked, self.facts.images)
        images = self.images(asked)
        frames = len(images) if asked.video is not None else 1
        ids, _ = self.template.conversation(asked, frames)
        tokens = self.template.tokenizer
        ids += [tokens.im_start, *tokens.encode("assistant"), *tokens.newline]
        if len(ids) >= self.facts.length:
            raise RecordError(f"the question has {len(ids)} tokens, with its images and the marks of "
                              f"the chat; the model takes {self.facts.length} with the answer")
        if max(ids) >= self.facts.vocabulary:
            raise beyond_vocabulary(tokens, max(ids), self.facts.vocabulary)
        size = self.facts.image_size
        pixels = [pictures.transform(image, size) for image in images]
        return Question(ids, np.stack(pixels) if pixels else np.empty((0, 3, size, size), np.uint8))

    def images(self, conversation):
        """The pictures of a conversation in RGB."""
        if conversation.video is not None:
            return pictures.load_video(conversation.video, self.root, self.facts.images)
        return [pictures.load(source, self.root) for source in conversation.pictures]


def conversation_of(text, images, video=None):
    """One question about pictures or a video as a Conversation."""
    found = split_marks(text, (MPP_MARK,), wrap=False)
    marks = (LLAVA_MARK,) if video is None else (LLAVA_MARK, VIDEO_MARK)
    parts = [p for part in found for p in ([MARK] if part is MARK else split_marks(part, marks, wrap=True))]
    if MARK not in parts:
        count = len(images) if video is None else 1
        parts = [BEFORE_IMAGE, MARK, AFTER_IMAGE] * count + parts
    images = tuple(image if isinstance(image, bytes) else str(image) for image in images)
    return Conversation((Turn("user", join_texts(parts)),), images, video)


def load(path, folder, checkpoint=None, adapter=None, system=SYSTEM, root=".", dtype=torch.float32):
    """The Assistant of the model file `path` and the tokenizer in `folder`.

    `checkpoint`: a checkpoint of an mgq executable; `adapter`: a folder of mgq-adapter or PEFT;
    `dtype`: of weights and arithmetic.
    """
    proto = onnx_weights.read_onnx(path)
    metadata = onnx_weights.read_metadata(proto)
    prefix = onnx_weights.prefix_path(path)
    if "mgq.features" in metadata and not prefix.exists():
        raise UserError(f"'{path}' starts at image_features, and '{prefix}', which leads there, is not "
                        "beside it; give that file its place or use the export without --features")
    model, metadata = onnx_weights.load_model(path, dtype)
    facts, _ = read_model(path)
    if checkpoint or adapter:
        fill(model, path, checkpoint, adapter)
    tokens = tokenizer.load(folder, facts.image_token_id)
    template = Template(tokens, facts.length, facts.tokens_per_image, system=system)
    return Assistant(model, facts, template, Path(root))


def fill(model, path, checkpoint=None, adapter=None):
    """Puts trained weights into the module of the model file `path`."""
    known = Model(path)
    if checkpoint:
        tensors = open_checkpoint(checkpoint)
        known.check(tensors, f"checkpoint '{checkpoint}'")
    else:
        tensors, _ = peft_folder.read_folder(adapter, known, known.prefix())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor.load())


@torch.inference_mode()
def answer(assistant, questions, new_tokens=NEW_TOKENS, batch=BATCH):
    """The answers' texts, in the order of the Questions; see answer_ids."""
    decode = assistant.template.tokenizer.decode
    return [decode(ids, control=False).strip() for ids in answer_ids(assistant, questions, new_tokens, batch)]


@torch.inference_mode()
def answer_ids(assistant, questions, new_tokens=NEW_TOKENS, batch=BATCH):
    """The answers' tokens: the most likely one each time, up to <|im_end|>, <|endoftext|>,
    `new_tokens` or the model's length. Questions of similar length go together."""
    answers = [None] * len(questions)
    # Text alone needs no ViT.
    order = sorted(range(len(questions)), key=lambda i: (len(questions[i].pixels) > 0, len(questions[i].ids)))
    for begin in range(0, len(order), batch):
        chosen = order[begin : begin + batch]
        found = answer_batch(assistant, [questions[i] for i in chosen], new_tokens)
        for i, ids in zip(chosen, found):
            answers[i] = ids
    return answers


def features_of(assistant, questions):
    """The Q-Former's output [questions * images, Q, width]; 0 where a question has no image."""
    model, facts = assistant.model, assistant.facts
    shape = minigpt4qwen.feature_shape(model.architecture, None)
    dtype = model.query_tokens.dtype
    features = torch.zeros(len(questions), facts.images, *shape, dtype=dtype)
    counts = [len(question.pixels) for question in questions]
    if any(counts):
        pixels = torch.from_numpy(np.concatenate([question.pixels for question in questions]))
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (facts.mean, facts.std))
        pixels = ((pixels.float() / 255 - mean) / std).to(dtype)
        blocks = model.architecture.vision.layers
        seen = model.see(pixels.unsqueeze(0) if facts.images > 1 else pixels, blocks)
        filled = torch.arange(facts.images) < torch.tensor(counts).unsqueeze(1)
        features[filled] = model.read_image(seen, blocks)
    return features.flatten(0, 1)


def padded(questions, end):
    """Ids and mask [questions, longest], padded with `end` on the left."""
    longest = max(len(question.ids) for question in questions)
    ids = torch.full((len(questions), longest), end)
    mask = torch.zeros_like(ids)
    for row, question in enumerate(questions):
        ids[row, longest - len(question.ids) :] = torch.tensor(question.ids)
        mask[row, longest - len(question.ids) :] = 1
    return ids, mask


def answer_batch(assistant, questions, new_tokens):
    """answer_ids of a few questions, with a cache of keys and values."""
    from transformers import DynamicCache

    model, tokens = assistant.model, assistant.template.tokenizer
    ids, mask = padded(questions, tokens.end)
    limits = [min(new_tokens, assistant.facts.length - len(question.ids)) for question in questions]
    inputs = {"inputs_embeds": model.embed(features_of(assistant, questions), ids)}
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache()
    answers = [[] for _ in questions]
    open_rows = {row for row, limit in enumerate(limits) if limit > 0}
    while open_rows:
        output = model.llm_model(
            **inputs, attention_mask=mask, position_ids=positions, cache=cache,
            use_cache=True, logits_to_keep=1,
        )
        chosen = output.logits[:, -1].argmax(-1)
        for row in list(open_rows):
            token = int(chosen[row])
            if token not in (tokens.im_end, tokens.end):
                answers[row].append(token)
            if token in (tokens.im_end, tokens.end) or len(answers[row]) == limits[row]:
                open_rows.remove(row)
        inputs = {"input_ids": chosen.unsqueeze(1)}
        mask = torch.cat([mask, mask.new_ones(len(questions), 1)], 1)
        positions = positions[:, -1:] + 1
    return answers

"""One sample: a record's conversation as tokens, its pictures as pixels."""

import json
from dataclasses import dataclass

import numpy as np

from mgq.data import conversations, pictures
from mgq.data.conversations import MARK, UNUSABLE, RecordError
from mgq.errors import UserError
from mgq.tokenizer import TextError


@dataclass(frozen=True)
class Sample:
    """`tokens` [3, length] i64: ids, mask, labels; `pixels` U8 [3, S, S] or [images, 3, S, S]."""

    tokens: np.ndarray
    pixels: np.ndarray
    cut: bool  # whether text was cut off at the length


@dataclass(frozen=True)
class Problem:
    """Why there is no sample: what it is counted as, the whole story, whether it is a new one."""

    kind: str
    text: str
    first: bool = True


@dataclass
class Job:
    """All that makes samples of a Plan's items. Workers have a copy each."""

    sources: list  # records.Index of each file
    roots: list  # folder of the pictures of each file
    plan: object
    template: object
    facts: object
    seed: int
    random: bool  # random crops and flips

    @property
    def pixels_shape(self):
        size = self.facts.image_size
        return (3, size, size) if self.facts.images == 1 else (self.facts.images, 3, size, size)

    def result(self, position):
        """The Sample of item `position`, or the Problem with it."""
        item = self.plan[position]
        try:
            return self.sample(item)
        except (RecordError, TextError) as error:
            where = f"{self.sources[item.file].path}: record {item.record + 1}"
            kind = getattr(error, "kind", UNUSABLE)
            return Problem(kind, f"{where}: {error}", item.number == item.variant == 0)

    def read(self, item):
        try:
            return self.sources[item.file].read(item.record)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(
                f"data file '{self.sources[item.file].path}' changed while it was read"
            ) from error

    def sample(self, item):
        conversation = conversations.parse(self.read(item))
        check_marks(conversation, self.facts.images)
        root, video = self.roots[item.file], conversation.video
        # How many tokens a video has, its frames tell; pictures are read once the text is fine.
        images = None if video is None else pictures.load_video(video, root, self.facts.images)
        tokens, cut = self.template.row(conversation, len(images) if images else 1)
        self.check_vocabulary(tokens[0])
        if images is None:
            images = [pictures.load(source, root) for source in conversation.pictures]
        return Sample(tokens, self.pixels(item, images), cut)

    def pixels(self, item, images):
        pixels = np.zeros((self.facts.images, *self.pixels_shape[-3:]), np.uint8)
        for i, image in enumerate(images):
            seed = item.seed(self.seed, i) if self.random else None
            pixels[i] = pictures.transform(image, self.facts.image_size, seed)
        return pixels.reshape(self.pixels_shape)

    def check_vocabulary(self, ids):
        limit = self.facts.vocabulary
        if limit is not None and ids.max() >= limit:
            raise beyond_vocabulary(self.template.tokenizer, int(ids.max()), limit)


def beyond_vocabulary(tokenizer, token, limit):
    return UserError(
        f"token {token} ({tokenizer.decode([token])!r}) of tokenizer '{tokenizer.folder}' is beyond the model's"
        f" vocabulary of {limit}: the tokenizer is of another model"
    )


def check_marks(conversation, limit):
    """Raises RecordError unless each picture has its mark and the model takes them all."""
    marks = sum(part is MARK for turn in conversation.turns for part in turn.parts)
    if conversation.video is not None:
        if marks != 1:
            raise RecordError(f"has {marks} marks for its video, expected 1")
        return
    count = len(conversation.pictures)
    if marks != count:
        raise RecordError(f"image marks: {marks}, but pictures: {count}")
    if count > limit:
        raise RecordError(f"has {count} pictures, but the model takes {limit} a sample")

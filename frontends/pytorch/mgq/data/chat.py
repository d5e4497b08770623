"""Conversations -> token ids, labels and attention mask, in Qwen's chat template.

    <|im_start|>system\\nSYSTEM<|im_end|>\\n
    <|im_start|>user\\nQUESTION<|im_end|>\\n
    <|im_start|>assistant\\nANSWER<|im_end|>\\n

padded with the end token on the right. Labels `mpp` are those of MPP-LLaVA: of every turn,
the system message too, <|im_start|>, <|im_end|> and the line end after it count, of the
assistant's also the answer. Labels `assistant`: the answers and their <|im_end|>.
"""

from dataclasses import dataclass

import numpy as np

from mgq.architecture import IGNORED
from mgq.data.conversations import MARK, RecordError

SYSTEM = "You are a helpful assistant."
LABELS = ("mpp", "assistant")
IMAGE_CUT, NO_LABELS = "an image is beyond the length", "no label is left"


@dataclass(frozen=True)
class Template:
    """`tokens_per_image` in tokens, `length` of a row; `control`: text may give control tokens."""

    tokenizer: object
    length: int
    tokens_per_image: int
    labels: str = "mpp"
    system: str = SYSTEM
    control: bool = False

    def text(self, text):
        """Ids of text. Whatever it says, none is an image token."""
        ids = self.tokenizer.encode(text, self.control)
        if self.control and self.tokenizer.image in ids:
            name = self.tokenizer.token_text(self.tokenizer.image)
            pieces = text.split(name)
            ids = self.text(pieces[0])
            for piece in pieces[1:]:
                ids = ids + self.tokenizer.encode(name) + self.text(piece)
        return ids

    def turn(self, role, content):
        """Ids and labels of one turn; `content`: ids of its text."""
        tok = self.tokenizer
        head = [*tok.encode(role), *tok.newline]
        ids = [tok.im_start, *head, *content, tok.im_end, *tok.newline]
        answer = content if role == "assistant" else [IGNORED] * len(content)
        end = [tok.im_end, *tok.newline]
        start = [tok.im_start]
        if self.labels == "assistant":
            start = [IGNORED]
            end = [tok.im_end if role == "assistant" else IGNORED] + [IGNORED] * len(tok.newline)
        return ids, [*start, *[IGNORED] * len(head), *answer, *end]

    def conversation(self, conversation, images_per_mark):
        """Ids and labels of a whole conversation, without padding, of any length."""
        system = self.system if conversation.system is None else conversation.system
        ids, labels = self.turn("system", self.text(system))
        image = [self.tokenizer.image] * (self.tokens_per_image * images_per_mark)
        for turn in conversation.turns:
            content = []
            for part in turn.parts:
                content += image if part is MARK else self.text(part)
            turn_ids, turn_labels = self.turn(turn.role, content)
            ids += turn_ids
            labels += turn_labels
        return ids, labels

    def row(self, conversation, images_per_mark=1):
        """[3, length] i64: ids, attention mask, labels; and whether text was cut.

        Raises RecordError, with a kind of its own, where nothing useful is left.
        """
        ids, labels = self.conversation(conversation, images_per_mark)
        if self.tokenizer.image in ids[self.length :]:
            raise RecordError(
                f"{len(ids)} tokens, its last image ends beyond {self.length}", IMAGE_CUT
            )
        # The first label is never predicted.
        if all(label == IGNORED for label in labels[1 : self.length]):
            raise RecordError(f"no label among its first {self.length} tokens", NO_LABELS)
        cut = len(ids) > self.length
        ids, labels = ids[: self.length], labels[: self.length]
        pad = self.length - len(ids)
        row = np.empty((3, self.length), np.int64)
        row[0] = ids + [self.tokenizer.end] * pad
        row[1] = row[0] != self.tokenizer.end
        row[2] = labels + [IGNORED] * pad
        return row, cut

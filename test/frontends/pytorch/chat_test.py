"""Tokens, labels and masks of mgq-prepare, token by token, against MPP-LLaVA's rules written out by hand.

An expected row is a list of pieces in order: control tokens, words that are one token, and text
whose tokens are its bytes. A piece in M(...) counts with `--labels=mpp` alone, one in B(...)
with both kinds of labels, a bare one with neither.
"""

import base64
import json
import tempfile
import unittest
from pathlib import Path

import fixtures
import numpy as np
from fixtures import MERGES
from mgq.commands import prepare
from safetensors.numpy import load_file

LENGTH, IMAGES, PER_IMAGE = 160, 3, 4
START, END, NL, IMAGE = "<|im_start|>", "<|im_end|>", "\n", "<image>"


class M(str):
    """Counts with mpp."""


class B(M):
    """Counts with mpp and with assistant."""


def turn(role, *content):
    """A turn: of the assistant the answer counts, of all turns the marks."""
    if role == "assistant":
        return [M(START), role, NL, *map(B, content), B(END), M(NL)]
    return [M(START), role, NL, *content, M(END), M(NL)]


SYSTEM = turn("system", "You are a helpful ", "assistant", ".")
PICTURE = ["<Img>", IMAGE, "</Img>"]

# name -> (record, pieces); PICTURES below exist.
CASES = {
    "image at the start": (
        {"image": "1.png", "instruction": "<Img><ImageHere></Img> What?", "output": "A cat."},
        [*SYSTEM, *turn("user", *PICTURE, " What?"), *turn("assistant", "A ", "cat", ".")],
    ),
    "image in the middle": (
        {"image": "1.png", "instruction": "Look: <Img><ImageHere></Img> What?", "output": "Red"},
        [*SYSTEM, *turn("user", "Look: ", *PICTURE, " What?"), *turn("assistant", "Red")],
    ),
    "image at the end, without its frame of text": (
        {"image": ["1.png"], "instruction": ["Name it <ImageHere>"], "output": ["Red"]},
        [*SYSTEM, *turn("user", "Name it ", IMAGE), *turn("assistant", "Red")],
    ),
    "two turns": (
        {
            "image": "1.png",
            "instruction": ["<Img><ImageHere></Img>A?", "And B?"],
            "output": ["No.", "Yes!"],
        },
        [
            *SYSTEM,
            *turn("user", *PICTURE, "A?"),
            *turn("assistant", "No."),
            *turn("user", "And B?"),
            *turn("assistant", "Yes!"),
        ],
    ),
    "text only": (
        {"instruction": "1 + 1", "output": "2"},
        [*SYSTEM, *turn("user", "1 + 1"), *turn("assistant", "2")],
    ),
    "two images in a turn": (
        {
            "image": ["1.png", "2.png"],
            "instruction": "<Img><ImageHere></Img><Img><ImageHere></Img> Equal?",
            "output": "No",
        },
        [*SYSTEM, *turn("user", *PICTURE, *PICTURE, " Equal?"), *turn("assistant", "No")],
    ),
    "images in two turns": (
        {
            "image": ["1.png", "2.png"],
            "instruction": ["<ImageHere>a", "b<ImageHere>"],
            "output": ["c", "d"],
        },
        [
            *SYSTEM,
            *turn("user", IMAGE, "a"),
            *turn("assistant", "c"),
            *turn("user", "b", IMAGE),
            *turn("assistant", "d"),
        ],
    ),
    "video: a folder of seven frames": (
        {"video": "seven", "instruction": "<Img><ImageHere></Img> What?", "output": "Red"},
        [
            *SYSTEM,
            *turn("user", "<Img>", IMAGE, IMAGE, IMAGE, "</Img> What?"),
            *turn("assistant", "Red"),
        ],
    ),
    "video: two frames, fewer than the model takes": (
        {
            "video": ["1.png", "2.png"],
            "instruction": ["<Img><ImageHere></Img> What?"],
            "output": ["Red"],
        },
        [*SYSTEM, *turn("user", "<Img>", IMAGE, IMAGE, "</Img> What?"), *turn("assistant", "Red")],
    ),
    "LLaVA": (
        {
            "id": "7",
            "image": "1.png",
            "conversations": [
                {"from": "human", "value": "<image>\nWhat?"},
                {"from": "gpt", "value": "A cat"},
            ],
        },
        [*SYSTEM, *turn("user", *PICTURE, "\nWhat?"), *turn("assistant", "A ", "cat")],
    ),
    "LLaVA: image in the second turn": (
        {
            "image": "1.png",
            "conversations": [
                {"from": "human", "value": "Hi"},
                {"from": "gpt", "value": "Hi!"},
                {"from": "human", "value": "What?\n<image>"},
                {"from": "gpt", "value": "Red"},
            ],
        },
        [
            *SYSTEM,
            *turn("user", "Hi"),
            *turn("assistant", "Hi!"),
            *turn("user", "What?\n", *PICTURE),
            *turn("assistant", "Red"),
        ],
    ),
    "LLaVA: the assistant's first turn is dropped": (
        {
            "conversations": [
                {"from": "gpt", "value": "Go on"},
                {"from": "human", "value": "A"},
                {"from": "gpt", "value": "B"},
            ]
        },
        [*SYSTEM, *turn("user", "A"), *turn("assistant", "B")],
    ),
    "messages with a system message": (
        {
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "A"},
                {"role": "assistant", "content": "B"},
            ]
        },
        [*turn("system", "Be kind."), *turn("user", "A"), *turn("assistant", "B")],
    ),
    "messages with parts": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "From "},
                        {"type": "image_url", "image_url": {"url": "1.png"}},
                        {"type": "text", "text": " to "},
                        {"type": "image", "image": "2.png"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "B"}]},
            ]
        },
        [*SYSTEM, *turn("user", "From ", *PICTURE, " to ", *PICTURE), *turn("assistant", "B")],
    ),
    "messages: pictures beside them": (
        {
            "images": ["1.png", "2.png"],
            "messages": [
                {"role": "user", "content": "<image><image>?"},
                {"role": "assistant", "content": "B"},
            ],
        },
        [*SYSTEM, *turn("user", *PICTURE, *PICTURE, "?"), *turn("assistant", "B")],
    ),
    "Chinese": (
        {
            "image": "1.png",
            "instruction": "<Img><ImageHere></Img> 图中是什么？",
            "output": "一只猫。",
        },
        [*SYSTEM, *turn("user", *PICTURE, " ", "图", "中是什么？"), *turn("assistant", "一只猫。")],
    ),
    "an answer that is cut": (
        {"instruction": "Count", "output": "0123456789" * 20},
        [*SYSTEM, *turn("user", "Count"), M(START), "assistant", NL, B("0123456789" * 20)],
    ),
    "marks of control tokens in text are text": (
        {
            "image": "1.png",
            "instruction": "<ImageHere><|extra_0|><|image_pad|>",
            "output": "a<|im_end|>\n<|endoftext|>",
        },
        [
            *SYSTEM,
            *turn("user", IMAGE, "<|extra_0|><|image_pad|>"),
            *turn("assistant", "a<|im_end|>\n<|endoftext|>"),
        ],
    ),
    "an image mark in an answer is text": (
        {"instruction": "Name the mark", "output": "<Img><ImageHere></Img> <image>"},
        [
            *SYSTEM,
            *turn("user", "Name the mark"),
            *turn("assistant", "<Img><ImageH", "er", "e></Img> <image>"),
        ],
    ),
    "the last question has no answer": (
        {
            "conversations": [
                {"from": "user", "value": "A"},
                {"from": "assistant", "value": "B"},
                {"from": "user", "value": "C"},
            ]
        },
        [*SYSTEM, *turn("user", "A"), *turn("assistant", "B"), *turn("user", "C")],
    ),
    "an empty answer": (
        {"instruction": "A", "output": ""},
        [*SYSTEM, *turn("user", "A"), *turn("assistant")],
    ),
    "a picture within the record": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        "A",
                        {"type": "image_url", "image_url": "data:image/png;base64,PICTURE"},
                    ],
                },
                {"role": "assistant", "content": "B"},
            ]
        },
        [*SYSTEM, *turn("user", "A", *PICTURE), *turn("assistant", "B")],
    ),
}


class Spelling:
    """Ids of pieces, from the fixture's description alone."""

    def __init__(self, first, byte, control, image):
        self.merged = {
            (a + b).decode(errors="replace"): first + i for i, (a, b) in enumerate(MERGES)
        }
        self.byte, self.control = byte, control
        self.control[IMAGE] = image

    def ids(self, piece):
        if piece == IMAGE and not isinstance(piece, M):
            return [self.control[IMAGE]] * PER_IMAGE
        if piece in self.control:
            return [self.control[piece]]
        if piece in self.merged:
            return [self.merged[piece]]
        for word in self.merged:
            assert "\ufffd" in word or word not in piece, f"{word} in {piece}: spell it apart"
        return [self.byte[byte] for byte in piece.encode()]

    def row(self, pieces, labels):
        """Ids, mask and labels of length LENGTH."""
        kind = {"mpp": M, "assistant": B}[labels]
        ids, targets = [], []
        for piece in pieces:
            new = self.ids(piece)
            ids += new
            targets += new if isinstance(piece, kind) else [-100] * len(new)
        pad = max(0, LENGTH - len(ids))
        mask = [1] * len(ids) + [0] * pad
        ids += [self.control["<|endoftext|>"]] * pad
        targets += [-100] * pad
        return ids[:LENGTH], mask[:LENGTH], targets[:LENGTH]


def hf_spelling():
    """Control tokens 0 to 5, then the bytes of text, then merged pairs."""
    control = {text: i for i, text in enumerate(fixtures.CONTROL)}
    byte = {value: len(control) + i for i, value in enumerate(fixtures.TEXT_BYTES)}
    return Spelling(len(control) + len(byte), byte, control, control["<|image_pad|>"])


def qwen_spelling():
    """Bytes, merged pairs, then <|endoftext|>, <|im_start|>, <|im_end|>, <|extra_0|>."""
    first = 256 + len(MERGES)
    control = {"<|endoftext|>": first, START: first + 1, END: first + 2}
    return Spelling(256, range(256), control, first + 3)


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        work = cls.work = Path(cls.folder.name)
        for number in (1, 2):
            fixtures.picture(work / f"{number}.png", seed=number)
        for number in range(7):
            fixtures.picture(work / "seven" / f"frame_{number}.png", seed=number)
        encoded = base64.b64encode((work / "1.png").read_bytes()).decode()
        records = json.dumps([record for record, _ in CASES.values()]).replace("PICTURE", encoded)
        (work / "cases.json").write_text(records)
        fixtures.hf_tokenizer(work / "hf")
        fixtures.qwen_tokenizer(work / "qwen")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, tokenizer, spelling, labels):
        output = self.work / f"{tokenizer}-{labels}"
        prepare.main(
            [
                "--data",
                str(self.work / "cases.json"),
                "--tokenizer",
                str(self.work / tokenizer),
                "-o",
                str(output),
                "--labels",
                labels,
                "--length",
                str(LENGTH),
                "--images",
                str(IMAGES),
                "--on-error=stop",
                "--tokens-per-image",
                str(PER_IMAGE),
                "--image-size",
                "14",
                "--workers",
                "1",
            ]
        )
        rows = load_file(f"{output}-00000.safetensors")
        self.assertEqual(len(rows["labels"]), len(CASES))
        for i, (name, (_, pieces)) in enumerate(CASES.items()):
            expected = spelling.row(pieces, labels)
            for tensor, values in zip(("input_ids", "attention_mask", "labels"), expected):
                with self.subTest(name, tensor=tensor):
                    self.assertEqual(rows[tensor][i].tolist(), values)
        return rows

    def test_hugging_face(self):
        """All conversations with a Hugging Face tokenizer, both kinds of labels."""
        for labels in ("mpp", "assistant"):
            self.check("hf", hf_spelling(), labels)

    def test_first_generation_qwen(self):
        """The same with a first-generation Qwen tokenizer."""
        for labels in ("mpp", "assistant"):
            rows = self.check("qwen", qwen_spelling(), labels)
        # Each picture has its place, in order; what a sample does not have is 0.
        pixels = dict(zip(CASES, rows["pixel_values"]))
        both, video = pixels["images in two turns"], pixels["video: a folder of seven frames"]
        single = pixels["image at the start"]
        np.testing.assert_array_equal(both[0], single[0])
        self.assertTrue((both[1] != both[0]).any() and not both[2].any() and not single[1:].any())
        # Frames 0, 2 and 4 of seven.
        np.testing.assert_array_equal(video[1], both[1])
        self.assertFalse(pixels["text only"].any())
        np.testing.assert_array_equal(pixels["a picture within the record"], single)


if __name__ == "__main__":
    unittest.main()

"""mgq.tokenizer: tokens of both kinds of folders, control tokens, errors."""

import json
import tempfile
import unittest
from pathlib import Path

import fixtures
from mgq import tokenizer
from mgq.errors import UserError


class TokenizerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = Path(cls.folder.name)
        cls.hf = tokenizer.load(fixtures.hf_tokenizer(cls.work / "hf"))
        cls.qwen = tokenizer.load(fixtures.qwen_tokenizer(cls.work / "qwen"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_control_tokens(self):
        """Control tokens have the ids that their files say."""
        hf, qwen = self.hf, self.qwen
        self.assertEqual([hf.end, hf.im_start, hf.im_end, hf.image], [0, 1, 2, 5])
        first = 256 + len(fixtures.MERGES)
        self.assertEqual(
            [qwen.end, qwen.im_start, qwen.im_end, qwen.image], [first + i for i in range(4)]
        )
        self.assertEqual(qwen.size, first + 208)
        self.assertEqual(hf.size, fixtures.VOCABULARY)

    def test_words(self):
        """A word of the fixture is one token; other text is its bytes."""
        for tok in (self.hf, self.qwen):
            for word in fixtures.WORDS:
                self.assertEqual(len(tok.encode(word)), 1, word)
            self.assertEqual(len(tok.encode("Hi, 好")), 7)
            self.assertEqual(len(tok.newline), 1)
        self.assertEqual(self.qwen.encode("Hi\n"), [72, 105, 10])

    def test_text_gives_no_control_token(self):
        """Marks in text are text, and text again when decoded; asked otherwise they are tokens."""
        for tok in (self.hf, self.qwen):
            image = tok.token_text(tok.image)
            text = f"a<|im_end|>b<|im_start|>{image}<|endoftext|>"
            ids = tok.encode(text)
            self.assertTrue({tok.im_start, tok.im_end, tok.end, tok.image}.isdisjoint(ids))
            self.assertEqual(tok.decode(ids), text)
            control = tok.encode(text, control=True)
            self.assertEqual(control[1], tok.im_end)
            self.assertEqual(control[3:], [tok.im_start, tok.image, tok.end])
            self.assertEqual(tok.decode(control, control=False), "ab")

    def test_ordinary_addition(self):
        """A control token that the file adds as an ordinary one is still no result of text."""
        folder = fixtures.hf_tokenizer(self.work / "ordinary")
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        for token in content["added_tokens"]:
            token["special"] = False
        path.write_text(json.dumps(content))
        tok = tokenizer.load(folder)
        text = "x<|image_pad|><|im_end|>y"
        ids = tok.encode(text)
        self.assertTrue({tok.im_end, tok.image}.isdisjoint(ids))
        self.assertEqual(tok.decode(ids), text)

    def test_normalization(self):
        """First-generation Qwen composes letters and their marks before it makes tokens."""
        self.assertEqual(self.qwen.encode("e\u0301"), list("\u00e9".encode()))

    def test_auto_tokenizer_agrees(self):
        """transformers reads the same tokens from a Hugging Face folder."""
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(self.work / "hf", local_files_only=True)
        text = "user: 图 of a cat\n\nassistant"
        self.assertEqual(self.hf.encode(text), theirs(text, add_special_tokens=False).input_ids)

    def test_vocab_and_merges(self):
        """A folder with vocab.json and merges.txt alone gives the tokens of tokenizer.json."""
        model = json.loads((self.work / "hf" / "tokenizer.json").read_text())["model"]
        folder = self.work / "files"
        folder.mkdir()
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
        (folder / "merges.txt").write_text("\n".join(merges) + "\n")
        config = {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": fixtures.CONTROL[1:],
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tok = tokenizer.load(folder)
        self.assertEqual(tok.encode("user: 图\n"), self.hf.encode("user: 图\n"))
        self.assertEqual(tok.image, 5)

    def test_image_token(self):
        """Any id that text does not give may stand for images: unused ones too."""
        tok = tokenizer.load(self.work / "hf", 250)
        self.assertEqual(tok.image, 250)
        self.assertNotIn(250, tok.encode("<|image_pad|>"))
        with self.assertRaisesRegex(
            UserError, r"image token 30 is the ordinary token '.' of tokenizer"
        ):
            tokenizer.load(self.work / "hf", 30)
        with self.assertRaisesRegex(UserError, r"image token 2 is <\|im_end\|> of tokenizer"):
            tokenizer.load(self.work / "hf", 2)
        with self.assertRaisesRegex(
            UserError, "image token 65 is the ordinary token 'A'.*such as 278"
        ):
            tokenizer.load(self.work / "qwen", 65)

    def test_errors(self):
        """What is missing or damaged is named."""
        with self.assertRaisesRegex(UserError, "tokenizer folder '/nowhere' does not exist"):
            tokenizer.load("/nowhere")
        empty = self.work / "empty"
        empty.mkdir()
        with self.assertRaisesRegex(
            UserError, "is no tokenizer folder; expected qwen.tiktoken, tokenizer.json"
        ):
            tokenizer.load(empty)
        (empty / "tokenizer.json").write_text("{")
        with self.assertRaisesRegex(UserError, "tokenizer.json: cannot be read as a tokenizer"):
            tokenizer.load(empty)
        bad = self.work / "bad"
        bad.mkdir()
        (bad / "qwen.tiktoken").write_text("QQ== 0\nnonsense\n")
        with self.assertRaisesRegex(
            UserError, "qwen.tiktoken: line 2 is not 'BASE64 RANK': 'nonsense'"
        ):
            tokenizer.load(bad)
        (bad / "qwen.tiktoken").write_text("\n")
        with self.assertRaisesRegex(UserError, "qwen.tiktoken: no tokens"):
            tokenizer.load(bad)
        folder = fixtures.hf_tokenizer(self.work / "plain")
        path = folder / "tokenizer.json"
        path.write_text(path.read_text().replace("<|im_end|>", "<|other|>"))
        with self.assertRaisesRegex(
            UserError, r"has no token <\|im_end\|>; supported: tokenizers of Qwen"
        ):
            tokenizer.load(folder)

    def test_digest(self):
        """Another file of tokens is another digest."""
        folder = fixtures.qwen_tokenizer(self.work / "digest")
        before = tokenizer.load(folder).digest()
        self.assertEqual(before, self.qwen.digest())
        with open(folder / "qwen.tiktoken", "a") as file:
            file.write("YWI= 275\n")
        self.assertNotEqual(before, tokenizer.load(folder).digest())


if __name__ == "__main__":
    unittest.main()

"""Tokenizers of Qwen from a folder: Hugging Face's (Qwen1.5 and later) and first-generation Qwen's.

Nothing is downloaded and no code from the folder runs. Text never gives control
tokens: `<|im_end|>` in a question is text, unless `encode` is asked otherwise.
"""

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from pathlib import Path

from mgq.errors import UserError

END, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IMAGE_TOKENS = ("<|extra_0|>", "<|image_pad|>")  # the first one that a tokenizer has
QWEN_FILE = "qwen.tiktoken"
# All that decides the tokens of a folder.
FILES = (
    QWEN_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
# How first-generation Qwen cuts text before merging bytes: contractions, words with one leading sign,
# single digits, runs of signs, line ends, spaces.
QWEN_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
QWEN_EXTRAS = 205  # <|extra_0|> ... <|extra_204|>


class TextError(Exception):
    """A text that the library cannot make tokens of."""


class Tokenizer:
    """What both kinds share. `im_start`, `im_end`, `end`: ids; `newline`: ids of a line end;
    `image`: id of the token that images replace, None where the vocabulary has none;
    `size`: one more than the largest id."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.im_start = self._control(IM_START)
        self.im_end = self._control(IM_END)
        self.end = self._control(END)
        found = [self.token_id(text) for text in IMAGE_TOKENS]
        self.image = next((token for token in found if token is not None), None)
        self.newline = self.encode("\n")

    def _control(self, text):
        token = self.token_id(text)
        if token is None:
            raise UserError(
                f"tokenizer '{self.folder}' has no token {text}; supported: tokenizers of Qwen chat models"
            )
        return token

    def use_image_token(self, token):
        """Takes `token` for images. No text may give it."""
        if token in (self.im_start, self.im_end, self.end):
            raise UserError(
                f"image token {token} is {self.token_text(token)} of tokenizer '{self.folder}'"
            )
        if self.is_ordinary(token):
            raise UserError(
                f"image token {token} is the ordinary token {self.decode([token])!r} of tokenizer"
                f" '{self.folder}'; use an id that text does not give"
                + (f", such as {self.image}" if self.image is not None else "")
            )
        self.image = token

    def encode(self, text, control=False):
        """Ids of `text`. With `control`, what looks like a control token is one.

        Raises TextError for what the library cannot take.
        """
        if control:
            return self._encode_control(text)
        ids = self._encode_text(text)
        reserved = {self.im_start, self.im_end, self.end, self.image}
        if reserved.isdisjoint(ids):
            return ids
        # A tokenizer that knows such a token as an ordinary addition: cut the text within it.
        marks = "|".join(re.escape(self.token_text(token)) for token in reserved if token in ids)
        cuts = [match.start() + 1 for match in re.finditer(marks, text)]
        pieces = (text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)]))
        return [token for piece in pieces for token in self._encode_text(piece)]

    def digest(self):
        """Changes when the tokens may have changed."""
        total = hashlib.sha256()
        for name in FILES:
            path = self.folder / name
            if path.is_file():
                total.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizers` pipeline."""

    def __init__(self, folder, pipeline):
        self.pipeline = pipeline
        pipeline.no_truncation()
        pipeline.no_padding()
        self.added = pipeline.get_added_tokens_decoder()
        self.size = 1 + max(pipeline.get_vocab(with_added_tokens=True).values())
        super().__init__(folder)

    def token_id(self, text):
        return self.pipeline.token_to_id(text)

    def token_text(self, token):
        return self.pipeline.id_to_token(token)

    def is_ordinary(self, token):
        return token not in self.added and self.pipeline.id_to_token(token) is not None

    def _encode_text(self, text):
        self.pipeline.encode_special_tokens = True
        return self.pipeline.encode(text, add_special_tokens=False).ids

    def _encode_control(self, text):
        self.pipeline.encode_special_tokens = False
        return self.pipeline.encode(text, add_special_tokens=False).ids

    def decode(self, ids, control=True):
        """Text of `ids`, with or without control tokens."""
        return self.pipeline.decode(list(ids), skip_special_tokens=not control)


class QwenTokenizer(Tokenizer):
    """First-generation Qwen: `qwen.tiktoken`, control tokens behind its last rank."""

    def __init__(self, folder, ranks):
        import tiktoken

        self.ordinary = 1 + max(ranks.values())
        names = (END, IM_START, IM_END, *(f"<|extra_{i}|>" for i in range(QWEN_EXTRAS)))
        self.control = {name: self.ordinary + i for i, name in enumerate(names)}
        self.names = {token: name for name, token in self.control.items()}
        self.size = self.ordinary + len(names)
        self.encoding = tiktoken.Encoding(
            "qwen", pat_str=QWEN_PATTERN, mergeable_ranks=ranks, special_tokens=self.control
        )
        super().__init__(folder)

    def token_id(self, text):
        return self.control.get(text)

    def token_text(self, token):
        return self.names[token]

    def is_ordinary(self, token):
        return token < self.ordinary

    def _encode_text(self, text):
        return self._guarded(self.encoding.encode_ordinary, text)

    def _encode_control(self, text):
        return self._guarded(
            self.encoding.encode, text, allowed_special="all", disallowed_special=()
        )

    def _guarded(self, encode, text, **options):
        """The library's answer; a million spaces are too much for its stack."""
        try:
            return encode(unicodedata.normalize("NFC", text), **options)
        except BaseException as error:  # a panic is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise TextError(f"a text of {len(text)} characters is too much for tiktoken") from error

    def decode(self, ids, control=True):
        """Text of `ids`, with or without control tokens."""
        limit = self.size if control else self.ordinary
        return self.encoding.decode([token for token in ids if token < limit])


def read_ranks(path):
    """Bytes -> rank of a `qwen.tiktoken` file: lines of base64 and number."""
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            word, rank = line.split()
            ranks[base64.b64decode(word, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise UserError(
                f"{path}: line {number} is not 'BASE64 RANK': {line[:60].decode(errors='replace')!r}"
            ) from error
    if not ranks:
        raise UserError(f"{path}: no tokens")
    return ranks


def load_pipeline(folder):
    """The `tokenizers` pipeline of a Hugging Face folder."""
    import tokenizers

    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{path}: cannot be read as a tokenizer: {error}") from error
    if not (folder / "vocab.json").is_file():
        raise UserError(
            f"'{folder}' is no tokenizer folder; expected {QWEN_FILE}, tokenizer.json, or vocab.json and merges.txt"
        )
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        return found.backend_tokenizer
    except (OSError, ValueError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise UserError(f"tokenizer '{folder}' cannot be loaded: {error}") from error


def load(folder, image_token_id=None):
    """The tokenizer of `folder`; `image_token_id` in place of its own image token."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"tokenizer folder '{folder}' does not exist")
    path = folder / QWEN_FILE
    if path.is_file():
        tokenizer = QwenTokenizer(folder, read_ranks(path))
    else:
        tokenizer = HuggingFaceTokenizer(folder, load_pipeline(folder))
    if image_token_id is not None:
        tokenizer.use_image_token(image_token_id)
    return tokenizer

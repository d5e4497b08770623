"""What tests of the frontend share: tiny tokenizers, pictures, models without weights.

Every tokenizer here knows each byte of UTF-8 text as a token, and the WORDS; nothing else
is merged but the parts of WORDS. So the tokens of a text without such parts are its bytes.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "frontends" / "pytorch"))

# In order of priority: merged pairs that lead to the words of the roles and to 'cat', '图'.
MERGES = [
    (b"u", b"s"),
    (b"e", b"r"),
    (b"us", b"er"),
    (b"s", b"y"),
    (b"s", b"t"),
    (b"e", b"m"),
    (b"sy", b"st"),
    (b"syst", b"em"),
    (b"a", b"s"),
    (b"as", b"s"),
    (b"i", b"st"),
    (b"ass", b"ist"),
    (b"a", b"n"),
    (b"an", b"t"),
    (b"assist", b"ant"),
    (b"c", b"a"),
    (b"ca", b"t"),
    (b"\xe5", b"\x9b"),
    (b"\xe5\x9b", b"\xbe"),
]
WORDS = ["user", "system", "assistant", "cat", "图"]
CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|spare_0|>",
    "<|spare_1|>",
    "<|image_pad|>",
]
IMAGE_TOKEN = 5  # of hf_tokenizer, as of the tiny exports
# Bytes that occur in UTF-8 text, without most control characters.
TEXT_BYTES = [9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)]
VOCABULARY = len(CONTROL) + len(TEXT_BYTES) + len(MERGES)  # 238: fits a tiny export


def byte_letters():
    """The letter by which byte-level BPE files name each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + i) for i, byte in enumerate(others)}


def hf_tokenizer(folder):
    """Writes a Hugging Face tokenizer folder: control tokens 0 to 5, then bytes, then MERGES."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    letters = byte_letters()
    spell = lambda word: "".join(letters[byte] for byte in word)
    tokens = [*CONTROL, *(letters[byte] for byte in TEXT_BYTES)]
    tokens += [spell(a + b) for a, b in MERGES]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[(spell(a), spell(b)) for a, b in MERGES],
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\s\p{L}]+|\s?\p{L}+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in CONTROL]
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def qwen_tokenizer(folder):
    """Writes a first-generation Qwen folder: bytes 0 to 255, MERGES, 208 control tokens."""
    words = [bytes([byte]) for byte in range(256)] + [a + b for a, b in MERGES]
    lines = [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "qwen.tiktoken").write_text("\n".join(lines) + "\n")
    return folder


def picture(path, size=(40, 30), seed=0, mode="RGB", **options):
    """Writes a smooth random picture of `size` (width, height); `path`'s ending says how."""
    from PIL import Image

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    corners = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(corners).resize(size, Image.Resampling.BILINEAR).convert(mode)
    image.save(path, **options)
    return path


def model_without_weights(path, image=28, length=64, images=1, micro_batch=1, **metadata):
    """Writes an ONNX file with the inputs and metadata of an export, and no weights.

    `metadata`: values of keys without `mgq.` or `pixel_values.`, None to leave one out.
    """
    from onnx import TensorProto, helper, save

    pixels = [micro_batch, *[images] * (images > 1), 3, image, image]
    inputs = [helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, pixels)]
    for name in ("input_ids", "attention_mask", "labels"):
        inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, [micro_batch, length]))
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    node = helper.make_node("ReduceMean", ["pixel_values"], ["loss"], keepdims=0)
    model = helper.make_model(helper.make_graph([node], "model", inputs, [loss]))
    values = {
        "mgq.image_token_id": IMAGE_TOKEN,
        "mgq.tokens_per_image": 4,
        "mgq.images": images,
        "mgq.image_size": image,
        "mgq.length": length,
        "mgq.vocabulary": 256,
        "pixel_values.mean": "0.5,0.5,0.5",
        "pixel_values.std": "0.25,0.25,0.25",
    }
    for key, value in metadata.items():
        values[f"pixel_values.{key}" if key in ("mean", "std") else f"mgq.{key}"] = value
    helper.set_model_props(model, {k: str(v) for k, v in values.items() if v is not None})
    save(model, str(path))
    return Path(path)

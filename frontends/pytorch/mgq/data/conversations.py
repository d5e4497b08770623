"""Records of three formats as conversations: MPP, LLaVA, OpenAI-style messages.

A record that cannot be used raises RecordError, whose text says why.
"""

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

MPP_MARK, LLAVA_MARK, VIDEO_MARK = "<ImageHere>", "<image>", "<video>"
# How the text around an image reads in every format, as in MPP's data.
BEFORE_IMAGE, AFTER_IMAGE = "<Img>", "</Img>"
ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
}

UNUSABLE = "unusable record"


class RecordError(Exception):
    """Why a record cannot be used. `kind` is what it is counted as."""

    def __init__(self, message, kind=UNUSABLE):
        super().__init__(message)
        self.kind = kind


class Mark:
    """Stands in a turn's text for an image, or for all frames of a video."""

    def __repr__(self):
        return "MARK"


MARK = Mark()


@dataclass(frozen=True)
class Turn:
    """`role`: user or assistant; `parts`: texts, and MARK for images."""

    role: str
    parts: tuple


@dataclass(frozen=True)
class Conversation:
    """`pictures`: paths, or bytes of a picture, in the order of their marks; `video`: path of a
    file or folder, or list of paths of frames; `system`: the record's own system message."""

    turns: tuple
    pictures: tuple = ()
    video: object = None
    system: str | None = None


def kind_of(value):
    """A JSON value's kind in words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def expect_text(value, what):
    """`value` if it is text that can be encoded."""
    if not isinstance(value, str):
        raise RecordError(f"{what} is {kind_of(value)}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{what} has half of a surrogate pair at character {error.start + 1}"
        ) from error
    return value


def split_marks(text, marks, wrap):
    """Texts and MARKs of a text with any of `marks`."""
    image = (BEFORE_IMAGE, MARK, AFTER_IMAGE) if wrap else (MARK,)
    parts = [text]
    for mark in marks:
        cut = []
        for part in parts:
            pieces = part.split(mark) if isinstance(part, str) else [part]
            for i, piece in enumerate(pieces):
                cut.extend([*image, piece] if i else [piece])
        parts = cut
    return join_texts(parts)


def join_texts(parts):
    """Neighbouring texts as one; empty ones left out."""
    joined = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def path_of(text, what):
    """A path, or the bytes of a `data:` URL."""
    text = expect_text(text, what)
    if text.startswith("data:"):
        head, comma, body = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise RecordError(f"{what} is a data URL without base64")
        try:
            return base64.b64decode(body, validate=True)
        except (ValueError, binascii.Error) as error:
            raise RecordError(f"{what} is a data URL with bad base64: {error}") from error
    if text.startswith("file:"):
        return unquote(urlparse(text).path)
    if "://" in text:
        raise RecordError(
            f"{what} is the address '{text[:60]}'; not supported yet: download it and give its path"
        )
    if not text:
        raise RecordError(f"{what} is empty")
    return text


def media(record):
    """Pictures and video that a record names beside its text."""
    named = [key for key in ("image", "images", "video") if record.get(key) not in (None, [], "")]
    if len(named) > 1:
        raise RecordError(f"has both '{named[0]}' and '{named[1]}', expected one")
    if not named:
        return (), None
    value = record[named[0]]
    if named[0] == "video":
        frames = isinstance(value, list)
        found = (
            [path_of(v, f"video frame {i}") for i, v in enumerate(value, 1)]
            if frames
            else path_of(value, "video")
        )
        return (), found
    values = value if isinstance(value, list) else [value]
    return tuple(path_of(v, f"image {i}") for i, v in enumerate(values, 1)), None


def mpp(record):
    """`instruction` and `output`, texts or lists; the mark is <ImageHere>."""
    asked, answered = record["instruction"], record["output"]
    if record.get("input"):
        raise RecordError(
            "has 'input' beside 'instruction'; not supported yet: put its text into 'instruction'"
        )
    if isinstance(asked, list) != isinstance(answered, list):
        raise RecordError(f"'instruction' is {kind_of(asked)}, but 'output' is {kind_of(answered)}")
    if not isinstance(asked, list):
        asked, answered = [asked], [answered]
    if len(asked) != len(answered):
        raise RecordError(
            f"'instruction' has {len(asked)} entries, but 'output' has {len(answered)}"
        )
    turns = []
    for i, (question, answer) in enumerate(zip(asked, answered), 1):
        question = expect_text(question, f"'instruction' {i}")
        turns.append(Turn("user", split_marks(question, (MPP_MARK,), wrap=False)))
        turns.append(Turn("assistant", join_texts([expect_text(answer, f"'output' {i}")])))
    pictures, video = media(record)
    return Conversation(tuple(turns), pictures, video)


def content_parts(content, what, marks, pictures):
    """Parts of the content of a message: text, or a list of parts. Appends to `pictures`."""
    if not isinstance(content, list):
        return split_marks(expect_text(content, what), marks, wrap=True)
    parts = []
    for i, part in enumerate(content, 1):
        where = f"{what}, part {i},"
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        if not isinstance(part, dict):
            raise RecordError(f"{where} is {kind_of(part)}, expected an object or text")
        kind = part.get("type")
        if kind == "text":
            parts.append(expect_text(part.get("text"), f"{where} 'text'"))
        elif kind in ("image", "image_url"):
            named = [
                part[key]
                for key in ("image_url", "image", "url", "path")
                if part.get(key) is not None
            ]
            if named:  # else the next picture beside the messages
                pictures.append(picture(named[0], where))
            parts.extend((BEFORE_IMAGE, MARK, AFTER_IMAGE))
        else:
            raise RecordError(f"{where} has type {kind!r}; supported: text, image_url, image")
    return join_texts(parts)


def picture(value, where):
    """The picture of a content part of type image or image_url."""
    return path_of(value.get("url") if isinstance(value, dict) else value, f"{where} its image")


def messages(record, key, role_key, text_key):
    """A list of turns with roles: LLaVA's `conversations`, OpenAI's `messages`."""
    entries = record[key]
    if not isinstance(entries, list):
        raise RecordError(f"'{key}' is {kind_of(entries)}, expected a list")
    listed, video = media(record)
    marks = (LLAVA_MARK, VIDEO_MARK) if video is not None else (LLAVA_MARK,)
    system, turns, pictures = None, [], []
    for i, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise RecordError(f"turn {i} is {kind_of(entry)}, expected an object")
        name = entry.get(role_key)
        role = ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise RecordError(
                f"turn {i} has the unknown role {name!r} in '{role_key}'; supported: {', '.join(ROLES)}"
            )
        what = f"'{text_key}' of turn {i}"
        inside = []
        parts = content_parts(entry.get(text_key), what, marks if role == "user" else (), inside)
        if inside and role != "user":
            raise RecordError(f"not supported yet: {what} has a picture in a turn of the {role}")
        pictures.extend(inside)
        if role != "system":
            turns.append(Turn(role, parts))
        elif turns or system is not None:
            raise RecordError(f"turn {i} is a system message; expected one, before all other turns")
        else:
            system = "".join(parts)
    if listed and pictures:
        raise RecordError("names pictures both within its messages and beside them")
    return Conversation(tuple(turns), listed or tuple(pictures), video, system)


def parse(record):
    """The conversation of a record of any supported format."""
    if not isinstance(record, dict):
        raise RecordError(f"is {kind_of(record)}, expected an object")
    if "conversations" in record:
        conversation = messages(record, "conversations", "from", "value")
    elif "messages" in record:
        conversation = messages(record, "messages", "role", "content")
    elif "instruction" in record and "output" in record:
        conversation = mpp(record)
    else:
        keys = ", ".join(sorted(map(repr, record))) or "none"
        raise RecordError(
            f"unknown format, its keys are: {keys}; supported: 'instruction' and 'output', 'conversations', 'messages'"
        )
    turns = conversation.turns
    if turns and turns[0].role == "assistant":  # as MPP does: nobody asked
        turns = turns[1:]
    if not turns:
        raise RecordError("has no turns")
    return Conversation(turns, conversation.pictures, conversation.video, conversation.system)

"""Records of JSON files, a list or one object after the other (JSON lines), in bounded memory.

A first pass remembers where each record lies; workers then read the ones they need.
"""

import codecs
import hashlib
import json
from array import array
from dataclasses import dataclass
from json.decoder import WHITESPACE
from pathlib import Path

from mgq.errors import UserError

CHUNK = 1 << 20  # bytes read at a time
# A syntax error this near to the end of what was read may be no error, but the end; characters.
NEAR_END = 16
CUT_NUMBER = 2  # characters behind a number that may yet belong to it, as in 1.5e+


@dataclass
class Index:
    """Where records lie: record i is bytes begins[i] to ends[i] of the file."""

    path: Path
    begins: array
    ends: array
    digest: str  # of the whole file

    def __len__(self):
        return len(self.begins)

    def read(self, number):
        """Record `number`, from 0, as Python values."""
        with open(self.path, "rb") as file:
            file.seek(self.begins[number])
            text = file.read(self.ends[number] - self.begins[number])
        return json.loads(text)


class Scanner:
    """Finds the values of a JSON list, or of a sequence of values."""

    def __init__(self, path, file):
        self.path, self.file = path, file
        self.decoder = json.JSONDecoder()
        self.characters = codecs.getincrementaldecoder("utf-8")()
        self.digest = hashlib.sha256()
        self.text, self.position = "", 0  # what was read and is not dropped yet; where we are in it
        self.offset = 0  # bytes of the file before self.position
        self.lines = 1  # line of self.position
        self.ended = False
        self.records = 0

    def fail(self, message, position=None):
        position = self.position if position is None else position
        line = self.lines + self.text.count("\n", self.position, position)
        raise UserError(f"{self.path}: line {line}: record {self.records + 1}: {message}")

    def more(self):
        """Reads on; drops what was passed."""
        chunk = self.file.read(max(CHUNK, len(self.text) - self.position))
        self.digest.update(chunk)
        self.ended = not chunk
        try:
            read = self.characters.decode(chunk, final=self.ended)
        except UnicodeDecodeError as error:
            line = (
                self.lines
                + self.text.count("\n", self.position)
                + error.object.count(b"\n", 0, error.start)
            )
            raise UserError(f"{self.path}: line {line}: not UTF-8: {error.reason}") from error
        self.text = self.text[self.position :] + read
        self.position = 0

    def advance(self, position):
        passed = self.text[self.position : position]
        self.offset += len(passed) if passed.isascii() else len(passed.encode())
        self.lines += passed.count("\n")
        self.position = position

    def peek(self):
        """The next character that is no space; '' at the end."""
        while True:
            self.advance(WHITESPACE.match(self.text, self.position).end())
            if self.position < len(self.text) or self.ended:
                return self.text[self.position : self.position + 1]
            self.more()

    def value(self):
        """Passes one value; returns its first and last byte."""
        while True:
            try:
                _, end = self.decoder.raw_decode(self.text, self.position)
                if self.ended or end + CUT_NUMBER < len(self.text):
                    break
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self.text) - NEAR_END or error.msg.startswith(
                    "Unterminated string"
                )
                if self.ended or not cut:
                    self.fail(error.msg, error.pos)
            except RecursionError:
                self.fail("nested too deeply")
            self.more()
        begin = self.offset
        self.advance(end)
        return begin, self.offset

    def scan(self):
        """Yields where each record lies."""
        if self.peek() == "\ufeff":
            self.advance(self.position + 1)
        listed = self.peek() == "["
        if listed:
            self.advance(self.position + 1)
        while (character := self.peek()) and not (listed and character == "]"):
            yield self.value()
            self.records += 1
            if listed and self.peek() == ",":
                self.advance(self.position + 1)
                if self.peek() == "]":
                    self.fail("',' before the end of the list")
            elif listed and self.peek() not in ("]", ""):
                self.fail("expected ',' or ']' after the record before")
        if listed:
            if not character:
                self.fail("the file ends within its list")
            self.advance(self.position + 1)
            if self.peek():
                self.fail("text after the end of the list")


def index(path):
    """The Index of a JSON file. Raises UserError with line and record for bad JSON."""
    begins, ends = array("Q"), array("Q")
    path = Path(path)
    if path.exists() and not path.is_file():
        raise UserError(f"data file '{path}' is no file that can be read twice")
    try:
        with open(path, "rb") as file:
            scanner = Scanner(path, file)
            for begin, end in scanner.scan():
                begins.append(begin)
                ends.append(end)
    except OSError as error:
        raise UserError(f"data file '{path}' cannot be read: {error.strerror}") from error
    if not begins:
        raise UserError(f"{path}: no records")
    return Index(path, begins, ends, scanner.digest.hexdigest())

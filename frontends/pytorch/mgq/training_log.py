"""Reads logs of executables (--log-file), also while they are written and when a resumed run cuts them back."""

import json
import math
import os
from pathlib import Path

from mgq.errors import UserError

SPEED = "samples/s"
NO_SCALARS = ("step", "epoch", "samples", "step_seconds")  # of a line; they place or make others
REMEMBERED = (
    4096  # bytes before the place that was read up to; they tell whether they were replaced
)


def number(value):
    """A finite number of JSON as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def scalars(line):
    """Name -> number of what a line says about its step. What is no finite number is left out."""
    found = {name: number(value) for name, value in line.items() if name not in NO_SCALARS}
    samples, seconds = number(line.get("samples")), number(line.get("step_seconds"))
    if samples is not None and seconds:
        found[SPEED] = samples / seconds
    return {name: value for name, value in found.items() if value is not None}


class TrainingLog:
    """`steps`: step -> scalars, in order. `update` reads what is new."""

    def __init__(self, path):
        self.path = Path(path)
        self.steps = {}
        self.start()

    def start(self):
        self.offset, self.tail, self.rest, self.lines = 0, b"", b"", 0

    def replaced(self, file):
        """Whether what was read is no longer there."""
        if os.fstat(file.fileno()).st_size < self.offset:
            return True
        file.seek(self.offset - len(self.tail))
        return file.read(len(self.tail)) != self.tail

    def read(self):
        """Bytes that were not read before."""
        try:
            with open(self.path, "rb") as file:
                if self.replaced(file):
                    self.start()
                file.seek(self.offset)
                new = file.read()
        except OSError as error:
            raise UserError(f"log '{self.path}' cannot be read: {error.strerror}") from error
        self.offset += len(new)
        self.tail = (self.tail + new)[-REMEMBERED:]
        return new

    def update(self, last=False):
        """Reads what is new; returns the first step that is new or no longer as it was, or None.

        A last line without end is awaited, unless `last`: then it counts if it is whole.
        """
        *lines, self.rest = (self.rest + self.read()).split(b"\n")
        first = None
        for line in lines:
            self.lines += 1
            if line.strip():
                step = self.add(line)
                first = step if first is None else min(first, step)
        if last and self.rest.strip():
            try:
                json.loads(self.rest)
            except ValueError:
                return first
            self.lines += 1
            step = self.add(self.rest)
            first = step if first is None else min(first, step)
        return first

    def add(self, text):
        """Takes a line; returns its step. Later steps that were there are gone: the run was resumed."""
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            shown = text[:60].decode(errors="replace")
            raise UserError(
                f"{self.path}: line {self.lines} is no step of a training log: {shown!r}"
            )
        step = line["step"]
        for later in [known for known in reversed(self.steps) if known >= step]:
            del self.steps[later]
        self.steps[step] = scalars(line)
        return step

    def series(self):
        """Name -> (steps, values)."""
        found = {}
        for step, values in self.steps.items():
            for name, value in values.items():
                steps, numbers = found.setdefault(name, ([], []))
                steps.append(step)
                numbers.append(value)
        return found

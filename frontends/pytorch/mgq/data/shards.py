"""Safetensors files written row by row, in bounded memory, whole or not at all."""

import contextlib
import json
import struct

import numpy as np

from mgq.errors import UserError
from mgq.files import whole_file

TYPES = {"I64": np.int64, "U8": np.uint8, "F32": np.float32}
COPY = 8 << 20  # bytes moved at a time


def header(tensors, rows, metadata, size=0):
    """The header of a file of `rows` rows, padded to `size` bytes at least.

    `tensors`: name -> (type, shape of a row), in the order of the file.
    """
    entries, begin = {"__metadata__": metadata}, 0
    for name, (dtype, shape) in tensors.items():
        end = begin + rows * row_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": [rows, *shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    size = max(size, (len(text) + 8 + 63) // 64 * 64)
    return struct.pack("<Q", size - 8) + text.ljust(size - 8)


def row_bytes(dtype, shape):
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(TYPES[dtype]).itemsize


def read_header(path):
    """(name -> entry, metadata, offset of the data) of a safetensors file."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(size))
    return entries, entries.pop("__metadata__", {}), 8 + size


def open_tensor(path, name):
    """Tensor `name` of a file, mapped."""
    entries, _, offset = read_header(path)
    entry = entries[name]
    begin, _ = entry["data_offsets"]
    return np.memmap(path, TYPES[entry["dtype"]], "r", offset + begin, tuple(entry["shape"]))


class ShardWriter:
    """Writes up to `capacity` rows to `path`; close() gives the file its name."""

    def __init__(self, path, tensors, capacity, metadata):
        self.path, self.tensors, self.metadata = path, tensors, metadata
        self.capacity, self.rows = capacity, 0
        self.head = header(tensors, capacity, metadata)
        self.sizes = {name: row_bytes(*entry) for name, entry in tensors.items()}
        self.stack = contextlib.ExitStack()
        temporary = self.stack.enter_context(whole_file(path))
        self.file = self.stack.enter_context(open(temporary, "r+b", buffering=0))

    def offset(self, name, capacity):
        """First byte of tensor `name` in a file of `capacity` rows."""
        begin = len(self.head)
        for other, size in self.sizes.items():
            if other == name:
                return begin
            begin += size * capacity

    def put(self, position, data):
        self.file.seek(position)
        while data:  # an unbuffered file may take a part
            data = data[self.file.write(data) :]

    def append(self, row):
        """Adds a row, an array for each tensor."""
        try:
            for name, size in self.sizes.items():
                data = np.ascontiguousarray(row[name], TYPES[self.tensors[name][0]])
                self.put(
                    self.offset(name, self.capacity) + size * self.rows, memoryview(data).cast("B")
                )
        except OSError as error:
            raise self.cannot(error) from error
        self.rows += 1

    def compact(self):
        """Moves the tensors of a file with fewer rows than its capacity together."""
        for name, size in self.sizes.items():
            source, target = self.offset(name, self.capacity), self.offset(name, self.rows)
            for begin in range(0, size * self.rows, COPY):
                self.file.seek(source + begin)
                self.put(
                    target + begin, memoryview(self.file.read(min(COPY, size * self.rows - begin)))
                )

    def close(self):
        """Completes the file; returns its size in bytes."""
        try:
            if self.rows < self.capacity:
                self.compact()
            self.put(0, memoryview(header(self.tensors, self.rows, self.metadata, len(self.head))))
            total = len(self.head) + self.rows * sum(self.sizes.values())
            self.file.truncate(total)
            self.stack.close()
        except OSError as error:
            raise self.cannot(error) from error
        return total

    def cannot(self, error):
        return UserError(f"cannot write '{self.path}': {error.strerror}")

    def abort(self):
        """Leaves no file behind."""
        error = UserError("abandoned")
        self.stack.__exit__(UserError, error, None)

"""Tensors in files, read one at a time: safetensors and PyTorch's own format."""

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch

from mgq.errors import UserError

SAFETENSORS_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
    "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
    "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is read when it is needed. `origin` says where it is, for messages."""

    shape: tuple
    load: Callable[[], torch.Tensor]
    origin: str
    dtype: torch.dtype | None = None  # None: not known before it is read

    def then(self, change, shape=None):
        """This tensor after `change`, of `shape`, by default its own."""
        return LazyTensor(shape or self.shape, lambda: change(self.load()), self.origin)


def read_bytes(path, offset, count):
    """`count` bytes of a file from `offset`, writable; a short file is an error."""
    buffer = bytearray(count)
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            view, done = memoryview(buffer), 0
            while done < count:
                read = file.readinto(view[done : done + (1 << 30)])
                if not read:
                    raise UserError(
                        f"'{path}' is truncated: {offset + done} bytes, "
                        f"needs {offset + count}"
                    )
                done += read
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error
    return buffer


def file_size(path):
    """Size in bytes; a missing file is an error."""
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error


def open_safetensors(path):
    """name -> LazyTensor of a safetensors file; checks that all of it is there."""
    size = file_size(path)
    length = struct.unpack("<Q", read_bytes(path, 0, 8))[0] if size >= 8 else size
    if 8 + length > size:
        raise UserError(f"'{path}' is damaged or truncated: not a whole safetensors header")
    try:
        header = json.loads(bytes(read_bytes(path, 8, length)))
        header.pop("__metadata__", None)
        return {
            name: safetensor(path, size, 8 + length, name, entry)
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"'{path}' is damaged: its safetensors header is not readable") \
            from error


def safetensor(path, size, base, name, entry):
    """The tensor `name` of a safetensors file whose data begin at `base`."""
    dtype = SAFETENSORS_TYPES.get(entry["dtype"])
    if dtype is None:
        raise UserError(f"'{path}': tensor '{name}' has type {entry['dtype']}, which is "
                        "not supported yet")
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if end - begin != torch.Size(shape).numel() * dtype.itemsize:
        raise UserError(f"'{path}' is damaged: tensor '{name}' has {end - begin} bytes")
    if base + end > size:
        raise UserError(f"'{path}' is truncated: it ends before tensor '{name}'")

    def load():
        data = read_bytes(path, base + begin, end - begin)
        return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else \
            torch.empty(shape, dtype=dtype)

    return LazyTensor(shape, load, f"tensor '{name}' of '{path}'", dtype)


class TorchFile:
    """A file of torch.save, of which tensors are mapped, not read.

    `select` finds the dictionary of tensors in what the file holds.
    """

    opened = None  # the file that is mapped now: one at a time

    def __init__(self, path, select):
        self.path = path
        self.select = select

    def values(self):
        """name -> value of the dictionary in the file."""
        if TorchFile.opened is None or TorchFile.opened[0] is not self:
            TorchFile.opened = None
            TorchFile.opened = (self, self.read())
        return TorchFile.opened[1]

    def read(self):
        file_size(self.path)
        try:
            content = load_torch(self.path)
        except Exception as error:  # pickle raises any kind on damaged files
            first = (str(error).splitlines() or [""])[0]
            raise UserError(
                f"cannot read '{self.path}' as a PyTorch checkpoint; it is damaged, "
                f"truncated or holds more than tensors: {first}"
            ) from error
        found = self.select(content) if isinstance(content, dict) else None
        if not isinstance(found, dict):
            raise UserError(f"'{self.path}' holds no dictionary of tensors")
        return found

    def tensors(self):
        """name -> LazyTensor."""
        return {
            name: LazyTensor(
                tuple(value.shape),
                lambda name=name: self.values()[name].detach(),
                f"tensor '{name}' of '{self.path}'",
                value.dtype,
            )
            for name, value in self.values().items() if isinstance(value, torch.Tensor)
        }


def load_torch(path):
    """torch.load without code, mapped where the format can be."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)


def open_torch(path, select=lambda content: content):
    """name -> LazyTensor of a file of torch.save."""
    return TorchFile(Path(path), select).tensors()


def open_folder(folder):
    """name -> LazyTensor of a Hugging Face folder, in one file or in shards."""
    folder = Path(folder)
    for single, opener in (("model.safetensors", open_safetensors),
                           ("pytorch_model.bin", open_torch)):
        if (folder / single).exists():
            return opener(folder / single)
        index = folder / f"{single}.index.json"
        if index.exists():
            return open_shards(index, opener)
    raise UserError(
        f"'{folder}' has no weights: neither model.safetensors nor pytorch_model.bin, "
        "nor an index of shards of one of them"
    )


def open_shards(index, opener):
    """name -> LazyTensor of what an index of shards lists."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"'{index}' is damaged: it has no weight_map")
    for shard in sorted(set(weight_map.values())):
        if not (index.parent / shard).exists():
            raise UserError(f"'{index}' names '{shard}', which does not exist beside it")
    shards = {shard: opener(index.parent / shard) for shard in sorted(set(weight_map.values()))}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise UserError(f"'{index}' promises tensor '{name}' in '{shard}', which lacks it")
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def write_safetensors(path, tensors, metadata):
    """Writes name -> LazyTensor, of known types, one at a time."""
    names = {dtype: name for name, dtype in SAFETENSORS_TYPES.items()}
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        end = offset + math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # data begin aligned
    try:
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                file.write(tensor_bytes(tensor.load()))
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def tensor_bytes(tensor):
    """The bytes of a tensor, row-major."""
    return memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())


def read_json(path):
    """The object in a JSON file."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"'{path}' is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"'{path}' is not a JSON object")
    return value

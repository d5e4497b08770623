"""Reading and writing safetensors files with numpy.

A file is an 8-byte little-endian header length, a JSON header (name -> dtype,
shape, byte range; `__metadata__` -> strings) and the raw bytes. The safetensors
package's numpy interface has no bf16, which this module maps to ml_dtypes.
"""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read(path):
    """Returns the tensors of `path` as a dict from name to array."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        array = np.frombuffer(raw, DTYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def write(path, tensors, metadata=None):
    """Writes the arrays of the dict `tensors` to `path` in its order."""
    header = {"__metadata__": metadata} if metadata else {}
    blobs = []
    offset = 0
    for name, array in tensors.items():
        blob = array.tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data starts 8-byte aligned
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))

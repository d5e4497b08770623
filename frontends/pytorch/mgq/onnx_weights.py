"""Weights of exported models: written one by one, and read back.

`load_model` rebuilds the PyTorch module of an exported MiniGPT4Qwen from its
metadata and its weights.
"""

import math
from pathlib import Path

import ml_dtypes  # noqa: F401  (numpy's bf16)
import onnx
import onnx_ir
import torch

from mgq.architecture import Architecture, Lora
from mgq.errors import UserError
from mgq.files import whole_file
from mgq.tensor_files import LazyTensor, file_size, read_bytes

INLINE_LIMIT = 64 << 20  # bytes of weights that may stay inside the .onnx file
ALIGNMENT = 64  # of a tensor in the data file, bytes: a cache line

TORCH_TYPES = {
    onnx_ir.DataType.FLOAT: torch.float32,
    onnx_ir.DataType.FLOAT16: torch.float16,
    onnx_ir.DataType.BFLOAT16: torch.bfloat16,
    onnx_ir.DataType.DOUBLE: torch.float64,
    onnx_ir.DataType.INT64: torch.int64,
    onnx_ir.DataType.INT32: torch.int32,
    onnx_ir.DataType.BOOL: torch.bool,
}


def parameters(exported):
    """Initializers of `exported` that have no value yet, in the order of the graph."""
    return [v for v in exported.graph.initializers.values() if v.const_value is None]


def byte_size(parameter):
    """Bytes of an initializer's value."""
    return math.prod(parameter.shape.numpy()) * TORCH_TYPES[parameter.dtype].itemsize


def save(exported, path, value, no_weights=False):
    """Writes the model; `value(name, shape)` gives a parameter's LazyTensor.

    Weights above INLINE_LIMIT go to PATH.data beside it, one by one, so that one at
    a time is in memory. `no_weights`: the graph names that file but it is not made.
    """
    path = Path(path)
    missing = parameters(exported)
    total = sum(byte_size(parameter) for parameter in missing)
    if no_weights:
        place(missing, f"{path.name}.data")
        with whole_file(path) as target:
            onnx_ir.save(exported, target)
        return
    # Every tensor is found before the first byte is written.
    tensors = {p.name: value(p.name, tuple(p.shape.numpy())) for p in missing}
    if total <= INLINE_LIMIT:
        for parameter in missing:
            tensor = load(tensors[parameter.name], parameter)
            parameter.const_value = onnx_ir.Tensor(
                as_numpy(tensor), dtype=parameter.dtype, name=parameter.name
            )
        with whole_file(path) as target:
            onnx_ir.save(exported, target)
        return
    place(missing, f"{path.name}.data")
    with whole_file(path) as target, whole_file(f"{path}.data") as data:
        onnx_ir.save(exported, target)
        write_data(data, missing, tensors)


def place(missing, location):
    """Gives each parameter its place in the file `location`."""
    offset = 0
    for parameter in missing:
        size = byte_size(parameter)
        parameter.const_value = onnx_ir.ExternalTensor(
            location, offset, size, parameter.dtype, shape=parameter.shape,
            name=parameter.name,
        )
        offset = -(-(offset + size) // ALIGNMENT) * ALIGNMENT


def write_data(path, missing, tensors):
    """Writes each parameter's bytes to its place."""
    try:
        with open(path, "wb") as file:
            for parameter in missing:
                file.seek(parameter.const_value.offset)
                array = as_numpy(load(tensors[parameter.name], parameter))
                file.write(memoryview(array).cast("B"))
    except OSError as error:
        raise UserError(f"cannot write weights: {error.strerror}") from error


def load(tensor, parameter):
    """The value of a LazyTensor in the parameter's type."""
    value = tensor.load()
    if tuple(value.shape) != tuple(parameter.shape.numpy()):
        raise UserError(f"{tensor.origin} has shape {list(value.shape)}, "
                        f"expected {list(parameter.shape.numpy())}")
    return value.to(TORCH_TYPES[parameter.dtype])


def as_numpy(tensor):
    """The bytes of a tensor as a numpy array; bf16 as 16-bit integers."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


def read_onnx(path):
    """The ModelProto of a file, external data left where they are."""
    file_size(path)
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own error types
        raise UserError(f"'{path}' is not an ONNX model: {error}") from error


def open_weights(path, proto=None):
    """name -> LazyTensor of every float initializer of an exported model."""
    proto = proto or read_onnx(path)
    folder = Path(path).parent
    floats = [TORCH_TYPES[t] for t in TORCH_TYPES if t.is_floating_point()]
    return {
        tensor.name: open_initializer(tensor, folder, path)
        for tensor in proto.graph.initializer
        if TORCH_TYPES.get(onnx_ir.DataType(tensor.data_type)) in floats
    }


def open_initializer(tensor, folder, path):
    """The LazyTensor of one TensorProto of the model file `path` in `folder`."""
    dtype = TORCH_TYPES[onnx_ir.DataType(tensor.data_type)]
    shape = tuple(tensor.dims)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        def load_inline():
            array = onnx_ir.serde.deserialize_tensor(tensor).tobytes()
            return torch.frombuffer(bytearray(array), dtype=dtype).reshape(shape)

        return LazyTensor(shape, load_inline, f"tensor '{tensor.name}' of '{path}'", dtype)
    where = {entry.key: entry.value for entry in tensor.external_data}
    data = folder / where["location"]
    offset, size = int(where.get("offset", 0)), math.prod(shape) * dtype.itemsize

    def load_external():
        return torch.frombuffer(read_bytes(data, offset, size), dtype=dtype).reshape(shape)

    return LazyTensor(shape, load_external, f"tensor '{tensor.name}' of '{data}'", dtype)


def read_metadata(proto):
    """Metadata of a model, name -> text."""
    return {entry.key: entry.value for entry in proto.metadata_props}


def prefix_path(path):
    """The file with the frozen prefix of an export with --features."""
    return Path(path).with_suffix(".prefix.onnx")


def load_model(path, dtype=torch.float32):
    """(MiniGPT4Qwen in evaluation mode with weights of `dtype`, metadata) of an exported model.

    An export with --features is put together with its prefix. Raises UserError for a
    file that is no export of minigpt4qwen and for weights that are not there.
    """
    from mgq import minigpt4qwen  # it is slow to import

    proto = read_onnx(path)
    metadata = read_metadata(proto)
    if "mgq.architecture" not in metadata:
        raise UserError(f"'{path}' was not written by 'mgq-export minigpt4qwen': it has no "
                        "metadata mgq.architecture")
    lora = Lora.from_json(metadata["mgq.lora"]) if "mgq.lora" in metadata else None
    model = minigpt4qwen.build(
        Architecture.from_json(metadata["mgq.architecture"]),
        int(metadata["mgq.image_token_id"]), int(metadata["mgq.images"]), lora,
    )
    weights = open_weights(path, proto)
    if "mgq.features" in metadata:
        weights = {**open_weights(prefix_path(path)), **weights}

    def value(name, shape):
        tied = name.replace("embed_tokens.weight", "lm_head.weight")
        found = weights.get(name) or weights.get(tied.replace(".model.lm_head", ".lm_head"))
        if found is None:
            raise UserError(f"'{path}' has no parameter '{name}'")
        if found.shape != shape:
            raise UserError(f"{found.origin} has shape {list(found.shape)}, "
                            f"expected {list(shape)}")
        return found.load().to(dtype)

    return minigpt4qwen.fill(model, value).eval(), metadata

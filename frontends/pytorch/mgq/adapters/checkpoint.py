"""Checkpoints of mgq executables: model.safetensors, read and written."""

from pathlib import Path

import torch

from mgq.adapters.names import listed
from mgq.adapters.peft_folder import CONFIG, OTHER
from mgq.errors import UserError
from mgq.tensor_files import LazyTensor, open_safetensors, write_safetensors

FILE = "model.safetensors"
TORCH_SUFFIXES = (".pth", ".pt", ".bin")


def is_peft(folder):
    """Whether a folder is one that mgq-adapter or PEFT has written."""
    return any((folder / name).exists() for name in (CONFIG, OTHER))


def open_checkpoint(path):
    """name -> LazyTensor of a checkpoint's folder, or of its model.safetensors."""
    path = Path(path)
    if path.is_dir() and not (path / FILE).exists():
        inside = [p for p in path.glob("checkpoint-*") if (p / FILE).exists()]
        inside.sort(key=lambda p: (len(p.name), p.name))
        if inside:
            raise UserError(f"'{path}' is a folder of checkpoints; give one of them, the last is "
                            f"'{inside[-1]}'")
        hint = "; it is a folder of PEFT, which --to=checkpoint reads" if is_peft(path) else ""
        raise UserError(f"'{path}' is not a checkpoint: it has no {FILE}{hint}")
    if path.is_file() and path.suffix in TORCH_SUFFIXES:
        raise UserError(f"'{path}' is a file of PyTorch, which --to=checkpoint reads; expected a "
                        "checkpoint of an mgq executable")
    tensors = open_safetensors(path / FILE if path.is_dir() else path)
    for tensor in tensors.values():
        if not tensor.dtype.is_floating_point:
            raise UserError(f"{tensor.origin} has type {tensor.dtype}, expected floating-point "
                            "numbers")
    return tensors


def complete(found, model, names, keep, where):
    """`found`, name -> LazyTensor, made exactly `names` in their order.

    What is missing is an error, or the model's own if `keep`. Returns the tensors and the
    names of those kept.
    """
    missing = [name for name in names if name not in found]
    if missing and not keep:
        raise UserError(f"{where} lacks {len(missing)} of the {len(names)} parameters that train: "
                        f"{listed(missing)}; --missing=keep takes the model's own values")
    tensors = {name: found.get(name) or model.parameters[name] for name in names}
    return tensors, missing


def stored(tensor, parameter):
    """A LazyTensor as --initial-parameters reads it: in the parameter's own type if it has
    that, else widened to f32."""
    if tensor.dtype == parameter.dtype and tensor.dtype != torch.float64:
        return tensor
    return LazyTensor(tensor.shape, lambda: tensor.load().float(), tensor.origin, torch.float32)


def write_checkpoint(folder, tensors, model):
    """Writes FOLDER/model.safetensors."""
    tensors = {name: stored(tensor, model.parameters[name]) for name, tensor in tensors.items()}
    write_safetensors(Path(folder) / FILE, tensors, {"format": "pt"})

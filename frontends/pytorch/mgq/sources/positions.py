"""Position embeddings of a ViT for another image size."""

import math

import torch

from mgq.errors import UserError


def resize(tensors, key, shape, where):
    """The LazyTensor `key` of `tensors` from `where`, [1, 1 + patches, width], for `shape`.

    Patches are interpolated bicubically; the class token's position stays.
    """
    tensor = tensors.get(key)
    if tensor is None:
        raise UserError(f"'{where}' has no tensor '{key}'")
    if tensor.shape == tuple(shape):
        return tensor
    old = math.isqrt(tensor.shape[1] - 1)
    if tensor.shape[::2] != tuple(shape)[::2] or old * old != tensor.shape[1] - 1:
        raise UserError(f"{tensor.origin} has shape {list(tensor.shape)}, expected {list(shape)}")
    new = math.isqrt(shape[1] - 1)
    return tensor.then(lambda value: interpolate(value.float(), old, new), tuple(shape))


def interpolate(value, old, new):
    """[1, 1 + old * old, width] -> [1, 1 + new * new, width]."""
    grid = value[:, 1:].unflatten(1, (old, old)).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
    return torch.cat([value[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)

"""scikit-learn's handwritten digits: 1797 real pictures of 8 x 8 pixels."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from mgq.architecture import IMAGE_MEAN, IMAGE_STD

HELD_OUT = 397  # pictures that nothing is trained on


def split(part):
    """The pictures (U8 [n, 8, 8]) and digits of "train" or "held-out"."""
    data = load_digits()
    pictures = np.round(data.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(pictures))
    rows = order[HELD_OUT:] if part == "train" else order[:HELD_OUT]
    return pictures[rows], data.target[rows]


def load_pictures(part, size):
    """Normalised f32 [n, 3, size, size] as mgq-prepare makes them, and digits [n]."""
    pictures, digits = split(part)
    resized = [
        np.asarray(Image.fromarray(picture).convert("RGB").resize((size, size), Image.BICUBIC))
        for picture in pictures
    ]
    pixels = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGE_MEAN, IMAGE_STD))
    return (pixels - mean) / std, torch.from_numpy(digits)

"""Pictures and frames of videos as U8 pixels [3, size, size].

As the image processors of MPP-LLaVA: RGB as Pillow converts it (alpha is dropped, the
orientation in EXIF is not applied, of an animation the first frame), bicubic resizing.
"""

import io
import math
import random
import re
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from mgq.data.conversations import RecordError
from mgq.errors import UserError

UNREADABLE = "unreadable picture"
FRAME_ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# The random crop of `--transform=train`: share of the area, width to height, tries.
CROP_AREA = (0.5, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_TRIES = 10

# What Pillow reads is read: big pictures below its hard limit, odd palettes, damaged EXIF.
warnings.filterwarnings("ignore", module=r"PIL\.")


def name_of(source):
    """How messages call a picture."""
    return f"of {len(source)} bytes in the record" if isinstance(source, bytes) else f"'{source}'"


def unreadable(source, why):
    return RecordError(f"picture {name_of(source)}: {why}", UNREADABLE)


def to_rgb(image):
    """RGB. Of 16-bit grey the upper 8 bits, where Pillow would make all but the darkest white."""
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.size and values.max() > 255:
            values = np.clip(values, 0, 65535) >> 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("not supported yet: a picture of floating-point numbers")
    return image.convert("RGB")


def load(source, root):
    """A picture (path below `root`, or bytes) in RGB. Raises RecordError with its name."""
    try:
        with Image.open(
            io.BytesIO(source) if isinstance(source, bytes) else Path(root, source)
        ) as image:
            return to_rgb(image)
    except FileNotFoundError as error:
        raise unreadable(source, f"no such file in '{root}'") from error
    except Image.UnidentifiedImageError as error:
        raise unreadable(source, "no picture of a known format") from error
    except OSError as error:
        raise unreadable(source, error.strerror or error) from error
    except MemoryError:
        raise
    except Exception as error:  # damaged files raise whatever a decoder stumbles on
        raise unreadable(source, error) from error


def resize(image, size):
    return image.resize((size, size), Image.Resampling.BICUBIC)


def random_box(width, height, dice):
    """(left, top, right, bottom) of a crop of random area and shape within the picture."""
    low, high = map(math.log, CROP_RATIO)
    for _ in range(CROP_TRIES):
        area = width * height * dice.uniform(*CROP_AREA)
        ratio = math.exp(dice.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = dice.randrange(width - w + 1), dice.randrange(height - h + 1)
            return left, top, left + w, top + h
    # A very long picture: its middle, of the nearest allowed shape.
    w = min(width, round(height * CROP_RATIO[1]))
    h = min(height, round(width / CROP_RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + max(w, 1), top + max(h, 1)


def transform(image, size, seed=None):
    """U8 [3, size, size]. `seed`: None for evaluation, else of a random crop and flip."""
    if seed is None:
        image = resize(image, size)
    else:
        dice = random.Random(seed)
        image = resize(image.crop(random_box(*image.size, dice)), size)
        if dice.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).transpose(2, 0, 1)


def chosen_frames(total, wanted):
    """Which of `total` frames stand for a video: every floor(total / wanted)-th, from the first."""
    step = max(1, total // wanted)
    return range(0, min(total, step * wanted), step)


def natural_order(path):
    """Key that puts frame_2 before frame_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def frames_of_folder(source, folder, wanted):
    paths = [
        p
        for p in folder.iterdir()
        if p.suffix.lower() in FRAME_ENDINGS and not p.name.startswith(".")
    ]
    if not paths:
        raise RecordError(f"video '{source}': a folder without pictures", UNREADABLE)
    paths.sort(key=natural_order)
    return [load(str(paths[i]), folder) for i in chosen_frames(len(paths), wanted)]


def count_frames(container, stream):
    """Frames of a video: as its file says, else of its duration."""
    if stream.frames:
        return stream.frames
    if stream.duration is not None:
        seconds = stream.duration * stream.time_base
    else:  # of the whole file, in microseconds
        seconds = Fraction(container.duration or 0, 10**6)
    return int(seconds * (stream.average_rate or 0))


def decoded_frames(source, path, wanted):
    """Frames of a video file, by PyAV."""
    try:
        import av
    except ImportError as error:
        raise UserError(
            f"video '{source}' is a file, which needs PyAV: run 'pip install av', or give a folder of frames"
        ) from error
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            total = count_frames(container, stream)
            chosen, frames = set(chosen_frames(total, wanted)), []
            for i, frame in enumerate(container.decode(stream)):
                if i in chosen:
                    frames.append(frame.to_image().convert("RGB"))
                if len(frames) == len(chosen):
                    break
    except (av.error.FFmpegError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"video '{source}': cannot be decoded: {error}", UNREADABLE) from error
    if not frames:
        raise RecordError(f"video '{source}': no frames", UNREADABLE)
    return frames


def load_video(source, root, wanted):
    """At most `wanted` frames in RGB: of a list of frames, a folder, or a file."""
    if isinstance(source, list):
        return [load(source[i], root) for i in chosen_frames(len(source), wanted)]
    if isinstance(source, bytes):
        raise RecordError(
            "video is a data URL; not supported yet: give a file or a folder", UNREADABLE
        )
    path = Path(root, source)
    try:
        if path.is_dir():
            return frames_of_folder(source, path, wanted)
        if not path.is_file():
            raise RecordError(f"video '{source}': no such file or folder in '{root}'", UNREADABLE)
    except OSError as error:
        raise RecordError(f"video '{source}': {error.strerror}", UNREADABLE) from error
    return decoded_frames(source, path, wanted)

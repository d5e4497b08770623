"""Pictures and videos of mgq-prepare: kinds of files, transforms, what cannot be read."""

import importlib.util
import io
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import fixtures
import numpy as np
from mgq.data import pictures
from mgq.data.conversations import RecordError
from mgq.errors import UserError
from PIL import Image
from prepare_case import ENVIRONMENT


class PicturesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = Path(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def fails(self, name, message):
        with self.assertRaisesRegex(RecordError, f"picture '{name}': .*{message}") as caught:
            pictures.load(name, self.work)
        self.assertEqual(caught.exception.kind, pictures.UNREADABLE)

    def test_kinds(self):
        """Grey, palette, CMYK, alpha and others are RGB, as Pillow converts them."""
        for mode, name in (
            ("L", "l.png"),
            ("1", "1.png"),
            ("P", "p.gif"),
            ("CMYK", "c.jpg"),
            ("RGBA", "a.png"),
            ("LA", "la.png"),
            ("YCbCr", "y.jpg"),
            ("RGB", "r.webp"),
            ("RGB", "r.bmp"),
        ):
            path = fixtures.picture(self.work / name, mode=mode)
            found = pictures.load(name, self.work)
            with Image.open(path) as image:
                expected = np.asarray(image.convert("RGB"))
            np.testing.assert_array_equal(np.asarray(found), expected, name)
            self.assertEqual(np.asarray(found).shape, (30, 40, 3))

    def test_alpha_is_dropped(self):
        """A transparent pixel has the colour that the file gives it."""
        Image.new("RGBA", (2, 2), (10, 20, 30, 0)).save(self.work / "clear.png")
        self.assertEqual(pictures.load("clear.png", self.work).getpixel((0, 0)), (10, 20, 30))

    def test_no_warnings(self):
        """What Pillow reads with a warning is read without: a palette with transparent entries."""
        image = Image.new("P", (4, 4))
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.save(self.work / "palette.png", transparency=b"\x00\x80")
        code = f"from mgq.data import pictures; print(pictures.load('palette.png', {str(self.work)!r}).getpixel((0, 0)))"
        done = subprocess.run(
            [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True
        )
        self.assertEqual((done.stdout, done.stderr), ("(10, 20, 30)\n", ""))

    def test_sixteen_bits(self):
        """Of 16-bit grey the upper 8 bits count."""
        values = np.array([[0, 255, 256], [0x1234, 0x8000, 0xFFFF]], np.uint16)
        Image.fromarray(values).save(self.work / "16.png")
        self.assertEqual(
            np.asarray(pictures.load("16.png", self.work))[..., 1].tolist(), (values >> 8).tolist()
        )

    def test_orientation_is_not_applied(self):
        """EXIF's orientation is left alone, as MPP-LLaVA does."""
        exif = Image.Exif()
        exif[0x0112] = 6
        fixtures.picture(self.work / "turned.jpg", exif=exif)
        self.assertEqual(pictures.load("turned.jpg", self.work).size, (40, 30))

    def test_animation(self):
        """Of an animation the first frame counts."""
        frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
        frames[0].save(self.work / "moves.gif", save_all=True, append_images=frames[1:])
        self.assertEqual(pictures.load("moves.gif", self.work).getpixel((0, 0)), (255, 0, 0))

    def test_unreadable(self):
        """Each kind of unreadable picture is reported with its name."""
        self.fails("none.png", "no such file in")
        (self.work / "text.png").write_text("no picture")
        self.fails("text.png", "no picture of a known format")
        (self.work / "empty.jpg").write_bytes(b"")
        self.fails("empty.jpg", "no picture of a known format")
        for name in ("cut.jpg", "cut.png", "cut.gif", "cut.bmp"):
            whole = fixtures.picture(self.work / name, (200, 200)).read_bytes()
            (self.work / name).write_bytes(whole[: len(whole) // 2])
            self.fails(name, "")
        (self.work / "folder.png").mkdir()
        self.fails("folder.png", "Is a directory")
        self.fails("bad\0name.png", "")
        Image.fromarray(np.ones((3, 3), np.float32)).save(self.work / "float.tif")
        self.fails("float.tif", "not supported yet: a picture of floating-point numbers")
        with self.assertRaisesRegex(
            RecordError, "picture of 3 bytes in the record: no picture of a known format"
        ):
            pictures.load(b"abc", self.work)

    def test_damaged_bytes(self):
        """A file with any byte damaged is read or reported, never a crash."""
        dice = np.random.default_rng(1)
        for name in ("d.png", "d.jpg", "d.gif", "d.webp", "d.tif"):
            whole = fixtures.picture(self.work / name).read_bytes()
            for _ in range(60):
                damaged = bytearray(whole)
                for at in dice.integers(0, len(whole), 3):
                    damaged[at] = dice.integers(0, 256)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        self.assertEqual(pictures.load(bytes(damaged), self.work).mode, "RGB")
                    except RecordError as error:
                        self.assertEqual(error.kind, pictures.UNREADABLE)

    def test_bomb(self):
        """A small file that decodes to a giant picture is reported, not decoded."""
        header = io.BytesIO()
        Image.new("1", (40, 40)).save(header, "PNG")
        data = bytearray(header.getvalue())
        data[16:24] = (60000).to_bytes(4, "big") * 2
        import zlib

        data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
        (self.work / "bomb.png").write_bytes(bytes(data))
        self.fails("bomb.png", "decompression bomb")

    def test_evaluation(self):
        """The whole picture, resized by Pillow's bicubic filter; its type is U8 [3, S, S]."""
        image = pictures.load(str(fixtures.picture(self.work / "e.png", (50, 20))), self.work)
        pixels = pictures.transform(image, 28)
        self.assertEqual((pixels.dtype, pixels.shape), (np.uint8, (3, 28, 28)))
        expected = np.asarray(image.resize((28, 28), Image.Resampling.BICUBIC))
        np.testing.assert_array_equal(pixels, expected.transpose(2, 0, 1))

    def test_crops(self):
        """Random crops have half of the area or more, 3:4 to 4:3, and lie within; a long picture gives its middle."""
        import random

        for size in ((40, 30), (500, 333), (100, 100)):
            for seed in range(200):
                left, top, right, bottom = pictures.random_box(*size, random.Random(seed))
                self.assertTrue(0 <= left < right <= size[0] and 0 <= top < bottom <= size[1])
                width, height = right - left, bottom - top
                self.assertTrue(0.47 <= width * height / (size[0] * size[1]) <= 1.01)
                self.assertTrue(0.7 <= width / height <= 1.4)
        self.assertEqual(pictures.random_box(1000, 30, random.Random(1)), (480, 0, 520, 30))
        self.assertEqual(pictures.random_box(30, 1000, random.Random(1)), (0, 480, 30, 520))
        self.assertEqual(pictures.random_box(1, 1, random.Random(1)), (0, 0, 1, 1))

    def test_random_transform(self):
        """A seed decides crop and flip; half of the seeds flip."""
        ramp = np.tile(np.arange(0, 256, 4, np.uint8)[None, :, None], (64, 1, 3))
        image = Image.fromarray(ramp)
        rows = [pictures.transform(image, 8, seed)[0, 0].astype(int) for seed in range(400)]
        np.testing.assert_array_equal(
            pictures.transform(image, 8, 5), pictures.transform(image, 8, 5)
        )
        flipped = sum(row[0] > row[-1] for row in rows)
        self.assertTrue(150 < flipped < 250, flipped)
        self.assertGreater(len({tuple(row) for row in rows}), 100)


class VideosTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.work = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def test_chosen_frames(self):
        """Every floor(total / wanted)-th frame from the first, as MPP-LLaVA; all of a short video."""
        self.assertEqual(list(pictures.chosen_frames(10, 4)), [0, 2, 4, 6])
        self.assertEqual(list(pictures.chosen_frames(7, 3)), [0, 2, 4])
        self.assertEqual(list(pictures.chosen_frames(8, 8)), list(range(8)))
        self.assertEqual(list(pictures.chosen_frames(3, 8)), [0, 1, 2])
        self.assertEqual(list(pictures.chosen_frames(100, 1)), [0])

    def test_folder(self):
        """Frames of a folder stand in the order of their numbers; other files are left alone."""
        for number in (1, 2, 10):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(self.work / f"f{number}.png")
        (self.work / "notes.txt").write_text("x")
        frames = pictures.load_video(".", self.work, 8)
        self.assertEqual([frame.getpixel((0, 0))[0] for frame in frames], [1, 2, 10])

    def test_errors(self):
        """What cannot be read of a video is named."""
        (self.work / "empty").mkdir()
        with self.assertRaisesRegex(RecordError, "video 'empty': a folder without pictures"):
            pictures.load_video("empty", self.work, 2)
        with self.assertRaisesRegex(RecordError, "video 'none': no such file or folder in"):
            pictures.load_video("none", self.work, 2)
        with self.assertRaisesRegex(RecordError, "video 'x+': File name too long"):
            pictures.load_video("x" * 300, self.work, 2)
        with self.assertRaisesRegex(RecordError, "picture 'none.png': no such file"):
            pictures.load_video(["none.png"], self.work, 2)
        with self.assertRaisesRegex(RecordError, "video is a data URL; not supported yet"):
            pictures.load_video(b"x", self.work, 2)

    def test_without_pyav(self):
        """A video file without PyAV is an error that says what to do."""
        (self.work / "v.mp4").write_bytes(b"x")
        with mock.patch.dict("sys.modules", {"av": None}):
            with self.assertRaisesRegex(
                UserError, "video 'v.mp4' is a file, which needs PyAV: run 'pip install av'"
            ):
                pictures.load_video("v.mp4", self.work, 2)

    def write_video(self, name, frames=10):
        """Grey levels 0, 20, 40, ..., ten a second."""
        import av

        with av.open(str(self.work / name), "w") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width = stream.height = 64
            for number in range(frames):
                pixels = np.full((64, 64, 3), 20 * number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            container.mux(stream.encode())

    @unittest.skipUnless(importlib.util.find_spec("av"), "needs PyAV")
    def test_file(self):
        """Frames of a video file are chosen as those of a folder, whether the file counts them or not."""
        for name in ("v.mp4", "v.mkv", "v.avi", "v.MOV"):
            self.write_video(name)
            for wanted, expected in ((4, [0, 40, 80, 120]), (16, range(0, 200, 20)), (1, [0])):
                frames = pictures.load_video(name, self.work, wanted)
                levels = [frame.getpixel((30, 30))[0] for frame in frames]
                np.testing.assert_allclose(levels, list(expected), atol=6, err_msg=name)

    @unittest.skipUnless(importlib.util.find_spec("av"), "needs PyAV")
    def test_bad_files(self):
        """A file that is no video, has only sound, or is damaged anywhere is reported, never a crash."""
        import av

        (self.work / "bad.mp4").write_bytes(b"no video" * 100)
        with av.open(str(self.work / "sound.wav"), "w") as container:
            stream = container.add_stream("pcm_s16le", rate=8000)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
        for name in ("bad.mp4", "sound.wav"):
            with self.assertRaisesRegex(RecordError, f"video '{name}': cannot be decoded"):
                pictures.load_video(name, self.work, 4)
        self.write_video("v.mp4")
        whole = (self.work / "v.mp4").read_bytes()
        dice = np.random.default_rng(3)
        for _ in range(100):
            damaged = bytearray(whole[: dice.integers(1, len(whole) + 1)])
            for at in dice.integers(0, len(damaged), 4):
                damaged[at] = dice.integers(0, 256)
            (self.work / "damaged.mp4").write_bytes(bytes(damaged))
            try:
                self.assertLessEqual(len(pictures.load_video("damaged.mp4", self.work, 4)), 4)
            except RecordError as error:
                self.assertEqual(error.kind, pictures.UNREADABLE)


if __name__ == "__main__":
    unittest.main()

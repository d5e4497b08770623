"""What mgq-prepare writes trains: the same losses from U8 and f32 pixels, from any files of the same rows."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import fixtures
import numpy as np
from mgq.commands import export, prepare
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

RUN = os.environ.get("MGQ_RUN", str(fixtures.ROOT / "build" / "bin" / "mgq-run"))
COMPILE = os.environ.get("MGQ_COMPILE", str(fixtures.ROOT / "build" / "bin" / "mgq-compile"))
IMAGES, LENGTH = 2, 96


class PreparedTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        work = cls.work = Path(cls.folder.name)
        fixtures.hf_tokenizer(work / "tok")
        records = []
        for i in range(13):
            names = [f"{i}-{k}.png" for k in range(i % (IMAGES + 1))]  # some without pictures
            for k, name in enumerate(names):
                fixtures.picture(work / name, seed=10 * i + k)
            mark = "<Img><ImageHere></Img>" * len(names)
            records.append({"image": names, "instruction": f"{mark} {i}?", "output": "x" * i})
        cls.data = work / "data.json"
        cls.data.write_text(json.dumps(records))
        cls.model = cls.export("model.onnx", "--length", str(LENGTH))
        cls.shards = cls.prepare("u8", "--shard-size", "4")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def export(cls, name, *options):
        path = cls.work / name
        export.main([
            "minigpt4qwen", "--size", "tiny", "--lora", "r=2", "--images", str(IMAGES), "--micro-batch", "2",
            *options, "-o", str(path),
        ])  # fmt: skip
        return path

    @classmethod
    def prepare(cls, name, *options, model=None):
        prepare.main([
            "--data", str(cls.data), "--tokenizer", str(cls.work / "tok"), "--model", str(model or cls.model),
            "-o", str(cls.work / name), "--workers", "1", *options,
        ])  # fmt: skip
        return sorted(cls.work.glob(f"{name}-*.safetensors"))

    def executable(self, model):
        path = model.with_suffix("")
        if not path.exists():
            subprocess.run([COMPILE, model, "-o", path], check=True)
        return path

    def train(self, *data, model=None):
        """Loss and norm of gradients of four steps."""
        log = self.work / "log.jsonl"
        log.unlink(missing_ok=True)
        command = [
            self.executable(model or self.model),
            "--data",
            *data,
            "--steps",
            "4",
            "--threads",
            "1",
            "--log-file",
            log,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = map(json.loads, log.read_text().splitlines())
        return [(line["loss"], line["grad_norm"]) for line in lines]

    def test_pixels(self):
        """U8 pixels in several files give the bits of normalised f32 pixels in one."""
        parts = [load_file(path) for path in self.shards]
        self.assertEqual([len(part["labels"]) for part in parts], [4, 4, 4, 2])
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        with safe_open(self.shards[0], "np") as file:
            metadata = file.metadata()
        mean, std = (
            np.array(metadata.pop(f"pixel_values.{name}").split(","), np.float32)[:, None, None]
            for name in ("mean", "std")
        )
        rows["pixel_values"] = (rows["pixel_values"] / np.float32(255) - mean) / std
        self.assertEqual(rows["pixel_values"].dtype, np.float32)
        save_file(rows, self.work / "f32.safetensors", metadata)
        losses = self.train(*self.shards)
        self.assertEqual(len(losses), 4)
        self.assertTrue(all(loss > 0 and norm > 0 for loss, norm in losses))
        self.assertEqual(losses, self.train(self.work / "f32.safetensors"))

    def test_features(self):
        """Features of the frozen prefix give the bits of the losses and gradients of pixels."""
        model = self.export("features.onnx", "--length", str(LENGTH), "--features")
        options = (
            "--features",
            str(model.with_suffix(".prefix.onnx")),
            "--mgq-run",
            RUN,
            "--shard-size",
            "8",
        )
        shards = self.prepare("features", *options, model=model)
        self.assertEqual([len(load_file(path)["image_features"]) for path in shards], [8, 6])
        self.assertEqual(self.train(*shards, model=model), self.train(*self.shards))

    def test_data_of_another_model(self):
        """The executable refuses shards for a model with other metadata."""
        with safe_open(self.shards[0], "np") as file:
            metadata = file.metadata()
        for key in [key for key in metadata if key.startswith("mgq.")]:
            other = self.work / "other.safetensors"
            save_file(load_file(self.shards[0]), other, metadata | {key: "3"})
            command = [self.executable(self.model), "--data", other, "--steps", "1"]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"other.safetensors.*{key}")


if __name__ == "__main__":
    unittest.main()

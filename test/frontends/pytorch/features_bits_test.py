"""Features of mgq-export --features, made by mgq-run --records, train bit by bit as pixels do, with
LoRA's dropout and with one and three images a sample."""

import unittest

import torch
from export_case import ExportTest
from safetensors.torch import load_file

SIZE = ("--size", "tiny", "--lora", "r=4,dropout=0.1", "--micro-batch", 2)
RECORDS = 4


class FeaturesBitsTest(ExportTest):
    def check_images(self, images):
        options = (*SIZE, "--images", images)
        data = self.work / "pixels.safetensors"
        whole = self.export(*options, "--data", data, "--records", RECORDS, name="whole.onnx")
        rest = self.export(*options, "--features", name="rest.onnx")
        features = self.work / "features.safetensors"
        self.tool(
            "MGQ_RUN", self.work / "rest.prefix.onnx", "--inputs", data, "--outputs", features,
            "--records",
        )  # fmt: skip
        pixels = load_file(data)
        made = load_file(features)
        self.assertEqual(list(made), ["image_features"])
        self.assertEqual(made["image_features"].shape[0], 2 * RECORDS)
        rows = {name: t.flatten(0, 1) for name, t in pixels.items() if name != "pixel_values"}
        first = self.train(whole, pixels, steps=RECORDS)
        second = self.train(rest, {**rows, **made}, steps=RECORDS)
        for logs in (first[0], second[0]):
            for line in logs:
                del line["step_seconds"]
        self.assertEqual(first[0], second[0])
        self.assertEqual(set(first[1]), set(second[1]))
        for name, gradient in first[1].items():
            self.assertTrue(torch.equal(gradient, second[1][name]), name)

    def test_one_image(self):
        self.check_images(1)

    def test_three_images(self):
        self.check_images(3)


if __name__ == "__main__":
    unittest.main()

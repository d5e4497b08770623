"""mgq-prepare --features: shards of what a frozen prefix makes of pixels, here by a stand-in for mgq-run."""

import stat
import sys
import unittest

import numpy as np
from prepare_case import PrepareTest
from safetensors import safe_open
from safetensors.numpy import load_file

# Takes what mgq-run takes: features are means of normalised pixels, [rows, 3, 28].
STAND_IN = """#!{python}
import sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
model, *rest = sys.argv[1:]
options = dict(zip(rest[0:4:2], rest[1:4:2]))
assert rest[4:] == ["--records", *{dim!r}], rest
with safe_open(options["--inputs"], "np") as file:
    assert list(file.keys()) == ["pixel_values"]
    assert file.metadata() == {{"pixel_values.mean": "0.5,0.5,0.5", "pixel_values.std": "0.25,0.25,0.25"}}
    pixels = file.get_tensor("pixel_values")
assert len(pixels) % {batch} == 0, len(pixels)
if {fail!r}:
    sys.exit("mgq-run: error: {fail}")
features = ((pixels / np.float32(255) - 0.5) / 0.25).mean(-1)
save_file({{"image_features": features.astype(np.float32)}}, options["--outputs"])
"""


def onnx_of(path, inputs, outputs, **values):
    """An ONNX file with float inputs and outputs (name -> shape) and metadata."""
    from onnx import TensorProto, helper, save

    info = lambda shapes: [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    node = helper.make_node("ReduceMean", [next(iter(inputs))], [next(iter(outputs))], keepdims=0)
    model = helper.make_model(helper.make_graph([node], "model", info(inputs), info(outputs)))
    facts = {
        "mgq.image_token_id": 5,
        "mgq.tokens_per_image": 4,
        "mgq.images": 1,
        "mgq.image_size": 28,
        "mgq.length": 80,
        "mgq.vocabulary": 256,
        "mgq.features": "blocks.1",
        "pixel_values.mean": "0.5,0.5,0.5",
        "pixel_values.std": "0.25,0.25,0.25",
    } | values
    helper.set_model_props(model, {key: str(value) for key, value in facts.items()})
    save(model, str(path))


class FeaturesTest(PrepareTest):
    def setUp(self):
        super().setUp()
        self.pixels_model = self.model
        self.model = self.work / "f.onnx"
        self.prefix = self.work / "f.prefix.onnx"
        self.write_models()
        self.program()

    def write_models(self, batch=1, shape=(3, 28), **values):
        onnx_of(self.model, {"image_features": [batch, *shape]}, {"loss": []})
        onnx_of(
            self.prefix,
            {"pixel_values": [batch, 3, 28, 28]},
            {"image_features": [batch, 3, 28]},
            **values,
        )

    def program(self, fail="", batch=1, dim=()):
        path = self.work / "mgq-run"
        path.write_text(
            STAND_IN.format(python=sys.executable, fail=fail, batch=batch, dim=list(dim))
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.options = ("--features", self.prefix, "--mgq-run", path, "--workers", 1)

    def test_shards(self):
        """Features stand where pixels would, everything else is as with pixels."""
        self.prepare(*self.options, "--shard-size", 10)
        features_model, self.model = self.model, self.pixels_model
        self.prepare("--workers", 1, output="pixels/train")
        self.model = features_model
        pixels = load_file(self.work / "pixels" / "train-00000.safetensors")
        parts = [load_file(self.work / "out" / name) for name in self.files()]
        self.assertEqual([len(part["labels"]) for part in parts], [10, 10, 4])
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        values = pixels.pop("pixel_values")
        expected = ((values / np.float32(255) - 0.5) / 0.25).mean(-1).astype(np.float32)
        np.testing.assert_array_equal(rows.pop("image_features"), expected)
        for name in rows.keys() | pixels.keys():
            np.testing.assert_array_equal(rows[name], pixels[name])
        with safe_open(self.work / "out" / "train-00000.safetensors", "np") as file:
            self.assertEqual(file.metadata()["mgq.features"], "blocks.1")
            self.assertNotIn("pixel_values.mean", file.metadata())

    def test_micro_batches(self):
        """A prefix that takes several samples at a time gets whole micro-batches; a symbolic size is bound."""
        self.prepare(*self.options, output="one/train")
        self.write_models(batch=5)
        self.program(batch=5)
        self.prepare(*self.options, "--restart")
        self.assertEqual(self.files(), self.files("one"))
        self.write_models(batch="samples")
        self.program(dim=("--dim", "samples=1"))
        self.prepare(*self.options, "--restart")
        self.assertEqual(self.files(), self.files("one"))

    def test_without_model(self):
        """The prefix tells what the model would."""
        self.prepare(*self.options, output="one/train")
        self.model = None
        self.prepare(*self.options)
        self.assertEqual(self.files(), self.files("one"))

    def test_goes_on(self):
        """After a failing mgq-run the run goes on from the last whole shard."""
        self.prepare(*self.options, "--shard-size", 10, output="whole/train")
        self.program(fail="no memory")
        status, _, err = self.run_command(*self.options, "--shard-size", 10)
        self.assertEqual(status, 1)
        self.assertRegex(
            err, "mgq-run .*f.prefix.onnx failed with exit status 1:\nmgq-run: error: no memory"
        )
        self.assertEqual(self.files(), {})
        self.program()
        self.prepare(*self.options, "--shard-size", 10)
        self.assertEqual(self.files(), self.files("whole"))

    def test_errors(self):
        """A prefix of another model, no prefix, or no mgq-run is an error before anything is written."""
        self.fails(
            "--mgq-run '/none' is no program", "--features", self.prefix, "--mgq-run", "/none"
        )
        self.write_models(**{"mgq.features": "blocks.2"})
        self.fails(
            "f.prefix.onnx: metadata mgq.features is blocks.2, but the model's is blocks.1",
            *self.options,
        )
        self.write_models(**{"mgq.images": 2})
        self.fails("mgq.images is 2, but the graph's inputs have 1", *self.options)
        self.write_models(**{"pixel_values.mean": "0,0,0"})
        self.fails("metadata pixel_values.mean is .*, but the model's is", *self.options)
        self.write_models()
        self.fails(
            "f.onnx: is no frozen prefix: its inputs are",
            "--features",
            self.model,
            *self.options[2:],
        )
        self.assertFalse((self.work / "out").exists())
        self.write_models(shape=(3, 14))
        self.fails(
            r"output 'image_features' is F32 \[24, 3, 28\], expected F32 \[24, 3, 14\]",
            *self.options,
        )
        self.assertEqual(self.files(), {})

    def test_mgq_run_is_found(self):
        """mgq-run is sought in PATH, then beside mgq-prepare."""
        from unittest import mock

        with mock.patch.dict("os.environ", {"PATH": str(self.work)}):
            self.prepare("--features", self.prefix, "--workers", 1)
        with (
            mock.patch.dict("os.environ", {"PATH": "/none"}),
            mock.patch("sys.argv", [str(self.work / "mgq-prepare")]),
        ):
            self.prepare("--features", self.prefix, "--workers", 1, output="beside/train")
        with mock.patch.dict("os.environ", {"PATH": "/none"}):
            self.fails(
                "--features needs mgq-run, which is not in PATH; give --mgq-run PATH",
                "--features",
                self.prefix,
            )


if __name__ == "__main__":
    unittest.main()

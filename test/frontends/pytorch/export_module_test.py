"""mgq-export module: users' own modules train as in PyTorch, and what goes wrong is said."""

import unittest
from pathlib import Path

import modules
import onnx
from export_case import ExportTest
from mgq.onnx_weights import open_weights, read_metadata
from safetensors.torch import save_file

FILE = Path(modules.__file__)


class ModuleTest(ExportTest):
    """Factories of modules.py."""

    def export_module(self, factory, *options):
        """The file, and what the command said."""
        path = self.work / f"{factory}.onnx"
        status, err = self.run_command("module", f"{FILE}:{factory}", *options, "-o", path)
        self.assertEqual(status, 0, err)
        return path, err

    def check(self, factory, trainable, *options, compile_options=()):
        """Loss and gradients of the executable are PyTorch's; so are the names that train."""
        path, _ = self.export_module(factory, *options)
        model, inputs, *_ = getattr(modules, factory)()
        output = model(**inputs)
        loss = output if output.dim() == 0 else output["loss"]
        loss.backward()
        proto = onnx.load(path)
        self.assertEqual(read_metadata(proto)["mgq.trainable"].split(","), trainable)
        self.assertEqual([v.name for v in proto.graph.output], ["loss"])
        self.assertNotIn(str(FILE.parent).encode(), path.read_bytes())
        records = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
        log, gradients = self.train(path, records, compile_options=compile_options)
        self.assert_close(log[0]["loss"], loss.item())
        aliases = dict(model.named_parameters(remove_duplicate=False))
        self.assertEqual(sorted(gradients), sorted(trainable))
        for name, gradient in gradients.items():
            self.assert_close(gradient, aliases[name].grad, 1e-4)

    def test_perceptron(self):
        """A symbolic number of samples; a layer that the loss does not reach is left out."""
        names = ["first.weight", "first.bias", "second.weight", "second.bias"]
        self.check("perceptron", names, compile_options=["--dim=batch=4"])
        path, err = self.export_module("perceptron", "--opset", 18)
        self.assertRegex(err, r"note: the loss does not reach unused.weight, unused.bias: left out")
        proto = onnx.load(path)
        self.assertEqual(proto.opset_import[0].version, 18)
        self.assertEqual(read_metadata(proto)["origin"], "a test")
        self.assertEqual(proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param, "batch")

    def test_tied_decoder(self):
        """Tied weights are one parameter, whose gradient is that of both uses."""
        names = ["position", "attention.weight", "attention.bias", "out.weight", "out.bias",
                 "norm.weight", "embed.weight"]
        path, _ = self.export_module("tied_decoder")
        found = read_metadata(onnx.load(path))["mgq.trainable"].split(",")
        tied = [name for name in found if name in ("embed.weight", "head.weight")]
        self.assertEqual(len(tied), 1)
        names = [tied[0] if name == "embed.weight" else name for name in names]
        self.assertEqual(sorted(found), sorted(names))
        self.check("tied_decoder", found)

    def test_encoder(self):
        """A module in evaluation mode has no dropout; what is frozen in PyTorch is frozen."""
        self.check("encoder", ["head.weight", "head.bias"])
        path, _ = self.export_module("encoder", "--no-weights", "--trainable", "encoder.*,head.*")
        self.assertEqual(read_metadata(onnx.load(path, load_external_data=False))["mgq.trainable"],
                         "encoder.*,head.*")
        self.assertFalse((self.work / "encoder.onnx.data").exists())
        self.assertLess(path.stat().st_size, 100_000)

    def test_gpt2(self):
        """Hugging Face's output: the loss is kept, logits are not."""
        path, _ = self.export_module("gpt2")
        model, inputs = modules.gpt2()
        proto = onnx.load(path)
        self.assertEqual([v.name for v in proto.graph.output], ["loss"])
        self.assertEqual([v.name for v in proto.graph.input], ["input_ids", "labels"])
        loss = model(**inputs).loss
        loss.backward()
        log, gradients = self.train(path, {n: t.unsqueeze(0) for n, t in inputs.items()})
        self.assert_close(log[0]["loss"], loss.item())
        aliases = dict(model.named_parameters(remove_duplicate=False))
        self.assertEqual(len(gradients), len(list(model.parameters())))
        for name, gradient in gradients.items():
            expected = aliases[name].grad
            # A key's bias has no gradient: the norm is over the whole fused bias.
            self.assert_close(gradient, expected, 1e-4)

    def test_inputs(self):
        """--inputs brings the example of a factory that returns a module alone."""
        self.fails_with("returns no example inputs", "module_alone")
        _, inputs, _ = modules.perceptron()
        save_file(inputs, self.work / "example.safetensors")
        path, _ = self.export_module("module_alone", "--inputs", self.work / "example.safetensors")
        weights = open_weights(path)
        self.assertEqual(weights["first.weight"].load().tolist(),
                         modules.module_alone().first.weight.tolist())
        self.fails_with("cannot read '.*none.safetensors'", "module_alone", "--inputs",
                        self.work / "none.safetensors")

    def fails_with(self, message, factory, *options):
        """The export of a factory must fail so."""
        self.fails(message, f"{FILE}:{factory}", *options, command="module")

    def test_bad_modules(self):
        """What the module or its factory does wrong is said in a line that names it."""
        self.fails_with("must return a loss, a float scalar, first; it returns torch.float32 of "
                        r"shape \[3\]", "bad_vector")
        self.fails_with(r"it returns torch.int64 of shape \[\]", "bad_integer")
        self.fails_with("no parameter that the loss reaches requires a gradient", "bad_frozen")
        self.fails_with("PyTorch cannot export the model: .*[Dd]ata-dependent", "bad_branch")
        self.fails_with("fails on its example inputs: TypeError: .*'y'", "bad_inputs")
        self.fails_with("inputs must be a dictionary", "bad_example")
        self.fails_with("'dynamic' names 'y', which is no input", "bad_dynamic")
        self.fails_with("settings are a dictionary of dynamic, metadata, trainable", "bad_settings")
        self.fails_with("must return a torch.nn.Module", "bad_return")
        self.fails_with("bad_factory' failed: KeyError: 'no such thing'", "bad_factory")

    def test_bad_references(self):
        """So is a file or function that is not there."""
        self.fails("'thing' is not of the form FILE.py:FACTORY", "thing", command="module")
        self.fails("'none.py' does not exist", "none.py:make", command="module")
        self.fails_with("has no function 'none'", "none")
        broken = self.work / "broken.py"
        broken.write_text("1 +")
        self.fails("broken.py' failed: SyntaxError", f"{broken}:make", command="module")
        text = self.work / "broken.txt"
        text.write_text("")
        self.fails("is not a Python file", f"{text}:make", command="module")
        self.fails_with("--opset 17 is not supported yet; 18 to 23 are", "gpt2", "--opset", 17)


if __name__ == "__main__":
    unittest.main()

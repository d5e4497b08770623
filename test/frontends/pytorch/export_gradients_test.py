"""mgq-export module trains what PyTorch trains, where the forward ops alone do not tell."""

import unittest
from pathlib import Path

import onnx
import stops
from export_case import ExportTest
from mgq.onnx_weights import read_metadata
from torch.utils._pytree import tree_leaves

FILE = Path(stops.__file__)
FIRST, SECOND = ["first.weight", "first.bias"], ["second.weight", "second.bias"]


class GradientsTest(ExportTest):
    """Factories of stops.py."""

    def check(self, factory, trainable, note, *options):
        """`trainable` train, with PyTorch's gradients, and the command says `note`."""
        path = self.work / f"{factory}.onnx"
        status, err = self.run_command("module", f"{FILE}:{factory}", *options, "-o", path)
        self.assertEqual(status, 0, err)
        self.assertEqual(err, note)
        found = read_metadata(onnx.load(path))["mgq.trainable"].split(",")
        self.assertEqual(sorted(found), sorted(trainable))
        model, inputs = getattr(stops, factory)()
        loss = tree_leaves(model(**inputs))[0]
        loss.backward()
        log, gradients = self.train(path, {n: t.unsqueeze(0) for n, t in inputs.items()})
        self.assert_close(log[0]["loss"], loss.item())
        self.assertEqual(sorted(gradients), sorted(trainable))
        for name, gradient in gradients.items():
            self.assert_close(gradient, model.get_parameter(name).grad, 1e-4)

    def test_not_reached(self):
        """Parameters behind no_grad or detach do not train, and the command says so."""
        note = ("mgq-export: note: no gradient of the loss reaches first.weight, first.bias: "
                "not trained\n")
        self.check("no_grad", SECOND, note)
        self.check("detached", SECOND, note)
        self.check("no_grad", SECOND, note, "--trainable", "first.*,second.*")

    def test_harmless(self):
        """What stops no gradient of the loss is no obstacle; nor is recomputation, or a
        Function with the derivative of its ops."""
        for factory in ("harmless", "custom", "recomputed"):
            with self.subTest(factory):
                self.check(factory, FIRST + SECOND, "")

    def fails_with(self, message, factory, *options):
        """The export of a factory must fail so."""
        self.fails(message, f"{FILE}:{factory}", *options, command="module")

    def test_stops(self):
        """A gradient that is only a part of the graph's is refused."""
        for factory in ("partly_detached", "straight_through", "custom_round"):
            with self.subTest(factory):
                self.fails_with("not supported yet: .* stops or changes part of the gradient of "
                                "'first.weight'", factory)

    def test_stops_of_frozen(self):
        """Where what comes before is frozen there is nothing to stop."""
        status, err = self.run_command("module", f"{FILE}:partly_detached", "--trainable",
                                       "second.*", "-o", self.work / "model.onnx")
        self.assertEqual((status, err), (0, ""))

    def test_buffers(self):
        """Batch normalization in training mode is refused; with fixed statistics it trains."""
        self.fails_with("not supported yet: .* changes its buffer 'norm.running_mean' and 2 more "
                        r".* call .eval\(\)", "batch_norm")
        self.check("batch_norm_eval", [*FIRST, *SECOND, "norm.weight", "norm.bias"], "")

    def test_refused(self):
        """Names, types and settings that a file cannot hold."""
        self.fails_with("not supported yet: .*cross_entropy with label_smoothing", "smoothed")
        self.fails_with("'weight' is an input and a parameter or buffer", "same_name")
        self.fails_with("parameter 'matrix' of type torch.int8", "eight_bit")
        self.fails_with("parameter 'first.weight' has no value", "no_value")
        self.fails_with("'metadata' is a dictionary of texts, not {'version': 3}",
                        "number_metadata")
        self.fails_with("no parameter matches the trainable 'third.*'; there are first.weight, "
                        "first.bias, second.weight and 1 more", "no_match")


if __name__ == "__main__":
    unittest.main()

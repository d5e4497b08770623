"""What mgq-prepare says about wrong options, inputs, models and tokenizers."""

import json
import resource
import signal
import subprocess
import sys
import unittest
from unittest import mock

import fixtures
from mgq.commands import prepare
from prepare_case import ENVIRONMENT, PrepareTest


class ErrorsTest(PrepareTest):
    def test_usage(self):
        """Options that contradict each other are wrong usage."""
        self.fails("--variants needs --transform=train", "--variants", 2, status=2)
        self.fails("--mgq-run needs --features", "--mgq-run", "x", status=2)
        self.fails("argument --workers: invalid count value: '0'", "--workers", 0, status=2)
        self.fails("argument --mean: invalid three_numbers value: '1,2'", "--mean", "1,2", status=2)

    def test_documentation(self):
        """docs/PreparingData.md has every option."""
        text = (fixtures.ROOT / "docs" / "PreparingData.md").read_text()
        for action in prepare.make_parser()._actions[1:]:
            for option in [name for name in action.option_strings if name != "--output"]:
                self.assertRegex(text, rf"`{option}[ `=\\[]", option)

    def test_inputs(self):
        """What is missing among the inputs is named, and nothing is written."""
        self.fails(
            "data file '.*none.json' cannot be read: No such file", data=self.work / "none.json"
        )
        (self.work / "bad.json").write_text('[{"a": 1},\n{"b" 2}]')
        self.fails(
            "bad.json: line 2: record 2: Expecting ':' delimiter", data=self.work / "bad.json"
        )
        self.fails(
            "--images-root '/none' is no folder", "--images-root", "/none", "--data", self.data
        )
        self.fails("--images-root names 2 folders for 1 data files", "--images-root", self.work)
        self.fails("weight -1, expected a positive number", data=f"{self.data}:-1")
        self.fails("weight 0, expected a positive number", data=f"{self.data}:0")
        self.fails("the weights leave no record", data=f"{self.data}:0.01")
        self.fails("data file '.*data.json:x' cannot be read", data=f"{self.data}:x")
        self.fails("tokenizer folder '/none' does not exist", "--tokenizer", "/none")
        self.fails("is no tokenizer folder", "--tokenizer", self.work / "images")
        self.fails("model '/none.onnx' does not exist", "--model", "/none.onnx")
        self.fails("data.json' cannot be read as ONNX", "--model", self.data)
        self.assertFalse((self.work / "out").exists())

    def test_colon_in_a_name(self):
        """A file whose name ends like a weight is that file."""
        path = self.work / "data:2"
        path.write_text(json.dumps(self.records[:3]))
        self.prepare("--workers", 1, data=path)
        self.assertEqual(self.state()["counts"]["samples"], 3)

    def test_model_and_options(self):
        """Options stand in for metadata that a model lacks, and must agree with what it has."""
        self.fails("--length is 64, but model '.*' has 80", "--length", 64)
        self.fails("--micro-batch is 2, but model '.*' has 1", "--micro-batch", 2)
        self.fails("--images is 2, but model '.*' has 1", "--images", 2)
        fixtures.model_without_weights(
            self.model, tokens_per_image=None, length=80, image_token_id=None
        )
        self.fails("missing: --tokens-per-image; model '.*' does not tell them")
        self.prepare("--workers", 1, "--tokens-per-image", 6)
        self.assertEqual(self.state()["metadata"]["mgq.tokens_per_image"], "6")
        self.model = None
        self.fails(
            "missing: --tokens-per-image, --image-size, --length; there is no --model to tell them"
        )

    def test_bad_metadata(self):
        """Metadata that makes no sense, or not that of the graph, is named."""
        self.model2 = fixtures.model_without_weights(self.work / "m2.onnx", std=None)
        fixtures.model_without_weights(self.model, tokens_per_image="many")
        self.fails("m.onnx: metadata mgq.tokens_per_image is 'many'")
        self.fails(
            r"pixel_values.std \(--std\) is \(1.0, 0.0, 1.0\), expected positive",
            "--std=1,0,1",
            "--model",
            self.model2,
        )
        fixtures.model_without_weights(self.model, tokens_per_image=0)
        self.fails("m.onnx: metadata mgq.tokens_per_image is 0, expected a positive number")
        fixtures.model_without_weights(self.model, image_size=14)
        self.fails("m.onnx: metadata mgq.image_size is 14, but the graph's inputs have 28")

    def test_vocabulary(self):
        """A tokenizer of another model is an error, not a skipped sample."""
        fixtures.model_without_weights(self.model, length=80, vocabulary=4)
        self.fails(
            r"token 5 .* of tokenizer '.*tok' is beyond the model's vocabulary of 4: the tokenizer is of another"
        )
        fixtures.model_without_weights(self.model, length=80, vocabulary=100)
        self.fails("is beyond the model's vocabulary of 100", "--workers", 2)
        self.assertEqual(self.files(), {})

    def test_image_token(self):
        """The model's image token must be none of text; a tokenizer without one needs it from the model."""
        fixtures.model_without_weights(self.model, length=80, image_token_id=40)
        self.fails("image token 40 is the ordinary token '.' of tokenizer '.*'; .* such as 5")
        fixtures.model_without_weights(self.model, length=80, image_token_id=None)
        path = self.work / "tok" / "tokenizer.json"
        path.write_text(path.read_text().replace("<|image_pad|>", "<|spare_2|>"))
        self.fails("has none of <|extra_0|>, <|image_pad|>; give --image-token-id")
        self.prepare("--workers", 1, "--image-token-id", 5)

    def test_no_sample_left(self):
        """Data without any usable record is an error."""
        data = self.write("bad.json", [{"foo": 1}])
        self.fails("no sample is left; '.*train.state.json' tells why", "--workers", 1, data=data)
        self.fails("no sample is left", "--workers", 1, data=data)

    def test_features_of_pixels(self):
        """--features and a model that starts from pixels, and the reverse, are errors."""
        self.fails("model '.*' starts from pixels: leave out --features", "--features", self.model)
        fixtures.model_without_weights(self.model, length=80, features="query_output")
        self.fails("starts from 'query_output': give --features MODEL.prefix.onnx")
        self.fails("--features '/none.onnx' does not exist", "--features", "/none.onnx")

    def test_changed_data(self):
        """A data file that changes under a run ends it, instead of giving other records."""
        from mgq.data import records

        index = records.index

        def index_and_cut(path):
            found = index(path)
            path.write_text(path.read_text()[:300])
            return found

        with mock.patch.object(records, "index", index_and_cut):
            self.fails("data file '.*data.json' changed while it was read", "--workers", 1)
        self.assertEqual(self.files(), {})

    def test_unwritable(self):
        """Output that cannot be written is an error with the system's word."""
        (self.work / "file").write_text("")
        self.fails("cannot write '.*file/out'", output="file/out")

    def test_full_disk(self):
        """A disk that fills up ends the run with a message; whole shards stay and it goes on later."""
        expected = self.run_command("--shard-size", 5, "--workers", 1, output="whole/train")
        size = len(next(iter(self.files("whole").values())))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, hard))
        try:
            self.fails(
                "cannot write '.*train-00000.safetensors': File too large",
                "--shard-size",
                5,
                "--workers",
                1,
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assertEqual(self.files(), {})
        self.assertEqual(expected[0], 0)
        self.prepare("--shard-size", 5, "--workers", 1)
        self.assertEqual(self.files(), self.files("whole"))

    def test_killed_worker(self):
        """A worker that the system kills ends the run with a message."""
        code = (
            "import os, signal\nfrom mgq.data import pictures\n"
            "pictures.transform = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
            "from mgq.commands.prepare import main; main()"
        )
        command = [sys.executable, "-c", code, *self.arguments("--workers", 2)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "a worker process was killed, perhaps for want of memory; try fewer --workers",
            done.stderr,
        )
        self.assertEqual(self.files(), {})


if __name__ == "__main__":
    unittest.main()

"""What the tests of mgq-export share: how the command is run, and what is done with its files."""

import contextlib
import io
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import fixtures  # noqa: F401  (finds mgq)
import torch
from mgq import minigpt4qwen, onnx_weights
from mgq.commands import export
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)


class ExportTest(unittest.TestCase):
    """A folder to work in."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)

    def run_command(self, *arguments):
        """Exit status and what `mgq-export ARGUMENTS` says on standard error."""
        err, status = io.StringIO(), 0
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            try:
                export.main(list(map(str, arguments)))
            except SystemExit as end:
                status = end.code
        return status, err.getvalue()

    def export(self, *options, name="model.onnx"):
        """`mgq-export minigpt4qwen OPTIONS` must succeed; returns the file."""
        path = self.work / name
        status, err = self.run_command("minigpt4qwen", *options, "-o", path)
        self.assertEqual(status, 0, err)
        return path

    def fails(self, message, *options, status=1, command="minigpt4qwen"):
        """The command must fail so, and leave no file behind."""
        before = sorted(self.work.rglob("*"))
        found, err = self.run_command(command, *options, "-o", self.work / "refused.onnx")
        self.assertEqual(found, status, err)
        self.assertRegex(err, message)
        self.assertEqual(sorted(self.work.rglob("*")), before)

    def tool(self, variable, *arguments):
        """Runs the program that an environment variable names; returns what it printed."""
        words = [os.environ[variable], *map(str, arguments)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout}{done.stderr}")
        return done.stdout

    def run_graph(self, model, inputs, output="loss"):
        """The output of a graph for inputs (name -> tensor), by mgq-run."""
        files = self.work / "in.safetensors", self.work / "out.safetensors"
        save_file({name: t.clone().contiguous() for name, t in inputs.items()}, files[0])
        self.tool("MGQ_RUN", model, "--inputs", files[0], "--outputs", files[1])
        return load_file(files[1])[output]

    def train(self, model, records, steps=1, compile_options=()):
        """(log lines, gradients of step 1) of an executable of `model` on `records`."""
        data, executable = self.work / "data.safetensors", self.work / "train"
        save_file({name: t.clone().contiguous() for name, t in records.items()}, data)
        self.tool("MGQ_COMPILE", model, "-o", executable, *compile_options)
        log, gradients = self.work / "log.jsonl", self.work / "gradients.safetensors"
        words = [executable, "--data", data, "--steps", str(steps), "--shuffle", "off",
                 "--learning-rate", "1e-3", "--log-file", log, "--dump-gradients", gradients]
        subprocess.run(list(map(str, words)), check=True, capture_output=True, timeout=300)
        return [json.loads(line) for line in log.read_text().splitlines()], load_file(gradients)

    def assert_close(self, found, expected, tolerance=1e-5):
        """Relative to `expected`, in the norm."""
        found, expected = torch.as_tensor(found), torch.as_tensor(expected)
        self.assertEqual(found.shape, expected.shape)
        error = (found - expected).norm() / expected.norm()
        self.assertLess(error.item(), tolerance)


def random_records(model, records=2, samples=1, seed=3):
    """Random micro-batches for a loaded model."""
    return minigpt4qwen.random_records(model, records, samples, seed)


def first(records):
    """The first micro-batch."""
    return {name: tensor[0] for name, tensor in records.items()}


def load(path):
    """The module of an exported model."""
    return onnx_weights.load_model(path)[0]


def torch_loss(model, batch):
    """PyTorch's loss, a number."""
    with torch.no_grad():
        return model(**batch).item()

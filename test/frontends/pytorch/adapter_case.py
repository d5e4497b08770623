"""What tests of trained weights share: a tiny export, commands, executables, checkpoints."""

import contextlib
import io
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import fixtures
import torch
from mgq.adapters.model import Model
from mgq.commands import export
from safetensors.torch import save_file

torch.set_num_threads(1)

LORA = "r=4,alpha=8"


def run(command, *arguments):
    """(exit status, standard output, standard error) of a command's main."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code or 0
    return status, out.getvalue(), err.getvalue()


def export_tiny(path, *options):
    """Writes a tiny MiniGPT4Qwen; returns `path`."""
    status, _, err = run(export, "minigpt4qwen", "--size", "tiny", "-o", path, *options)
    assert status == 0, err
    return path


def random_values(path, seed=1, scale=0.1):
    """name -> random f32 tensor of every trainable parameter of the export `path`."""
    generator = torch.Generator().manual_seed(seed)
    model = Model(path)
    return {
        name: scale * torch.randn(model.parameters[name].shape, generator=generator)
        for name in model.trainable()
    }


def write_checkpoint(folder, values):
    """Writes a checkpoint's folder with `values`; returns it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    return folder


class AdapterTest(unittest.TestCase):
    """Each test has a folder of its own, `work`; the class has `shared`."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = Path(folder.name)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)

    def done(self, command, *arguments):
        """Runs a command that must succeed; returns its standard output."""
        status, out, err = run(command, *arguments)
        self.assertEqual(status, 0, err)
        return out

    def refused(self, command, *arguments, status=1):
        """Runs a command that must fail; returns its last line on standard error."""
        got, out, err = run(command, *arguments)
        self.assertEqual(got, status, out + err)
        self.assertNotIn("Traceback", err)
        return err.strip().splitlines()[-1]

    def equal(self, left, right):
        """Dictionaries of tensors are the same bit by bit."""
        self.assertEqual(sorted(left), sorted(right))
        for name, tensor in left.items():
            self.assertEqual(tensor.dtype, right[name].dtype, name)
            self.assertTrue(torch.equal(tensor, right[name]), name)


def compile_model(model, executable, *options):
    """Compiles an export by the mgq-compile in the environment."""
    command = [os.environ["MGQ_COMPILE"], model, "-o", executable, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return executable


def run_executable(executable, *options):
    """Runs an executable; returns the lines of its log."""
    log = Path(f"{executable}.jsonl")
    log.unlink(missing_ok=True)
    command = [executable, "--threads", 1, "--log-file", log, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def write_records(folder, count=12):
    """Pictures and data.json of `count` questions about them in `folder`."""
    records = []
    for i in range(count):
        fixtures.picture(Path(folder) / f"{i}.png", seed=i)
        record = {"instruction": f"What is {i}?", "output": f"cat {i % 3}"}
        if i % 4 != 3:  # the others have no picture
            record |= {"image": f"{i}.png", "instruction": f"<Img><ImageHere></Img> What is {i}?"}
        records.append(record)
    path = Path(folder) / "data.json"
    path.write_text(json.dumps(records))
    return path

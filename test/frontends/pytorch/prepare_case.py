"""What the tests of mgq-prepare share: a folder with data, and how the command is run."""

import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path

import fixtures
from mgq.commands import prepare

MARK = "<Img><ImageHere></Img>"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(fixtures.ROOT / "frontends" / "pytorch")}


def record(image, text="What?", answer="Red"):
    """A record of MPP's format with one picture."""
    return {"image": image, "instruction": f"{MARK} {text}", "output": answer}


class PrepareTest(unittest.TestCase):
    """A folder with tokenizer, model, 24 pictures and a record for each."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        work = self.work = Path(self.folder.name)
        fixtures.hf_tokenizer(work / "tok")
        self.model = fixtures.model_without_weights(work / "m.onnx", length=80)
        self.records = []
        for i in range(24):
            name = f"{i}.{('png', 'jpg')[i % 2]}"
            fixtures.picture(work / "images" / name, (30 + i, 40), seed=i)
            self.records.append(record(name, f"Number {i}?", "x" * i))
        self.data = self.write("data.json", self.records)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, records):
        path = self.work / name
        path.write_text(json.dumps(records))
        return path

    def arguments(self, *options, data=None, output="out/train"):
        model = ["--model", str(self.model)] if self.model else []
        return [
            "--data",
            str(data or self.data),
            "--images-root",
            str(self.work / "images"),
            "--tokenizer",
            str(self.work / "tok"),
            *model,
            "-o",
            f"{self.work}/{output}",
            *map(str, options),
        ]

    def run_command(self, *options, **keywords):
        """Exit status, standard output, standard error."""
        out, err, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                prepare.main(self.arguments(*options, **keywords))
            except SystemExit as end:
                status = end.code
        return status, out.getvalue(), err.getvalue()

    def prepare(self, *options, **keywords):
        """Must succeed; returns what it said on standard error."""
        status, _, err = self.run_command(*options, **keywords)
        self.assertEqual(status, 0, err)
        return err

    def fails(self, message, *options, status=1, **keywords):
        found, _, err = self.run_command(*options, **keywords)
        self.assertEqual(found, status, err)
        self.assertRegex(err, message)

    def files(self, folder="out"):
        """Name -> bytes of the shards, and that nothing unfinished is left."""
        paths = sorted((self.work / folder).iterdir())
        self.assertEqual([p.name for p in paths if p.name.startswith(".")], [])
        return {p.name: p.read_bytes() for p in paths if p.suffix == ".safetensors"}

    def state(self, output="out/train"):
        return json.loads((self.work / f"{output}.state.json").read_text())

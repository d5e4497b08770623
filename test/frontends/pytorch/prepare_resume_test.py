"""Runs of mgq-prepare that go on from earlier ones, and those that must not."""

import json
import signal
import subprocess
import sys
import time
import unittest

import fixtures
import numpy as np
from prepare_case import ENVIRONMENT, PrepareTest
from safetensors.numpy import save_file

# The command, with pictures one by one that take their time.
SLOW = """
import time
from mgq.data import pictures, workers
transform = pictures.transform
pictures.transform = lambda *a: (time.sleep(0.2), transform(*a))[1]
workers.CHUNK_ITEMS = 1
from mgq.commands.prepare import main
main()
"""


class ResumeTest(PrepareTest):
    OPTIONS = ("--shard-size", 5, "--workers", 1)

    def expected(self):
        self.prepare(*self.OPTIONS, output="whole/train")
        return self.files("whole"), self.state("whole/train")

    def test_done(self):
        """A second run of the same has nothing to do."""
        self.prepare(*self.OPTIONS)
        before = self.files()
        self.assertIn("nothing to do", self.prepare(*self.OPTIONS))
        self.assertEqual(self.files(), before)

    def test_killed(self):
        """Ended by whatever signal, a run goes on to the same bytes; Ctrl-C is said, with status 130."""
        expected = self.expected()
        options = [*self.OPTIONS[:2], "--workers", "2"]
        command = [sys.executable, "-c", SLOW, *self.arguments(*options)]
        state = self.work / "out" / "train.state.json"
        for shards, number in enumerate((signal.SIGKILL, signal.SIGINT, signal.SIGTERM), 1):
            process = subprocess.Popen(
                command,
                env=ENVIRONMENT,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            limit = time.monotonic() + 60
            while not state.exists() or len(json.loads(state.read_text())["shards"]) < shards:
                self.assertLess(time.monotonic(), limit)
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130 if number == signal.SIGINT else -number, err)
            self.assertEqual("mgq-prepare: interrupted" in err, number == signal.SIGINT)
            self.assertEqual("going on after" in err, shards > 1)
            self.assertNotIn("Traceback", err)
        self.assertRegex(self.prepare(*options), "going on after [34] shards")
        self.assertEqual((self.files(), self.state()), expected)

    def test_stopped_by_an_error(self):
        """After --on-error=stop and a repaired picture the run goes on to the same bytes."""
        expected = self.expected()
        path = self.work / "images" / "13.jpg"
        good = path.read_bytes()
        path.write_bytes(good[:100])
        self.fails("data.json: record 14: picture '13.jpg'", *self.OPTIONS, "--on-error=stop")
        self.assertEqual(len(self.files()), 2)
        path.write_bytes(good)
        self.assertIn("going on after 2 shards", self.prepare(*self.OPTIONS))
        self.assertEqual((self.files(), self.state()), expected)

    def test_missing_shard(self):
        """A shard that is gone or damaged is made again, with those behind it."""
        expected = self.expected()
        self.prepare(*self.OPTIONS)
        (self.work / "out" / "train-00003.safetensors").unlink()
        self.assertIn("train-00003.safetensors' is missing or damaged", self.prepare(*self.OPTIONS))
        self.assertEqual((self.files(), self.state()), expected)
        with open(self.work / "out" / "train-00001.safetensors", "ab") as file:
            file.write(b"x")
        self.assertIn("train-00001.safetensors' is missing or damaged", self.prepare(*self.OPTIONS))
        self.assertEqual((self.files(), self.state()), expected)

    def test_changed_options(self):
        """Changed options or data start again, say what changed, and leave no old shard."""
        self.prepare(*self.OPTIONS)
        err = self.prepare("--shard-size", 24, "--workers", 1, "--labels=assistant")
        self.assertIn(
            "starting again, since the last run: labels (mpp -> assistant); shard-size (5 -> 24)",
            err,
        )
        self.assertEqual(list(self.files()), ["train-00000.safetensors"])
        self.write("data.json", self.records[:3])
        err = self.prepare("--shard-size", 24, "--workers", 1, "--labels=assistant")
        self.assertIn("starting again, since the last run: data 1 (data.json:1 ", err)
        self.assertEqual(self.state()["counts"]["samples"], 3)

    def test_shard_without_entry(self):
        """A kill between a shard and its entry in the state leaves no file too many."""
        self.prepare(*self.OPTIONS)
        state = self.state()
        del state["shards"][2:]
        state["complete"] = False
        (self.work / "out" / "train.state.json").write_text(json.dumps(state))
        for number in (3, 4):
            (self.work / "out" / f"train-{number:05}.safetensors").unlink()
        (self.work / "out" / ".train-00003.safetensors.abc").write_text("unfinished")
        self.prepare("--shard-size", 12, "--workers", 1)
        self.assertEqual(list(self.files()), ["train-00000.safetensors", "train-00001.safetensors"])

    def test_another_model(self):
        """Shards for another model are not replaced unless asked."""
        self.prepare(*self.OPTIONS)
        before = self.files()
        fixtures.model_without_weights(self.model, length=96)
        self.fails(
            r"has shards for another model: mgq.length \(80 -> 96\); choose another -o, or --restart",
            *self.OPTIONS,
        )
        self.assertEqual(self.files(), before)
        self.prepare(*self.OPTIONS, "--restart")
        self.assertEqual(self.state()["metadata"]["mgq.length"], "96")

    def test_foreign_files(self):
        """Files that another program wrote are not replaced unless asked."""
        (self.work / "out").mkdir()
        path = self.work / "out" / "train-00007.safetensors"
        save_file({"x": np.zeros(1)}, path)
        self.fails(
            "train-00007.safetensors' exists, but no 'train.state.json' tells what it is",
            *self.OPTIONS,
        )
        self.prepare(*self.OPTIONS, "--restart")
        self.assertNotIn(path.name, self.files())
        save_file({"x": np.zeros(1)}, path)
        self.fails(
            "train-00007.safetensors' exists, but 'train.state.json' does not tell", *self.OPTIONS
        )
        path.unlink()
        (self.work / "out" / "train.state.json").write_text("{}")
        self.fails(
            "train.state.json: cannot be read as the state of an earlier run; use --restart",
            *self.OPTIONS,
        )
        state = {"settings": {}, "metadata": {}, "shards": [], "complete": False, "format": 0}
        (self.work / "out" / "train.state.json").write_text(json.dumps(state))
        self.fails("train.state.json: written by another version of mgq-prepare", *self.OPTIONS)

    def test_two_at_once(self):
        """A second run of the same output is refused while the first is under way."""
        from mgq.data import state

        (self.work / "out").mkdir()
        with state.locked(self.work / "out" / "train"):
            self.fails("another mgq-prepare writes '.*train'", *self.OPTIONS)


if __name__ == "__main__":
    unittest.main()

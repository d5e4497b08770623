"""mgq-log: event files read back by TensorBoard, the picture, logs that grow, are cut back, are wrong."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import fixtures
from mgq.commands import log
from mgq.training_log import TrainingLog

SVG = "{http://www.w3.org/2000/svg}"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(fixtures.ROOT / "frontends" / "pytorch")}


def line(step, loss=None, **more):
    values = {
        "step": step,
        "epoch": step / 10,
        "loss": 4 / step if loss is None else loss,
        "grad_norm": 1.5,
        "learning_rate": 1e-4,
        "samples": 4,
        "step_seconds": 0.5,
        **more,
    }
    return json.dumps(values) + "\n"


class LogTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.work = Path(self.folder.name)
        self.log = self.work / "log.jsonl"
        self.log.write_text("".join(map(line, range(1, 21))))
        self.board, self.svg = self.work / "board", self.work / "plot.svg"

    def tearDown(self):
        self.folder.cleanup()

    def run_command(self, *arguments):
        err, status = io.StringIO(), 0
        with contextlib.redirect_stderr(err):
            try:
                log.main([str(argument) for argument in arguments])
            except SystemExit as end:
                status = end.code
        return status, err.getvalue()

    def succeeds(self, *arguments):
        status, err = self.run_command(*arguments)
        self.assertEqual(status, 0, err)

    def fails(self, message, *arguments, status=1):
        found, err = self.run_command(*arguments)
        self.assertEqual(found, status, err)
        self.assertRegex(err, message)

    def events(self, folder=None):
        """Tag -> {step: value}, as TensorBoard reads the folder."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(folder or self.board), size_guidance={"scalars": 0}).Reload()
        return {
            tag: {event.step: event.value for event in found.Scalars(tag)}
            for tag in found.Tags()["scalars"]
        }

    def curves(self):
        """Number of panels of the picture, and name of a curve -> number of its points."""
        root = xml.parse(self.svg).getroot()
        self.assertEqual(root.tag, f"{SVG}svg")
        groups = {group.get("id", ""): group for group in root.iter(f"{SVG}g")}
        curves = {
            name.removeprefix("curve-"): len(re.findall("[ML]", group.find(f"{SVG}path").get("d")))
            for name, group in groups.items()
            if name.startswith("curve-")
        }
        return sum(name.startswith("axes_") for name in groups), curves

    def test_tensorboard(self):
        """Every scalar of every step, as TensorBoard reads them."""
        with open(self.log, "a") as file:
            file.write(line(21, eval_loss=0.25, eval_accuracy=0.5))
        self.succeeds(self.log, "--tensorboard", self.board)
        events = self.events()
        self.assertEqual(
            set(events),
            {
                "loss",
                "grad_norm",
                "learning_rate",
                "samples/s",
                "eval_loss",
                "eval_accuracy",
            },
        )
        self.assertEqual(list(events["loss"]), list(range(1, 22)))
        self.assertEqual(
            [events["loss"][4], events["samples/s"][7], events["eval_accuracy"]], [1, 8, {21: 0.5}]
        )
        self.assertAlmostEqual(events["learning_rate"][1], 1e-4)

    def test_again(self):
        """Run again into the same folder, steps do not stand there twice; those that were cut off are gone."""
        self.succeeds(self.log, "--tensorboard", self.board)
        self.log.write_text("".join(line(step, loss=7) for step in range(1, 6)))
        time.sleep(1.1)  # event files are ordered by second
        self.succeeds(self.log, "--tensorboard", self.board)
        self.assertEqual(self.events()["loss"], dict.fromkeys(range(1, 6), 7))

    def test_several(self):
        """Several logs are runs named after their files, with folders where these are equal."""
        other = self.work / "other"
        other.mkdir()
        (other / "log.jsonl").write_text(line(1, loss=9))
        third = self.work / "third.jsonl"
        third.write_text(line(1, loss=8))
        self.succeeds(
            self.log, other / "log.jsonl", "--tensorboard", self.board, "--plot", self.svg
        )
        self.assertEqual(self.events(self.board / "other-log")["loss"], {1: 9})
        self.assertEqual(len(self.events(self.board / f"{self.work.name}-log")["loss"]), 20)
        self.succeeds(self.log, third, "--tensorboard", self.work / "short")
        self.assertEqual(self.events(self.work / "short" / "third")["loss"], {1: 8})
        self.assertEqual((self.curves()[1]["loss-0"], self.curves()[1]["loss-1"]), (20, 1))
        self.fails("the same log is given twice", self.log, self.log, "--plot", self.svg)

    def test_plot(self):
        """A panel for loss (with eval_loss), grad_norm, learning_rate, samples/s and each other value."""
        self.succeeds(self.log, "--plot", self.svg)
        names = ("loss", "grad_norm", "learning_rate", "samples/s")
        self.assertEqual(self.curves(), (4, dict.fromkeys((f"{name}-0" for name in names), 20)))
        with open(self.log, "a") as file:
            file.write(
                line(21, eval_loss=0.25, eval_accuracy=0.5)
                + line(22, eval_loss=0.2, eval_accuracy=0.75)
            )
        self.succeeds(self.log, "--plot", self.svg)
        panels, curves = self.curves()
        self.assertEqual(
            (panels, curves["loss-0"], curves["eval_loss-0"], curves["eval_accuracy-0"]),
            (5, 22, 2, 2),
        )
        before = self.svg.read_bytes()
        self.succeeds(self.log, "--plot", self.svg)
        self.assertEqual(self.svg.read_bytes(), before)

    def test_not_finite(self):
        """Values that are null, no numbers, or not finite are left out."""
        odd = line(3, eval_loss=float("inf"), note="x", big=10**400, done=True, step_seconds="y")
        self.log.write_text(line(1) + line(2, loss=float("nan"), grad_norm=None) + odd)
        self.succeeds(self.log, "--tensorboard", self.board, "--plot", self.svg)
        events = self.events()
        self.assertEqual(list(events["loss"]), [1, 3])
        self.assertEqual(list(events["samples/s"]), [1, 2])
        self.assertEqual(set(events), {"loss", "grad_norm", "learning_rate", "samples/s"})

    def test_partly_written_line(self):
        """A last line that is not whole is awaited, and read when it is; without its line end it counts at the end."""
        self.log.write_text(line(1) + line(2)[:30])
        self.succeeds(self.log, "--tensorboard", self.board)
        self.assertEqual(list(self.events()["loss"]), [1])
        found = TrainingLog(self.log)
        self.assertEqual((found.update(), found.update()), (1, None))
        with open(self.log, "a") as file:
            file.write(line(2)[30:].rstrip("\n"))
        self.assertIsNone(found.update())
        self.assertEqual(found.update(last=True), 2)
        self.assertEqual(list(found.steps), [1, 2])

    def test_cut_back(self):
        """A resumed run cuts the log back; whether it has grown again since the last look or not, the old steps are gone."""
        found = TrainingLog(self.log)
        found.update()
        text = self.log.read_text().splitlines(keepends=True)
        self.log.write_text("".join(text[:10]))
        self.assertEqual(found.update(), 1)  # read anew
        self.assertEqual(list(found.steps), list(range(1, 11)))
        found = TrainingLog(self.log)
        found.update()
        self.log.write_text("".join(text[:5] + [line(step, loss=3) for step in range(6, 40)]))
        found.update()
        self.assertEqual([found.steps[step]["loss"] for step in (5, 6, 39)], [0.8, 3, 3])
        self.assertEqual(list(found.steps), list(range(1, 40)))

    def test_errors(self):
        """What is wrong with a log is named with its line."""
        empty = self.work / "empty.jsonl"
        empty.write_text("")
        self.fails("log '.*empty.jsonl' has no steps yet", empty, "--plot", self.svg)
        self.assertFalse(self.svg.exists())
        self.fails(
            "log '/none.jsonl' cannot be read: No such file", "/none.jsonl", "--plot", self.svg
        )
        for text in ("no json\n", "[1]\n", '{"loss": 1}\n', '{"step": "x"}\n'):
            empty.write_text(line(1) + text)
            self.fails(
                "empty.jsonl: line 2 is no step of a training log: '", empty, "--plot", self.svg
            )
        self.fails("cannot write '/none/plot.svg'", self.log, "--plot", "/none/plot.svg")
        (self.work / "file").write_text("")
        self.fails(
            "cannot write '.*file/board'", self.log, "--tensorboard", self.work / "file" / "board"
        )
        self.fails("give --tensorboard DIR or --plot FILE.svg", self.log, status=2)
        self.fails(
            "invalid seconds value: '0'", self.log, "--plot", self.svg, "--interval", 0, status=2
        )
        self.fails("there is no folder '/none'", "/none/log.jsonl", "--plot", self.svg, "--follow")

    def wait_for(self, condition):
        limit = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.05)

    def test_documentation(self):
        """docs/PreparingData.md has every option."""
        text = (fixtures.ROOT / "docs" / "PreparingData.md").read_text()
        for action in log.make_parser()._actions[1:]:
            for option in [name for name in action.option_strings if name != "--output"]:
                self.assertRegex(text, rf"`{option}[ `=\\[]", option)

    def test_follow(self):
        """--follow waits for the log, goes on as it grows and is cut back, and ends well by Ctrl-C and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.log.unlink()
            board = self.work / f"board{number.value}"
            self.svg.unlink(missing_ok=True)
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mgq.commands.log",
                    self.log,
                    "--tensorboard",
                    board,
                    "--plot",
                    self.svg,
                    "--follow",
                    "--interval",
                    "0.05",
                ],
                env=ENVIRONMENT,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.assertIn("waiting for", process.stderr.readline())
            self.log.write_text(line(1) + line(2) + line(3))
            self.wait_for(self.svg.exists)
            before = self.svg.read_bytes()
            with open(self.log, "a") as file:
                file.write(line(4)[:20])
                file.flush()
                time.sleep(0.2)
                file.write(line(4)[20:])
            self.wait_for(lambda: self.svg.read_bytes() != before)
            before = self.svg.read_bytes()
            self.log.write_text(line(1) + line(2, loss=9))
            self.wait_for(lambda: self.svg.read_bytes() != before)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, err), (0, ""))
            self.assertEqual(self.events(board)["loss"], {1: 4, 2: 9})


if __name__ == "__main__":
    unittest.main()

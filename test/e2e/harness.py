"""What the end-to-end tests share: compiling, running, comparing.

Each test is a program `X_test.py --mgq-compile PATH --work DIR [...]`: one line
per check, exit status 0 when all hold. DIR is emptied first.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from examples import LORA, TRAINABLE, UPSTREAM  # noqa: E402, F401

# For mpirun in containers: root may run it, with more ranks than cores.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
os.environ.update(MPI)

DATA = Path(__file__).resolve().parents[1] / "data" / "models"


class Test:
    """Arguments, a folder to work in, and whether a check failed."""

    def __init__(self, name, doc, *paths, flags=()):
        """`paths`: further arguments that are files, as --NAME PATH. `flags`:
        further switches, as --NAME."""
        parser = argparse.ArgumentParser(description=doc.splitlines()[0])
        for path in ("mgq-compile", "work", *paths):
            parser.add_argument(f"--{path}", type=Path, required=True)
        for flag in flags:
            parser.add_argument(f"--{flag}", action="store_true")
        self.args = parser.parse_args()
        self.name = name
        self.work = self.args.work.resolve() / name
        self.failed = False
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def check(self, good, what):
        """Records and prints one check."""
        self.failed |= not good
        print(f"{self.name} {what}: {'ok' if good else 'FAILED'}", flush=True)

    def run(self, *command, **options):
        """Runs a command that must exit with 0; returns what it printed."""
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, **options)
        if done.returncode != 0:
            print(f"{' '.join(words)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
            sys.exit(1)
        return done.stdout + done.stderr

    def compile(self, model, trainable, *options, name="train"):
        """Compiles `model`; returns the executable."""
        executable = self.work / name
        self.run(
            self.args.mgq_compile, model, "-o", executable, f"--trainable={trainable}", *options
        )
        return executable

    def check_same_runs(self, first, second, steps):
        """The log NAME.jsonl and the checkpoints of each step in NAME are equal."""
        logs = [read_log(self.work / f"{name}.jsonl") for name in (first, second)]
        self.check(logs[0] == logs[1], "log")
        folders = [read_folder(self.work / name) for name in (first, second)]
        self.check(len(folders[0]) == 3 * steps, "a checkpoint of each step")
        self.check(folders[0] == folders[1], "checkpoints")

    def end(self):
        sys.exit(int(self.failed))


def read_log(path):
    """Lines of a log as dicts, without the times."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for line in lines:
        del line["step_seconds"]
    return lines


def read_folder(folder):
    """Every file below `folder` with its bytes."""
    paths = sorted(p for p in Path(folder).rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}

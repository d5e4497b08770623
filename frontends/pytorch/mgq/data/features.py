"""Shards with the values of a frozen prefix in place of pixels, computed by mgq-run."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from mgq.data import shards
from mgq.errors import UserError

MGQ_RUN = "mgq-run"


def find_mgq_run(given):
    """The program: as given, from PATH, or beside this one."""
    if given:
        if shutil.which(given):
            return given
        raise UserError(f"--mgq-run '{given}' is no program")
    found = shutil.which(MGQ_RUN) or shutil.which(MGQ_RUN, path=str(Path(sys.argv[0]).resolve().parent))
    if not found:
        raise UserError(f"--features needs {MGQ_RUN}, which is not in PATH; give --mgq-run PATH")
    return found


class Prefix:
    """MODEL.prefix.onnx, which makes features of `pixel_values`."""

    def __init__(self, path, program, facts):
        self.path, self.program, self.facts = path, program, facts

    def digest(self):
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    def run(self, inputs, outputs):
        """Runs the graph for each row of file `inputs`; writes file `outputs`."""
        command = [self.program, self.path, "--inputs", inputs, "--outputs", outputs, "--records"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise UserError(f"{self.program} {self.path} failed with exit status {done.returncode}:\n{last}")


class FeatureShard:
    """As ShardWriter. Rows are kept in two files until the shard is full and mgq-run has seen its pixels."""

    def __init__(self, path, tensors, capacity, metadata, prefix):
        self.path, self.metadata, self.prefix = path, metadata, prefix
        self.text = {name: entry for name, entry in tensors.items() if name != "pixel_values"}
        pixels = {"pixel_values": tensors["pixel_values"]}
        values = prefix.facts
        normalised = {
            "pixel_values.mean": ",".join(map(repr, values.mean)), "pixel_values.std": ",".join(map(repr, values.std)),
        }
        # Named like the unfinished shard, so that a later run removes what a killed one leaves.
        self.files = [path.with_name(f".{path.name}.{part}") for part in ("text", "pixels", "features")]
        self.writers = [
            shards.ShardWriter(self.files[0], self.text, capacity, {}),
            shards.ShardWriter(self.files[1], pixels, capacity, normalised),
        ]
        self.capacity = capacity

    @property
    def rows(self):
        return self.writers[0].rows

    def append(self, row):
        for writer in self.writers:
            writer.append(row)

    def features(self):
        """The tensor that mgq-run wrote."""
        entries, *_ = shards.read_header(self.files[2])
        if len(entries) != 1:
            raise UserError(f"{self.prefix.path}: has outputs {sorted(entries)}, expected one")
        (name, entry), = entries.items()
        facts = self.prefix.facts
        images = [] if facts.images == 1 else [facts.images]
        expected = [self.rows, *images, facts.tokens_per_image]
        if entry["dtype"] != "F32" or entry["shape"][:-1] != expected:
            raise UserError(
                f"{self.prefix.path}: output '{name}' is {entry['dtype']} {entry['shape']},"
                f" expected F32 {[*expected, 'width']}"
            )
        return shards.open_tensor(self.files[2], name)

    def close(self):
        """Completes the shard; returns its size in bytes."""
        for writer in self.writers:
            writer.close()
        self.prefix.run(self.files[1], self.files[2])
        features = self.features()
        tensors = {**self.text, "image_features": ("F32", features.shape[1:])}
        columns = {name: shards.open_tensor(self.files[0], name) for name in self.text}
        columns["image_features"] = features
        writer = shards.ShardWriter(self.path, tensors, self.rows, self.metadata)
        try:
            for row in range(self.rows):
                writer.append({name: column[row] for name, column in columns.items()})
            size = writer.close()
        except BaseException:
            writer.abort()
            raise
        self.remove()
        return size

    def remove(self):
        for file in self.files:
            file.unlink(missing_ok=True)

    def abort(self):
        """Leaves no file behind."""
        for writer in self.writers:
            writer.abort()
        self.remove()

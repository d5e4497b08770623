"""Shards with the values of a frozen prefix in place of pixels, computed by mgq-run."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from mgq.data import metadata, shards
from mgq.errors import UserError

MGQ_RUN = "mgq-run"


def find_mgq_run(given):
    """The program: as given, from PATH, or beside this one."""
    if given:
        if shutil.which(given):
            return given
        raise UserError(f"--mgq-run '{given}' is no program")
    found = shutil.which(MGQ_RUN) or shutil.which(
        MGQ_RUN, path=str(Path(sys.argv[0]).resolve().parent)
    )
    if not found:
        raise UserError(f"--features needs {MGQ_RUN}, which is not in PATH; give --mgq-run PATH")
    return found


class Prefix:
    """MODEL.prefix.onnx, which makes features of `pixel_values`. `batch`: samples that it takes at a time."""

    def __init__(self, path, program, facts):
        self.path, self.program, self.facts = path, program, facts
        self.dimensions = []
        first = self.check()
        self.batch = first.dim_value or 1
        if first.dim_param:
            self.dimensions = ["--dim", f"{first.dim_param}={self.batch}"]

    def check(self):
        """Raises UserError unless this is the prefix of the model; returns its first dimension."""
        own, graph = metadata.read_model(self.path)
        for name in ("features", "images", "image_size", "mean", "std"):
            ours, theirs = getattr(own, name), getattr(self.facts, name)
            if ours is not None and ours != theirs:
                raise UserError(
                    f"{self.path}: metadata {metadata.KEYS[name]} is {ours}, but the model's is {theirs}"
                )
        inputs = [value.name for value in graph.input]
        if inputs != ["pixel_values"] or len(graph.output) != 1:
            outputs = [value.name for value in graph.output]
            raise UserError(
                f"{self.path}: is no frozen prefix: its inputs are {inputs}, its outputs {outputs},"
                " expected 'pixel_values' and one output"
            )
        return graph.input[0].type.tensor_type.shape.dim[0]

    def digest(self):
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    def run(self, inputs, outputs):
        """Runs the graph for each row of file `inputs`; writes file `outputs`."""
        command = [self.program, self.path, "--inputs", inputs, "--outputs", outputs, "--records"]
        command += self.dimensions
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, errors="replace"
        )
        if done.returncode != 0:
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise UserError(
                f"{self.program} {self.path} failed with exit status {done.returncode}:\n{last}"
            )


class FeatureShard:
    """As ShardWriter. Rows are kept in two files until the shard is full and mgq-run has seen its pixels."""

    def __init__(self, path, tensors, capacity, metadata, prefix):
        self.path, self.metadata, self.prefix = path, metadata, prefix
        self.text = {name: entry for name, entry in tensors.items() if name != "pixel_values"}
        pixels = {"pixel_values": tensors["pixel_values"]}
        values = prefix.facts
        normalised = {
            "pixel_values.mean": ",".join(map(repr, values.mean)),
            "pixel_values.std": ",".join(map(repr, values.std)),
        }
        # Named like the unfinished shard, so that a later run removes what a killed one leaves.
        self.files = [
            path.with_name(f".{path.name}.{part}") for part in ("text", "pixels", "features")
        ]
        self.writers = [
            shards.ShardWriter(self.files[0], self.text, capacity, {}),
            shards.ShardWriter(
                self.files[1], pixels, -(-capacity // prefix.batch) * prefix.batch, normalised
            ),
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
        ((name, entry),) = shards.read_header(self.files[2])[0].items()
        facts = self.prefix.facts
        shape = facts.features_shape or (facts.images, None, None)[facts.images == 1 :]
        expected = [self.writers[1].rows, *shape]
        agree = len(entry["shape"]) == len(expected) and all(
            wanted in (None, found) for wanted, found in zip(expected, entry["shape"])
        )
        if entry["dtype"] != "F32" or not agree:
            words = ", ".join("any" if size is None else str(size) for size in expected)
            raise UserError(
                f"{self.prefix.path}: output '{name}' is {entry['dtype']} {entry['shape']}, expected F32 [{words}]"
            )
        return shards.open_tensor(self.files[2], name)

    def close(self):
        """Completes the shard; returns its size in bytes."""
        while self.writers[1].rows % self.prefix.batch:
            dtype, shape = self.writers[1].tensors["pixel_values"]
            self.writers[1].append({"pixel_values": np.zeros(shape, shards.TYPES[dtype])})
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

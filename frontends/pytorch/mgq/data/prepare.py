"""Runs a Job: results in order, counted, into shards, with the state after each."""

from collections import Counter

import numpy as np

from mgq.architecture import IGNORED
from mgq.data import chat, features, shards, state, workers
from mgq.data.progress import Progress
from mgq.data.samples import Problem
from mgq.errors import UserError

SHARD_BYTES = 1 << 30  # of a shard, unless told otherwise
SHOWN_PROBLEMS = 20  # on the screen; all are in the state
DROPPED = (chat.IMAGE_CUT, chat.NO_LABELS)  # no fault of the record
SAMPLES, CUT = "samples", "texts cut at the length"
FILL = "copies without labels, to fill the last micro-batch"


def tensors_of(job):
    """The tensors of a shard, name -> (type, shape of a row). Eight-byte types stand first: aligned."""
    length = job.facts.length
    tensors = {name: ("I64", (length,)) for name in ("input_ids", "attention_mask", "labels")}
    return {**tensors, "pixel_values": ("U8", job.pixels_shape)}


def row_bytes(job):
    return sum(shards.row_bytes(*entry) for entry in tensors_of(job).values())


def row_of(sample):
    """A row of each tensor of a shard."""
    ids, mask, labels = sample.tokens
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "pixel_values": sample.pixels,
    }


def multiple(number, of):
    """`number`, rounded up to a multiple."""
    return -(-number // of) * of


class Run:
    """`capacity`: samples a shard; `prefix_graph`: a features.Prefix, None for pixels."""

    def __init__(self, job, found, capacity, stop_on_error=False, prefix_graph=None):
        self.job, self.state, self.stop_on_error = job, found, stop_on_error
        self.capacity = multiple(min(capacity, len(job.plan)), job.facts.micro_batch)
        self.last = None
        self.prefix_graph = prefix_graph
        self.tensors = tensors_of(job)
        self.shown = 0
        self.start_shard()

    def start_shard(self):
        self.writer, self.counts, self.problems = None, Counter(), []

    def open_writer(self):
        path = state.shard_path(
            self.state.prefix, sum(bool(shard["file"]) for shard in self.state.shards)
        )
        arguments = path, self.tensors, self.capacity, self.state.facts
        if self.prefix_graph is None:
            return shards.ShardWriter(*arguments)
        return features.FeatureShard(*arguments, self.prefix_graph)

    def finish_shard(self, next_item):
        """Completes the shard under way, which may have no rows, and says so in the state."""
        file, rows, size = None, 0, 0
        if self.writer is not None:
            self.fill_micro_batch()
            file, rows, size = self.writer.path.name, self.writer.rows, self.writer.close()
        self.state.shards.append(
            {
                "file": file,
                "rows": rows,
                "bytes": size,
                "next_item": next_item,
                "counts": dict(self.counts),
                "problems": self.problems,
            }
        )
        self.start_shard()
        self.state.complete = next_item == len(self.job.plan)
        self.state.save()

    def fill_micro_batch(self):
        """Repeats the last sample until the shard has whole micro-batches; what has no labels changes no loss."""
        missing = -self.writer.rows % self.job.facts.micro_batch
        for _ in range(missing):
            self.writer.append({**self.last, "labels": np.full_like(self.last["labels"], IGNORED)})
        if missing:
            self.counts[FILL] = missing

    def problem(self, found, progress):
        if self.stop_on_error and found.kind not in DROPPED:
            raise UserError(found.text)
        self.counts[found.kind] += 1
        if not found.first:  # repeats of a record fail alike
            return
        self.problems.append(found.text)
        self.shown += 1
        if self.shown <= SHOWN_PROBLEMS:
            progress.say(f"left out: {found.text}")
        elif self.shown == SHOWN_PROBLEMS + 1:
            progress.say(
                f"further samples that are left out: see '{state.state_path(self.state.prefix)}'"
            )

    def take(self, result, progress):
        if isinstance(result, Problem):
            self.problem(result, progress)
            return
        if self.writer is None:
            self.writer = self.open_writer()
        self.last = row_of(result)
        self.writer.append(self.last)
        self.counts[SAMPLES] += 1
        if result.cut:
            self.counts[CUT] += 1

    def run(self, processes):
        """Makes all shards that are not there yet."""
        begin, total = self.state.next_item, len(self.job.plan)
        progress = Progress("mgq-prepare", total, begin)
        found = workers.results(self.job, begin, total, processes, row_bytes(self.job))
        try:
            for position, result in enumerate(found, begin):
                self.take(result, progress)
                progress.advance()
                if self.writer is not None and self.writer.rows == self.capacity:
                    self.finish_shard(position + 1)
            if not self.state.complete:
                self.finish_shard(total)
        finally:
            found.close()
            progress.close()
            if self.writer is not None:
                self.writer.abort()

"""Which records become samples, in which order: weights of files, variants of pictures.

A file of n records with weight w gives each record floor(w) times and round(n (w - floor(w)))
of them, chosen by seed, once more. Samples stand in the order of files, passes over a file,
records, variants.
"""

import hashlib
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Item:
    """One sample to be: record `record` of file `file` (from 0), its pass and variant."""

    file: int
    record: int
    number: int
    variant: int

    def seed(self, seed, picture):
        """Seed of the random transform of a picture of this sample."""
        text = f"{seed}/{self.file}/{self.record}/{self.number}/{self.variant}/{picture}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def chosen(seed, file, records, count):
    """`count` of `records`, in order, by seed."""
    key = lambda record: hashlib.blake2b(f"{seed}/{file}/{record}".encode(), digest_size=8).digest()
    return sorted(sorted(range(records), key=key)[:count])


class Plan:
    """A sequence of Items, which are made when asked for."""

    def __init__(self, sizes, weights, variants, seed):
        self.variants = variants
        self.passes = []  # file, pass, records of it
        for file, (records, weight) in enumerate(zip(sizes, weights)):
            whole = math.floor(weight)
            self.passes += [(file, number, range(records)) for number in range(whole)]
            rest = math.floor(records * (weight - whole) + 0.5)
            if rest:
                self.passes.append((file, whole, chosen(seed, file, records, rest)))
        self.ends = list(accumulate(len(records) * variants for *_, records in self.passes))

    def __len__(self):
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, position):
        at = bisect_right(self.ends, position)
        file, number, records = self.passes[at]
        within = position - (self.ends[at - 1] if at else 0)
        return Item(file, records[within // self.variants], number, within % self.variants)

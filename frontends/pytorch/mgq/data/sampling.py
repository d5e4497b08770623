"""Which records become samples, in which order: weights of files, variants of pictures.

A file of n records with weight w gives each record floor(w) times and round(n (w - floor(w)))
of them, chosen by seed, once more. Samples stand in the order of files, passes over a file,
variants, records, or are shuffled.
"""

import hashlib
import math
import random
from array import array
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

    def __init__(self, sizes, weights, variants, seed, shuffle=False):
        self.parts = []  # file, pass, variant, records of it
        for file, (records, weight) in enumerate(zip(sizes, weights)):
            whole = math.floor(weight)
            passes = [range(records)] * whole
            rest = math.floor(records * (weight - whole) + 0.5)
            if rest:
                passes.append(chosen(seed, file, records, rest))
            for number, members in enumerate(passes):
                self.parts += [(file, number, variant, members) for variant in range(variants)]
        self.ends = list(accumulate(len(members) for *_, members in self.parts))
        self.order = None
        if shuffle:
            self.order = array("I", range(len(self)))
            random.Random(seed).shuffle(self.order)

    def __len__(self):
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, position):
        if self.order is not None:
            position = self.order[position]
        at = bisect_right(self.ends, position)
        file, number, variant, records = self.parts[at]
        within = position - (self.ends[at - 1] if at else 0)
        return Item(file, records[within], number, variant)

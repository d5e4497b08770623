"""Which elements dropout keeps: Philox4x32-10 in numpy.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Written
for tests, apart from the runtime's and the kernels' own.
"""

import numpy as np

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter, key):
    """Four arrays of words from four of a counter and two numbers of a key."""
    c = [np.asarray(word, np.uint64) for word in counter]
    for round_ in range(10):
        keys = [
            np.uint64((key[0] + round_ * 0x9E3779B9) & 0xFFFFFFFF),
            np.uint64((key[1] + round_ * 0xBB67AE85) & 0xFFFFFFFF),
        ]
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> HALF) ^ c[1] ^ keys[0], b & LOW, (a >> HALF) ^ c[3] ^ keys[1], a & LOW]
    return c


def kept(shape, samples, ratio, seed, step, first, op):
    """Boolean array of `shape`, whose leading axis holds `samples` samples, of
    which the first is number `first` of the step."""
    per_sample = int(np.prod(shape)) // samples
    groups = np.arange((per_sample + 3) // 4)[None]
    number = np.arange(first, first + samples)[:, None]
    zeros = np.zeros((samples, groups.shape[1]), np.uint64)
    counter = [zeros + groups.astype(np.uint64), zeros + number.astype(np.uint64)]
    counter += [zeros + np.uint64(step), zeros + np.uint64(op)]
    words = np.stack(philox(counter, (seed & 0xFFFFFFFF, seed >> 32)), -1)
    words = words.reshape(samples, -1)[:, :per_sample]
    limit = np.uint64(np.floor((1.0 - float(np.float32(ratio))) * 2.0**32))
    return (words < limit).reshape(shape)


def scale(ratio):
    """What kept elements are multiplied by, f32."""
    return np.float32(1.0 / (1.0 - float(np.float32(ratio))))

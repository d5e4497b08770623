#!/usr/bin/env python3
"""Kernels of compressed gradients against the host's functions, on the test device.

  cuda_compression_test.py --cuda-object PATH --host PATH --twin PATH --device DIR
  cuda_compression_test.py --cuda-object PATH --host PATH --build FOLDER [--architectures ARCH,...]
  cuda_compression_test.py --run FOLDER

The second form leaves the kernels in FOLDER, the third runs them on a GPU.

Of each format: what is encoded, added up and decoded of parameters of all kinds of
sizes, with ties, zeros of both signs, denormals, huge and non-finite values, must be
the host's bits (compression_host.cpp), in whole and in part. NaNs may have other bits.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cuda_ops_test import Device, build, spills

FORMATS = {"bf16": 1, "sparse24": 2, "sparse24-int8": 3}  # mgq_compression
# After 2 and 3 values, blocks begin at odd bytes or at odd words.
COUNTS = (1024, 256, 7, 255, 257, 300, 2, 512, 1000, 1, 516, 262, 3, 2048 + 12)
HOST = "compression-host.so"
BLOCK = np.dtype([("value", "i8"), ("byte", "i8"), ("count", "i4"), ("groups", "i4")])


def patterns(size, seed):
    """Values of all kinds, block by block."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(size).astype(np.float32)
    special = np.array(
        [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e-40, 0.0, -0.0], np.float32
    )
    for number, begin in enumerate(range(0, size, 128)):
        part = values[begin : begin + 128]
        kind = number % 6
        if kind == 1:  # Ties, also to be rounded.
            part[:] = random.choice(np.array([1, -1, 2, 0, -0.0, 1.00390625], np.float32), part.size)
        elif kind == 2:
            part *= np.float32(1e-40)
        elif kind == 3:
            part[:] = random.integers(-254, 255, part.size) / 2  # Halves of the scale's steps.
            part[0] = 127
        elif kind == 4 and number % 4:
            part[random.integers(0, part.size, 2)] = random.choice(special, 2)
        elif kind == 5:
            part *= np.float32(0)
    return values


def same(found, right):
    """Equal bits, or NaN where the other has one."""
    equal = found.view(np.uint32) == right.view(np.uint32)
    return np.all(equal | (np.isnan(found) & np.isnan(right)))


class Kernels:
    """Calls of a format's kernels and of the host's functions, side by side."""

    def __init__(self, device, host, number):
        self.device, self.host = device, host
        host.host_blocks.restype = ctypes.c_void_p
        host.host_count.restype = host.host_bytes.restype = ctypes.c_int64
        self.offsets = np.cumsum([0, *((count + 15) // 16 * 16 for count in COUNTS)])
        self.size = int(self.offsets[-1])
        offsets, counts = self.offsets[:-1].astype(np.int64), np.array(COUNTS, np.int64)
        self.blocks = ctypes.c_void_p(
            host.host_blocks(number, self.address(offsets), self.address(counts),
                             ctypes.c_int64(len(COUNTS))))  # fmt: skip
        self.count = host.host_count(self.blocks)
        self.table = np.empty(self.count, BLOCK)
        host.host_table(self.blocks, self.address(self.table))
        self.owned = np.zeros(self.size, bool)
        for offset, count in zip(offsets, COUNTS):
            self.owned[offset : offset + count] = True

    @staticmethod
    def address(array):
        return ctypes.c_void_p(array.ctypes.data)

    def bytes(self, begin, end):
        return self.host.host_bytes(self.blocks, ctypes.c_int64(begin), ctypes.c_int64(end))

    def call(self, name, begin, end, *arguments):
        """Both functions; arrays of `arguments` that they have changed must be equal.
        A number stays one."""

        def wrap(argument):
            if isinstance(argument, int):
                return ctypes.c_int64(argument)
            return ctypes.c_float(argument)

        arrays = [x for x in arguments if isinstance(x, np.ndarray)]
        places = {id(x): self.device.put(x.tobytes()) for x in arrays}
        table = self.device.put(self.table[begin:end].tobytes())
        words = [
            ctypes.c_uint64(places[id(x)]) if isinstance(x, np.ndarray) else wrap(x)
            for x in arguments
        ]
        first = ctypes.c_int64(self.bytes(0, begin))
        getattr(self.device.library, f"mgq_cuda_{name}")(
            ctypes.c_uint64(table), ctypes.c_int64(end - begin), first, *words)  # fmt: skip
        words = [self.address(x) if isinstance(x, np.ndarray) else wrap(x) for x in arguments]
        getattr(self.host, f"host_{name}")(
            self.blocks, ctypes.c_int64(begin), ctypes.c_int64(end), *words)  # fmt: skip
        self.device.take(table, self.table[begin:end].nbytes)
        for number, x in enumerate(arrays):
            found = np.frombuffer(self.device.take(places[id(x)], x.nbytes), x.dtype)
            good = same(found, x) if x.dtype == np.float32 else np.array_equal(found, x)
            assert good, f"{name} of blocks {begin} to {end}: array {number} differs"

    def check(self, begin, end, finite):
        """A worker's part, an owner's of three workers, and what the others do."""
        values, residual, owner = (patterns(self.size, seed) for seed in (1, 2, 3))
        if finite:
            for array in (values, residual, owner):
                array[~np.isfinite(array) | (np.abs(array) > 1e30)] = 5
        size = self.bytes(begin, end)
        stride = (size + 127) // 64 * 64
        pieces = np.full(3 * stride, 0xA5, np.uint8)
        for worker in range(3):
            piece, lost = np.full(size, 0xA5, np.uint8), np.full(self.size, 7, np.float32)
            self.call("encode", begin, end, values * np.float32(worker + 1), 0.25, residual, lost,
                      piece)  # fmt: skip
            pieces[worker * stride : worker * stride + size] = piece
        dense = np.zeros((end - begin) * 256, np.float32)
        dense[:] = owner[np.arange(dense.size) % self.size]
        applied, lost = np.full(self.size, 7, np.float32), np.full(dense.size, 7, np.float32)
        total = np.full(size, 0xA5, np.uint8)
        self.call("combine", begin, end, pieces, stride, 3, dense, lost, total, applied)
        others = np.full(self.size, 7, np.float32)
        self.call("decode", begin, end, total, others)
        assert same(others, applied), "an owner applies something else than the others"
        assert (others[~self.owned] == 7).all(), "wrote between parameters"
        assert not np.isfinite(others).all() or finite, "non-finite values are lost"


def run(library, number, host):
    """In a process of its own, which has the device's environment."""
    np.seterr(all="ignore")
    device = Device(library)
    kernels = Kernels(device, ctypes.CDLL(host), int(number))
    kernels.check(0, kernels.count, finite=False)
    kernels.check(0, kernels.count, finite=True)
    for begin in range(0, kernels.count, 5):
        kernels.check(begin, min(begin + 5, kernels.count), finite=True)
    kernels.host.host_free(kernels.blocks)
    device.library.test_close()
    return 0


def build_all(flags, folder):
    """Kernels and libraries of each format, and the host's functions."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(flags.host, folder / HOST)
    for name in FORMATS:
        (folder / name).mkdir(exist_ok=True)
        build([], flags, folder / name, name)


def run_all(folder, environment):
    """Returns the number of formats that are wrong."""
    failed = 0
    for name, number in FORMATS.items():
        words = [sys.executable, __file__, "--child", folder / name / "cases.so", str(number),
                 folder / HOST]  # fmt: skip
        own = {**environment, "MGQ_TWIN_DIR": str(folder / name / "twins")}
        done = subprocess.run(words, env=own, capture_output=True, text=True)
        if done.returncode:
            print(f"FAIL {name}: {done.stdout}{done.stderr}", file=sys.stderr)
            failed += 1
    print(f"{len(FORMATS) - failed} of {len(FORMATS)} formats of compressed gradients are right")
    return failed


def main():
    if sys.argv[1:2] == ["--child"]:
        return run(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in ("--cuda-object", "--twin", "--device", "--host"):
        parser.add_argument(flag)
    parser.add_argument("--architectures", default="sm_80")
    parser.add_argument("--build", type=Path)
    parser.add_argument("--run", type=Path)
    flags = parser.parse_args()
    if flags.build:
        return build_all(flags, flags.build)
    if flags.run:
        return 1 if run_all(flags.run.resolve(), os.environ) else 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        build_all(flags, folder)
        failed = run_all(folder, {**os.environ, "LD_LIBRARY_PATH": flags.device})
        for name in FORMATS:
            for kernel in spills(folder / name / "cases.o.sm_80.ptxas.txt"):
                print(f"FAIL {name}: ptxas spills registers of {kernel}", file=sys.stderr)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs kernels of nn ops against NumPy.

  ops_test.py --kernel-object PATH [--filter REGEX] [--cpu CPU]

Each case is a layer function of one or a few ops with inputs and what NumPy, in
f64, says the results are. All cases are one module, compiled once by
mgq-kernel-object, linked to a shared library with a sequential runtime, and
called through the kernel ABI.
"""

import argparse
import ctypes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from op_cases import CASES

RUNTIME = """
#include <stdint.h>
int mgq_test_errors = 0;
void mgq_parallel_for(void (*body)(void *, int64_t), void *context, int64_t n) {
  for (int64_t i = n; i-- > 0;) body(context, i);  /* any order will do */
}
void mgq_index_error(const char *what, int64_t index, int64_t size) {
  ++mgq_test_errors;
}
"""

GUARD = 64  # bytes beyond each result, to see writes past its end


def aligned(array):
    """A 64-byte aligned copy with a guard behind it, and its storage."""
    raw = np.full(array.nbytes + GUARD + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    view = raw[start : start + array.nbytes]
    view[:] = np.frombuffer(array.tobytes(), np.uint8)
    return view, raw[start + array.nbytes : start + array.nbytes + GUARD]


def build(cases, tool, cpu, folder):
    """Compiles all cases; returns the library and scratch sizes by name."""
    source = folder / "cases.mlir"
    source.write_text("\n".join(case.function() for case in cases))
    command = [tool, str(source), str(folder / "cases.o"), cpu, "fused"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    sizes = dict(line.split() for line in done.stdout.splitlines())
    (folder / "runtime.c").write_text(RUNTIME)
    library = folder / "cases.so"
    subprocess.run(
        ["cc", "-O1", "-fPIC", "-shared", "-Wl,-z,defs", "-o", library,
         folder / "runtime.c", folder / "cases.o", "-lm"],
        check=True,
    )
    return ctypes.CDLL(str(library)), {name: int(size) for name, size in sizes.items()}


def run(case, library, scratch_bytes):
    """Calls a case's kernel; returns its results."""
    results = [np.zeros(array.shape, array.dtype) for array in case.expected]
    buffers = [aligned(np.ascontiguousarray(array)) for array in [*case.inputs, *results]]
    scratch, guard = aligned(np.full(scratch_bytes, 0x7F, np.uint8))
    pointers = (ctypes.c_void_p * len(buffers))(*[b.ctypes.data for b, _ in buffers])
    getattr(library, case.name)(pointers, ctypes.c_void_p(scratch.ctypes.data))
    for end in [guard, *(end for _, end in buffers)]:
        assert (end == 0xA5).all(), "wrote past the end of a buffer"
    for array, (view, _) in zip(case.inputs, buffers):
        assert view.tobytes() == np.ascontiguousarray(array).tobytes(), "changed an input"
    return [
        np.frombuffer(view.tobytes(), array.dtype).reshape(array.shape)
        for array, (view, _) in zip(results, buffers[len(case.inputs) :])
    ]


def tolerance(dtype):
    """Relative error allowed: some units in the last place."""
    if dtype == ml_dtypes.bfloat16:
        return 2.0**-8
    return {np.float16: 2.0**-10, np.float32: 2e-6, np.float64: 1e-12}[dtype.type]


def check(case, found):
    """Raises AssertionError where a result is not what is expected."""
    for array, expected in zip(found, case.expected):
        kind = array.dtype
        if kind.kind in "biu":
            np.testing.assert_array_equal(array, expected)
            continue
        wide, right = array.astype(np.float64), expected.astype(np.float64)
        limit = case.tolerance * tolerance(kind)
        scale = max(1.0, float(np.nanmax(np.abs(np.where(np.isinf(right), 0, right)), initial=0)))
        np.testing.assert_allclose(wide, right, rtol=limit, atol=limit * min(scale, case.scale))


def check_optimizer(library):
    """The kernels the runtime calls itself, on a length that is no round number."""
    random, count = np.random.default_rng(3), 4095
    p, g, m, v = (random.standard_normal(count).astype(np.float32) for _ in range(4))
    v = np.abs(v)
    rate, decay, beta1, beta2, epsilon, factor, step = 0.01, 0.1, 0.9, 0.95, 1e-8, 0.5, 3
    c1, c2 = 1 - beta1**step, 1 - beta2**step
    scalars = np.array([factor, 1 - rate * decay, beta1, 1 - beta1, beta2, 1 - beta2, rate / c1,
                        c2**-0.5, epsilon], np.float32)
    wide = g.astype(np.float64) * factor
    right_m, right_v = beta1 * m + (1 - beta1) * wide, beta2 * v + (1 - beta2) * wide**2
    right_p = p * (1 - rate * decay) - rate / c1 * right_m / (np.sqrt(right_v / c2) + epsilon)
    total = np.sum(g.astype(np.float64) ** 2)
    summed = g + m
    at = lambda array: ctypes.c_void_p(array.ctypes.data)
    length = ctypes.c_int64(count)
    sums = g.copy()
    library.mgq_accumulate(at(sums), at(m), length)
    np.testing.assert_array_equal(sums, summed)
    library.mgq_sq_norm.restype = ctypes.c_double
    np.testing.assert_allclose(library.mgq_sq_norm(at(g), length), total, rtol=1e-14)
    library.mgq_adamw(at(p), at(g), at(m), at(v), at(scalars), length)
    for found, right in ((p, right_p), (m, right_m), (v, right_v)):
        np.testing.assert_allclose(found, right, rtol=2e-6, atol=2e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel-object", required=True)
    parser.add_argument("--filter", default="")
    parser.add_argument("--cpu", default="native")
    flags = parser.parse_args()
    cases = [case for case in CASES if re.search(flags.filter, case.name)]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        library, sizes = build(cases, flags.kernel_object, flags.cpu, Path(folder))
        errors = ctypes.c_int.in_dll(library, "mgq_test_errors")
        for case in cases:
            errors.value = 0
            try:
                check(case, run(case, library, sizes[case.name]))
                assert errors.value == case.errors, f"{errors.value} index errors"
            except AssertionError as error:
                failures += 1
                print(f"FAIL {case.name}: {str(error).strip()}", file=sys.stderr)
        check_optimizer(library)
    print(f"{len(cases) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

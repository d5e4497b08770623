#!/usr/bin/env python3
"""Runs CUDA kernels of nn ops against NumPy, on the test device.

  cuda_ops_test.py --cuda-object PATH --twin PATH --device DIR [--filter REGEX]
  cuda_ops_test.py --build FOLDER --cuda-object PATH [--architectures ARCH,...]
  cuda_ops_test.py --run FOLDER

The second form leaves the cases in FOLDER, the third runs them on a GPU.

The cases of op_cases.py, each a layer function, are one module, compiled once
by mgq-cuda-object for one architecture. mgq-twin makes a host twin of its
kernels, which the stand-in of libcuda.so.1 in DIR runs; cuda_host.c calls the
layer functions. References and tolerances are those of ops_test.py. Everything
ptxas says of spills is an error.
"""

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from op_cases import CASES
from ops_test import check

ROOT = Path(__file__).resolve().parents[2]
GUARD = 64  # bytes before and behind each buffer, to see writes outside it


def build(cases, flags, folder, *compression):
    """Compiles all cases; returns the library and scratch sizes by name, which are also in
    FOLDER/sizes.json. Of `compression`, if given, kernels are added."""
    source, object_file = folder / "cases.mlir", folder / "cases.o"
    source.write_text("\n".join(case.function() for case in cases))
    done = subprocess.run(
        [flags.cuda_object, str(source), str(object_file), str(folder / "twins"),
         flags.architectures, *compression],
        capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    sizes = dict(line.split() for line in done.stdout.splitlines())
    sizes = {name: int(size) for name, size in sizes.items()}
    (folder / "sizes.json").write_text(json.dumps(sizes))
    if flags.twin:
        subprocess.run([flags.twin, str(folder / "twins")], check=True)
    library = folder / "cases.so"
    subprocess.run(
        ["cc", "-O1", "-fPIC", "-shared", "-o", library, f"-I{ROOT}",
         "-Wno-implicit-function-declaration",
         ROOT / "test/kernels/cuda_host.c", object_file, "-ldl", "-lm"],
        check=True)
    return library, sizes


def spills(report):
    """Kernels that ptxas spills registers of."""
    found, kernel = [], ""
    for line in report.read_text().splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = match[1]
        if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if match[1] != "0" or match[2] != "0":
                found.append(kernel)
    return found


class Device:
    """Device memory and calls, through cuda_host.c."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))
        self.library.test_alloc.restype = ctypes.c_uint64
        self.library.test_open()

    def put(self, data):
        """A buffer with guards around the bytes of `data`; returns its address."""
        padded = np.full(len(data) + 2 * GUARD, 0xA5, np.uint8)
        padded[GUARD : GUARD + len(data)] = np.frombuffer(data, np.uint8)
        address = self.library.test_alloc(ctypes.c_int64(padded.nbytes))
        self.library.test_upload(ctypes.c_uint64(address), ctypes.c_void_p(padded.ctypes.data),
                                 ctypes.c_int64(padded.nbytes))
        return address + GUARD

    def take(self, address, size):
        """Reads a buffer back and frees it."""
        padded = np.empty(size + 2 * GUARD, np.uint8)
        start = ctypes.c_uint64(address - GUARD)
        self.library.test_download(ctypes.c_void_p(padded.ctypes.data), start,
                                   ctypes.c_int64(padded.nbytes))
        self.library.test_free(start)
        assert (padded[:GUARD] == 0xA5).all(), "wrote before the start of a buffer"
        assert (padded[GUARD + size :] == 0xA5).all(), "wrote past the end of a buffer"
        return padded[GUARD : GUARD + size].tobytes()

    def run(self, case, scratch_bytes):
        """Calls a case's layer function; returns its results."""
        inputs = [np.ascontiguousarray(array) for array in case.inputs]
        addresses = [self.put(array.tobytes()) for array in inputs]
        addresses += [self.put(b"\x7f" * array.nbytes) for array in case.expected]
        scratch = self.put(b"\x7f" * scratch_bytes)
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        getattr(self.library, case.name)(pointers, ctypes.c_void_p(scratch))
        failed = self.library.test_take_check() != 0
        self.take(scratch, scratch_bytes)
        for array, address in zip(inputs, addresses):
            assert self.take(address, array.nbytes) == array.tobytes(), "changed an input"
        results = [
            np.frombuffer(self.take(address, array.nbytes), array.dtype).reshape(array.shape)
            for array, address in zip(case.expected, addresses[len(inputs) :])
        ]
        assert failed == (case.errors > 0), "an index error too many or too few"
        return results


def check_optimizer(device):
    """The kernels the runtime calls itself, on lengths that are no round numbers."""
    random, library = np.random.default_rng(3), device.library
    for count in (1, 4095, 4097, 9000):
        p, g, m, v = (random.standard_normal(count).astype(np.float32) for _ in range(4))
        v = np.abs(v)
        rate, decay, beta1, beta2, epsilon, factor, step = 0.01, 0.1, 0.9, 0.95, 1e-8, 0.5, 3
        c1, c2 = 1 - beta1**step, 1 - beta2**step
        scalars = np.array([factor, 1 - rate * decay, beta1, 1 - beta1, beta2, 1 - beta2,
                            rate / c1, c2**-0.5, epsilon], np.float32)
        wide = g.astype(np.float64) * factor
        right_m, right_v = beta1 * m + (1 - beta1) * wide, beta2 * v + (1 - beta2) * wide**2
        right_p = p * (1 - rate * decay) - rate / c1 * right_m / (np.sqrt(right_v / c2) + epsilon)
        length, array = ctypes.c_int64(count), lambda a: ctypes.c_uint64(a)
        at = [device.put(x.tobytes()) for x in (p, g, m, v)]
        library.mgq_adamw(*map(array, at), ctypes.c_void_p(scalars.ctypes.data), length)
        found = [np.frombuffer(device.take(x, 4 * count), np.float32) for x in at]
        for one, right in zip((found[0], found[2], found[3]), (right_p, right_m, right_v)):
            np.testing.assert_allclose(one, right, rtol=2e-6, atol=2e-6)
        at = [device.put(x.tobytes()) for x in (g, m)]
        library.mgq_accumulate(*map(array, at), length)
        np.testing.assert_array_equal(
            np.frombuffer(device.take(at[0], 4 * count), np.float32), g + m)
        device.take(at[1], 4 * count)
        blocks = (count + 4095) // 4096
        at = [device.put(bytes(8)), device.put(bytes(8 * blocks)), device.put(g.tobytes())]
        library.mgq_cuda_sq_norm(*map(array, at), length)
        total = np.frombuffer(device.take(at[0], 8), np.float64)[0]
        np.testing.assert_allclose(total, np.sum(g.astype(np.float64) ** 2), rtol=1e-13)
        device.take(at[1], 8 * blocks)
        library.mgq_cuda_scale(array(at[2]), ctypes.c_double(1 / 3), length)
        scaled = np.frombuffer(device.take(at[2], 4 * count), np.float32)
        np.testing.assert_array_equal(scaled, (g.astype(np.float64) * (1 / 3)).astype(np.float32))


def check_library(device, sizes, cases):
    """Attention of narrow floats once more, by cuDNN, where it is there."""
    cases = [case for case in cases if case.name.startswith("attention_")]
    if not cases:
        return 0
    if device.library.test_use_cudnn(1) < 0:
        print("cuDNN is not there")
        return 0
    failures = 0
    for case in cases:
        try:
            check(case, device.run(case, sizes[case.name]))
        except AssertionError as error:
            failures += 1
            print(f"FAIL {case.name} by cuDNN: {str(error).strip()}", file=sys.stderr)
    calls = device.library.test_use_cudnn(0)
    print(f"cuDNN computed {calls} cases")
    assert calls > 0, "cuDNN took no case"
    return failures + device.library.test_cudnn_faults()


def run_cases(library, sizes, cases, begin=lambda: None):
    """In this process, which has the device's environment. Calls `begin` before each case."""
    device, failures = Device(library), 0
    for case in cases:
        begin()
        try:
            check(case, device.run(case, sizes[case.name]))
        except AssertionError as error:
            failures += 1
            print(f"FAIL {case.name}: {str(error).strip()}", file=sys.stderr)
    check_optimizer(device)
    failures += check_library(device, sizes, cases)
    device.library.test_close()
    print(f"{len(cases) - failures} passed, {failures} failed")
    return failures


def run_each(library, sizes, cases):
    """The same on a GPU, where a wrong access ends the process: another one goes on behind the
    case that did it."""
    failed, at, finished = [], 0, False
    while at < len(cases) and len(failed) < 10 and not finished:
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                count = run_cases(library, sizes, cases[at:], lambda: os.write(writer, b"."))
                os.write(writer, b"!" if count == 0 else b"?")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(writer)
        with open(reader, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        finished = said[-1:] in (b"!", b"?")
        at += said.count(b".")
        if said[-1:] == b"?":
            failed.append("see above")
        elif not finished:
            name = cases[at - 1].name if said else "the start"
            failed.append(name if at < len(cases) else f"{name}, or what follows it")
            print(f"FAIL {failed[-1]}: ended the process", file=sys.stderr)
            at = at if said else len(cases)
    print(f"{len(cases)} cases; failed: {', '.join(failed) or 'none'}")
    return len(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda-object")
    parser.add_argument("--twin")
    parser.add_argument("--device")
    parser.add_argument("--architectures", default="sm_80")
    parser.add_argument("--filter", default="")
    parser.add_argument("--build", type=Path)
    parser.add_argument("--run", type=Path)
    flags = parser.parse_args()
    cases = [case for case in CASES if re.search(flags.filter, case.name)]
    if flags.build:
        flags.build.mkdir(parents=True, exist_ok=True)
        build(cases, flags, flags.build)
        return 0
    if flags.run:
        sizes = json.loads((flags.run / "sizes.json").read_text())
        cases = [case for case in cases if case.name in sizes]
        return 1 if run_each(flags.run / "cases.so", sizes, cases) else 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        # The loader reads LD_LIBRARY_PATH when a process starts.
        if str(flags.device) not in os.environ.get("LD_LIBRARY_PATH", ""):
            os.environ["LD_LIBRARY_PATH"] = str(flags.device)
            os.execv(sys.executable, [sys.executable, *sys.argv])
        library, sizes = build(cases, flags, folder)
        os.environ["MGQ_TWIN_DIR"] = os.environ["TWIN_DIR"] = str(folder / "twins")
        failed = run_cases(library, sizes, cases)
        for kernel in spills(folder / "cases.o.sm_80.ptxas.txt"):
            print(f"FAIL {kernel}: ptxas spills registers", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

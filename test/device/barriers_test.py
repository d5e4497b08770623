#!/usr/bin/env python3
"""Leaves out each barrier of generated reductions: each must be reported.

  barriers_test.py --cuda-object PATH --twin PATH --device DIR

Rows that are reduced by whole blocks or warps, and attention, are compiled for CUDA. They run on the test device with all barriers,
without a report; then, once for each barrier, on twins that lack it: a race must
be reported.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/kernels"))

import numpy as np  # noqa: E402
from cuda_ops_test import Device, build  # noqa: E402
from op_cases import Case  # noqa: E402

REPORT = "mgq test device: "


def cases():
    """Rows that take a block, with one reduction and with several; attention of more
    than one tile."""
    x = np.random.default_rng(1).standard_normal((3, 2048)).astype(np.float32)
    scale = np.ones(2048, np.float32)
    tokens = x[:1, : 130 * 8].reshape(1, 1, 130, 8)
    attributes = "{axis = 1 : i64, epsilon = 1.0e-5 : f64}"
    return [
        Case("softmax_rows", "%r = nn.softmax %0 axis 1 : {types}", [x], [x]),
        Case("rms_norm_rows", f"%r = nn.rms_norm %0 scale %1 {attributes} : {{types}}",
             [x, scale], [x]),
        Case("layer_norm_rows", f"%r = nn.layer_norm %0 scale %1 bias %2 {attributes} : {{types}}",
             [x, scale, scale], [x]),
        Case("attention", "%r = nn.attention %0, %1, %2 {scale = 1.0 : f64} : {types}",
             [tokens] * 3, [tokens]),
        Case("attention_grad",
             "%r:3 = nn.attention_grad %0, %1, %2, %3, %4 {scale = 1.0 : f64} : {types}",
             [tokens] * 5, [tokens] * 3),
    ]


def run_child(library, sizes):
    """In a process of its own: runs all cases."""
    device = Device(library)
    for case in cases():
        device.run(case, sizes[case.name])
    values = np.ones(9000, np.float32)
    places = [device.put(bytes(8)), device.put(bytes(8 * 3)), device.put(values.tobytes())]
    device.library.mgq_cuda_sq_norm(*map(ctypes.c_uint64, places), ctypes.c_int64(values.size))
    for place, size in zip(places, (8, 24, values.nbytes)):
        device.take(place, size)
    device.library.test_close()
    return 0


def run(library, sizes, twins, device):
    """Runs the cases on `twins`; returns the exit status and stderr."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(device), MGQ_TWIN_DIR=str(twins))
    words = [sys.executable, __file__, "--child", str(library), repr(sizes)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


def main():
    if sys.argv[1:2] == ["--child"]:
        return run_child(sys.argv[2], eval(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda-object", required=True)
    parser.add_argument("--twin", required=True)
    parser.add_argument("--device", required=True)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = SimpleNamespace(
            cuda_object=flags.cuda_object, twin=flags.twin, architectures="sm_80"
        )
        library, sizes = build(cases(), tools, folder)
        status, text = run(library, sizes, folder / "twins", flags.device)
        if status != 0 or REPORT in text:
            sys.exit(f"with all barriers: status {status}\n{text}")
        # Of the cubin; that of PTX is a link to it.
        code = next(file for file in (folder / "twins").glob("*.bc") if not file.is_symlink())
        listing = subprocess.run([flags.twin, "--list-barriers", code],
                                 capture_output=True, text=True, check=True)
        kernels = listing.stdout.split()
        if not kernels:
            sys.exit("no kernel has a barrier")
        failed = 0
        for number, kernel in enumerate(kernels):
            without = folder / f"without-{number}"
            without.mkdir()
            shutil.copy(code, without)
            subprocess.run([flags.twin, f"--omit-barrier={number}", without / code.name], check=True)
            status, text = run(library, sizes, without, flags.device)
            if f"{REPORT}kernel {kernel}: race" not in text:
                print(f"FAIL barrier {number}, of {kernel}: status {status}\n{text}", file=sys.stderr)
                failed += 1
        print(f"{len(kernels) - failed} of {len(kernels)} missing barriers were reported")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

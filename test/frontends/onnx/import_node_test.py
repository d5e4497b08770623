#!/usr/bin/env python3
"""Imports ONNX's backend node tests and computes them with nn_interpreter.py.

  import_node_test.py --mgq-translate PATH [--filter REGEX] [--jobs N] [-v]

So the importer is tested apart from the kernels: the imported nn IR must give
what ONNX's reference gives. Integer, boolean and scalar inputs are bound as
constants.
Cases named in left_out.txt (`case_name: reason`) are not run.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "node"))
sys.path.insert(0, str(HERE))
import nn_interpreter  # noqa: E402
import node_test  # noqa: E402

LEFT_OUT = HERE / "left_out.txt"


def bind_integers(model, tensors):
    """A copy of `model` whose integer, scalar and `scales` inputs are initializers."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for name, array in tensors.items():
        # Resize needs its scales when it is compiled.
        if array.dtype.kind in "iub" or array.ndim == 0 or name == "scales":
            bound.graph.initializer.append(numpy_helper.from_array(array, name))
    return bound


def run_case(translate, case, work):
    """Runs `case`; returns what went wrong, or None."""
    folder = work / case.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    names = [value.name for value in case.model.graph.input]
    try:
        for inputs, outputs in case.data_sets:
            arrays = [node_test.as_array(value) for value in inputs]
            tensors = dict(zip(names, arrays, strict=True))
            onnx.save(bind_integers(case.model, tensors), path)
            command = [translate, path, "--mlir-print-op-generic", "--inline-weights"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"exit {done.returncode}: {done.stderr.strip()}"
            found = nn_interpreter.Program(done.stdout, folder).run(tensors)
            for value, expected in zip(case.model.graph.output, outputs, strict=True):
                node_test.compare(found[value.name], node_test.as_array(expected), case)
    except Exception as error:  # noqa: BLE001 - reported with the case's name
        return f"{type(error).__name__}: {error}".strip()
    return None


def list_ops(translate):
    done = subprocess.run([translate, "--list-ops"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mgq-translate", type=Path, required=True)
    parser.add_argument("--filter", default="", help="only cases with this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("-v", action="store_true", help="the whole text of failures")
    args = parser.parse_args()
    translate = args.mgq_translate.resolve()
    lines = LEFT_OUT.read_text().splitlines() if LEFT_OUT.exists() else []
    left_out = {line.split(":")[0] for line in lines if line and line[0] != "#"}
    ops = list_ops(translate)
    cases = [
        case
        for case in node_test.load_cases()
        if node_test.counts(case, ops)
        and re.search(args.filter, case.name)
        and case.name not in left_out
    ]
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(args.jobs) as pool:
        faults = list(pool.map(lambda case: run_case(translate, case, Path(work)), cases))
    failed = [(case.name, fault) for case, fault in zip(cases, faults) if fault]
    for name, fault in failed:
        print(f"FAILED: {name}: {fault if args.v else fault[:300]}")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed, {len(left_out)} left out")
    return int(bool(failed) or not cases)


if __name__ == "__main__":
    sys.exit(main())

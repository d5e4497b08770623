#!/usr/bin/env python3
"""Runs ONNX's backend node tests through mgq-run.

  node_test.py --mgq-run PATH [--work DIR] [--filter REGEX] [--jobs N]

The cases come from the onnx package. A case counts when it has one node of the
default domain whose op is in `mgq-run --list-ops` and only tensors of the types
of st.DTYPES (no strings, sequences, optionals, complex, float8, sub-byte types).
Cases named in left_out.txt (`case_name: reason`) are not run. The last line is
`N passed, N failed`; the exit status is 1 when a case fails, when a case left out
is unknown, or when 5 % or more of those that count are left out.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))
import st  # noqa: E402

LEFT_OUT = HERE / "left_out.txt"
LEFT_OUT_LIMIT = 0.05  # share of the cases that count
BF16_RTOL = 2.0**-6  # two units in the last place, as onnx's own runner allows
TIMEOUT_SECONDS = 120  # for one case: compile and run


def list_ops(mgq_run):
    """The ops that mgq-run supports."""
    command = [mgq_run, "--list-ops"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def load_cases():
    """All node test cases; generating them overflows on purpose here and there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return load_model_tests(kind="node")


def has_plain_types(graph):
    """Whether all inputs and outputs are tensors that a safetensors file can hold."""
    for value in [*graph.input, *graph.output]:
        if value.type.WhichOneof("value") != "tensor_type":
            return False
        element = value.type.tensor_type.elem_type
        if helper.tensor_dtype_to_np_dtype(element) not in st.NAMES:
            return False
    return True


def counts(case, ops):
    """Whether `case` is one node of a supported op on supported types."""
    if "_expanded" in case.name or len(case.model.graph.node) != 1:
        return False
    node = case.model.graph.node[0]
    return not node.domain and node.op_type in ops and has_plain_types(case.model.graph)


def read_left_out():
    """left_out.txt as a dict from case name to reason."""
    lines = LEFT_OUT.read_text().splitlines()
    pairs = [line.split(":", 1) for line in lines if line and line[0] != "#"]
    return {name.strip(): reason.strip() for name, reason in pairs}


def compare(found, expected, case):
    """Raises AssertionError where onnx's own runner would."""
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    assert found.dtype == expected.dtype, f"type {found.dtype}, expected {expected.dtype}"
    rtol = case.rtol
    if found.dtype.name == "bfloat16":  # numpy cannot promote it
        rtol = max(rtol, BF16_RTOL)
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=case.atol)


def as_array(value):
    """A case's input or output, an array, scalar or TensorProto, as an array."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def run_data_set(mgq_run, case, model, data_set, folder):
    """Runs one data set of `case` in `folder` and compares every output."""
    inputs, outputs = data_set
    names = [value.name for value in case.model.graph.input]
    tensors = {n: as_array(a) for n, a in zip(names, inputs, strict=True)}
    source, target = folder / "in.safetensors", folder / "out.safetensors"
    st.write(source, tensors)
    target.unlink(missing_ok=True)
    command = [mgq_run, model, "--inputs", source, "--outputs", target]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr.strip()}"
    found = st.read(target)
    for value, expected in zip(case.model.graph.output, outputs, strict=True):
        assert value.name in found, f"output {value.name} is missing"
        compare(found[value.name], as_array(expected), case)


def run_case(mgq_run, case, work):
    """Runs `case`; returns what went wrong, or None."""
    folder = work / case.name
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    onnx.save(case.model, model)
    try:
        for data_set in case.data_sets:
            run_data_set(mgq_run, case, model, data_set, folder)
    except subprocess.TimeoutExpired:
        return f"no result in {TIMEOUT_SECONDS} s"
    except (AssertionError, OSError) as error:
        return str(error).strip()
    return None


def report_left_out(left_out, total):
    """Prints the cases left out; returns whether they are few enough."""
    for name, reason in sorted(left_out.items()):
        print(f"left out: {name}: {reason}")
    few = len(left_out) < LEFT_OUT_LIMIT * total or not left_out
    if not few:
        print(f"{len(left_out)} of {total} left out, must be under {LEFT_OUT_LIMIT:.0%}")
    return few


def parse_arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mgq-run", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="keep the files of each case here")
    parser.add_argument("--filter", default="", help="only cases with this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    return parser.parse_args()


def run_all(args, work):
    """Selects, runs and reports the cases; returns whether all is well."""
    ops = list_ops(args.mgq_run)
    cases = {case.name: case for case in load_cases() if counts(case, ops)}
    reasons = read_left_out()
    unknown = sorted(set(reasons) - set(cases))
    for name in unknown:
        print(f"{LEFT_OUT.name}: {name} is not a case that counts")
    left_out = {name: reasons[name] for name in reasons if name in cases}
    todo = [
        case for name, case in cases.items()
        if name not in left_out and re.search(args.filter, name)
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        faults = list(pool.map(lambda case: run_case(args.mgq_run, case, work), todo))
    failed = [(case.name, fault) for case, fault in zip(todo, faults) if fault]
    for name, fault in failed:
        print(f"FAILED: {name}: {fault}")
    few = report_left_out(left_out, len(cases))
    print(f"{len(cases)} cases count, {len(left_out)} left out")
    print(f"{len(todo) - len(failed)} passed, {len(failed)} failed")
    return bool(todo) and not failed and few and not unknown


def main():
    args = parse_arguments()
    args.mgq_run = args.mgq_run.resolve()
    if args.work:
        return int(not run_all(args, args.work))
    with tempfile.TemporaryDirectory() as work:
        return int(not run_all(args, Path(work)))


if __name__ == "__main__":
    sys.exit(main())

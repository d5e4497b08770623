#!/usr/bin/env python3
"""Writes the models that mgq-fuzz-import damages: FOLDER/NAME.onnx.

  make_seeds.py FOLDER

They are the small ones of the importer's tests and, for every operator, the
one-node models of PyPI's onnx package.
"""

import shutil
import sys
from pathlib import Path

import make_model
import onnx.backend.test.loader

LARGEST = 4000  # bytes: damage to a large constant shows little


def main():
    root = Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, make in make_model.CASES.items():
        (root / f"{name}.onnx").write_bytes(make().SerializeToString())
    for case in onnx.backend.test.loader.load_model_tests(kind="node"):
        if case.model is None:
            text = (Path(case.model_dir) / "model.onnx").read_bytes()
        else:
            text = case.model.SerializeToString()
        if len(text) <= LARGEST:
            (root / f"{case.name}.onnx").write_bytes(text)


if __name__ == "__main__":
    main()

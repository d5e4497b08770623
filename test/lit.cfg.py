"""Configuration of the lit tests: IR in, checked IR or diagnostics out."""

import os
import sys

import lit.formats
from lit.llvm import llvm_config

config.name = "MGQ"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["data", "gradients", "lib", "node", "golden", "e2e", "examples", "pytorch", "Inputs"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.mgq_build_dir, "test")

llvm_config.with_environment("PATH", config.llvm_tools_dir, append_path=True)
llvm_config.with_environment("PATH", config.mgq_tools_dir, append_path=True)
config.substitutions.append(("%python", sys.executable))
config.substitutions.append(
    ("%mgq_opt", os.path.join(config.mgq_tools_dir, "mgq-opt"))
)
# The Python that scripts/setup.sh prepares: it has the onnx package.
config.substitutions.append(
    ("%onnx_python", os.path.join(config.mgq_build_dir, "venv", "bin", "python"))
)
# A command that must fail: exit status, lines of its message, files unchanged.
config.substitutions.append(
    ("%fails", f"{sys.executable} {os.path.join(config.test_source_root, 'cli', 'fails.py')}")
)
config.environment["PYTHONPATH"] = os.path.join(config.test_source_root, "lib")
config.substitutions.append(("%data", os.path.join(config.test_source_root, "data")))
llvm_config.add_tool_substitutions(
    ["FileCheck", "not", "count", "split-file"], [config.llvm_tools_dir]
)
llvm_config.add_tool_substitutions(
    [tool for tool in ("mgq-opt", "mgq-interpret", "mgq-compile", "mgq-run", "mgq-translate")
     if os.path.exists(os.path.join(config.mgq_tools_dir, tool))],
    [config.mgq_tools_dir],
)

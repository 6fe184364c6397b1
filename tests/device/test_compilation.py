"""Every kernel compiles to machine code of an H100, which needs no GPU, and holds its rows in registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import definitions  # noqa: F401  # skips where there is no Triton
import pytest

HERE = Path(__file__).parent
KERNELS = 18
"""Kernels that do not depend on the number of updates."""

LAUNCHED = 12
"""The kernels of all rules and changes."""


@pytest.mark.parametrize(
    "numbers", [(4, 16), pytest.param((3, 5, 32), marks=pytest.mark.soak), pytest.param((64,), marks=pytest.mark.soak)]
)
def test_kernels_use_no_local_memory_and_read_wide(tmp_path, numbers):
    variables = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
    variables.pop("TRITON_INTERPRET", None)
    command = [sys.executable, HERE / "compilation.py", *map(str, numbers)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == KERNELS + 3 * len(numbers)
    for kernel in kernels:
        # ptxas spills a register or two of some small kernels to have more programs at once; a row would take more.
        assert kernel["local"] + kernel["stack"] <= 8, kernel
        number = kernel["name"].split()[-1]
        wide = {"32": "v2.b32", "64": "b32"}.get(number, "v4.b32")
        if number not in ("1", "add", "accept", "clip", "copy", "clearing", "filling"):
            assert wide in kernel["loads"], kernel


@pytest.mark.soak
def test_kernels_compile_for_the_arguments_of_calls(tmp_path):
    variables = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
    variables.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, HERE / "launching.py"], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == LAUNCHED

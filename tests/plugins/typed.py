"""hpcps as it is typed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from hpcps.records.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]


def hpcps(*arguments, expect=0, cwd=None):
    """Run a command line of hpcps; return what it prints, after checking the exit status."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", *map(str, arguments)],
        capture_output=True, text=True, timeout=200, cwd=cwd, env=environment, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == expect, said
    assert "Traceback" not in said, said
    return said


def models(results):
    """Return the final model of each run under a results folder, by label."""
    return {
        RunDirectory(run).spec["label"]: np.concatenate([np.load(part) for part in sorted(run.glob("final/*.npy"))])
        for run in results.glob("*/runs/*")
    }

"""hpcps as it is typed."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from hpcps import registry
from hpcps.cli.main import main
from hpcps.records.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]


def hpcps(*arguments, expect=0, cwd="."):
    """Call a command of hpcps in this process; return what it prints, after checking the exit status."""
    printed = io.StringIO()
    said = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
    with registry.using(registry.installed()), contextlib.chdir(cwd), said[0], said[1]:
        status = main([*map(str, arguments)])
    assert status == expect, printed.getvalue()
    return printed.getvalue()


def as_typed(*arguments, expect=0):
    """Do the same in a process of its own."""
    command = [sys.executable, "-m", "hpcps", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
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

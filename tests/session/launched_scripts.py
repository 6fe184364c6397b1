"""Starts scripts of front ends under `hpcps launch`."""

import subprocess
import sys


def launched(folder, script, *words, processes=3, options=(), succeeds=True):
    """Start a script, given as a file or as its text, with options of the launch; return what it has printed."""
    if isinstance(script, str):
        (folder / "script.py").write_text(script)
        script = "script.py"
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", "launch", "-n", str(processes), *options, sys.executable, script, *words],
        cwd=folder, check=False, capture_output=True, text=True, timeout=140,
    )  # fmt: skip
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
    return done.stdout + done.stderr

"""Installs the libraries, each into a folder of its own, and runs them in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processes import ROOT, MeasurementError, NotHereError

from comparison.libraries import Library

FOLDER = ROOT / ".venv-peers"
PROGRAM = ROOT / "benchmarks/peers/library.py"
SET_UP = 600.0
"""The time limit for installing a library, in seconds."""
TIMEOUT = 600.0
"""The time limit for its answers, in seconds."""


def installed(library: Library) -> Path:
    """Install a library without its dependencies, and return its folder.

    It uses numpy, scipy and torch of this environment, and nothing of it changes.

    Raises:
        NotHereError: it cannot be installed on this machine.
    """
    folder = FOLDER / f"{library.name}-{library.version}"
    if (folder / ".ready").exists():
        return folder
    print(f"installing {library.name} {library.version} ...", flush=True)
    wanted = f"{library.name}=={library.version}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *library.options]
    done = subprocess.run([*pip, "--target", str(folder), wanted], capture_output=True, text=True, timeout=SET_UP)
    if done.returncode:
        raise NotHereError(f"{wanted} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    (folder / ".ready").touch()
    return folder


def answers(library: Library, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers of a library; see `peers/library.py`.

    Raises:
        MeasurementError: its process failed.
        NotHereError: it cannot be installed on this machine.
    """
    # Each library sees only itself and the packages of this environment.
    environment = {**os.environ, "PYTHONPATH": str(installed(library)), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="hpcps-peers-") as temporary:
        asked, written = Path(temporary) / "request.json", Path(temporary) / "answer.json"
        asked.write_text(json.dumps(request))
        command = [sys.executable, str(PROGRAM), library.name, str(asked), str(written)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"{library.name} took longer than {TIMEOUT:g} s") from None
        if done.returncode:
            raise MeasurementError(f"{library.name} failed: {done.stderr.strip()[-2000:]}")
        found: dict[str, Any] = json.loads(written.read_text())
        return found

"""ByzFL beside `rules.py`: it measures its rules on the updates there, in a process and an environment of its own."""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from exchanges import PEERS, SET_UP
from processes import GRACE, ROOT, MeasurementError, NotHereError, end

from hpcps.rules import TrimmedMean
from hpcps.updates import Updates

PROGRAM = PEERS / "byzfl_rules.py"
PATIENCE = 300.0
"""Seconds for an answer: the slowest takes a tenth of that."""


class ByzFL:
    """ByzFL in its own process."""

    def __init__(self, python: Path, updates: int, result: int) -> None:
        """Start it.

        Args:
            python: its environment's.
            updates: the descriptor of the memory in which the updates lie, one after another.
            result: that of the memory for a result.

        Raises:
            MeasurementError: it does not start.
        """
        fds = (updates, result)
        command = [python, PROGRAM, str(updates), str(result)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=fds, start_new_session=True)
        self._answer()

    def _answer(self) -> str:
        out = self._process.stdout
        assert out is not None
        # It writes whole lines: what can be read is one. Not `select`, which knows the first 1024 descriptors only.
        ready = select.poll()
        ready.register(out, select.POLLIN)
        if not ready.poll(PATIENCE * 1000):
            self.close()
            raise MeasurementError(f"ByzFL did not answer in {PATIENCE:g} s")
        answer = out.readline().decode().strip()
        if not answer:
            self.close()
            raise MeasurementError(f"ByzFL ended with status {self._process.returncode}")
        return answer

    def seconds(self, rule: str, updates: Updates) -> float:
        """Measure a rule; its result is in the memory for it then.

        Raises:
            MeasurementError: it ended, or did not answer.
        """
        assert self._process.stdin is not None
        n, d = len(updates), updates.layout.size
        with suppress(BrokenPipeError):  # it has ended: that it does not answer says so
            self._process.stdin.write(f"{rule} {n} {d} {TrimmedMean().trimmed(n) if n > 2 else 0}\n".encode())
            self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        end([self._process], GRACE)
        self._process.stdout.close()


def environment() -> Path:
    """Make ByzFL's environment: its own code, and this environment's packages (it would bring another torch).

    Raises:
        NotHereError: it cannot be made here.
    """
    folder = ROOT / ".venv-byzfl"
    python = folder / "bin/python"
    if (folder / ".ready").exists():
        return python
    print("setting up .venv-byzfl ...", flush=True)
    try:
        _run(sys.executable, "-m", "venv", "--clear", folder)
        _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "byzfl==0.0.11")
        shared = Path(np.__file__).parents[1]
        (own,) = folder.glob("lib/python3*/site-packages")
        (own / "shared.pth").write_text(f"{shared}\n")
        _run(python, "-c", "import scipy, torch")
    except (OSError, subprocess.SubprocessError) as error:
        raise NotHereError(f".venv-byzfl cannot be made here: {error}") from error
    (folder / ".ready").touch()
    return python


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, timeout=SET_UP)

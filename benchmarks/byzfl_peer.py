"""Runs ByzFL for `rules.py`: a process in a separate environment measures ByzFL's rules on the same updates."""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from exchanges import PEERS, SET_UP
from processes import GRACE, ROOT, MeasurementError, NotHereError, end

from hpcps.numerics.updates import Updates
from hpcps.rules import TrimmedMean

PROGRAM = PEERS / "byzfl_rules.py"
TIMEOUT = 300.0
"""The time limit for an answer, in seconds; the slowest takes a tenth of it."""


class ByzFL:
    """The process that runs ByzFL."""

    def __init__(self, python: Path, updates: int, result: int) -> None:
        """Start it.

        Args:
            python: the Python of its environment.
            updates: the descriptor of the shared memory that holds the updates, one after another.
            result: the descriptor of the shared memory for a result.

        Raises:
            MeasurementError: the process does not start.
        """
        fds = (updates, result)
        command = [python, PROGRAM, str(updates), str(result)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=fds, start_new_session=True)
        self._answer()

    def _answer(self) -> str:
        out = self._process.stdout
        assert out is not None
        # ByzFL's process writes whole lines, so a readable pipe holds one. `select` supports only 1024 descriptors.
        ready = select.poll()
        ready.register(out, select.POLLIN)
        if not ready.poll(TIMEOUT * 1000):
            self.close()
            raise MeasurementError(f"ByzFL did not answer in {TIMEOUT:g} s")
        answer = out.readline().decode().strip()
        if not answer:
            self.close()
            raise MeasurementError(f"ByzFL ended with status {self._process.returncode}")
        return answer

    def seconds(self, rule: str, updates: Updates, f: int | None = None) -> float:
        """Measure a rule, which writes its result to the shared memory.

        Args:
            rule: its name; with pre-aggregators before it, such as `nnm,median`.
            updates: the updates, one after another from the start of the shared memory.
            f: the number of Byzantine updates; by default that of `TrimmedMean`.

        Raises:
            MeasurementError: the process ended, or did not answer.
        """
        assert self._process.stdin is not None
        n, d = len(updates), updates.layout.size
        with suppress(BrokenPipeError):  # the process has ended, which reading the answer reports
            trimmed = TrimmedMean().trimmed(n) if n > 2 else 0
            self._process.stdin.write(f"{rule} {n} {d} {trimmed if f is None else f}\n".encode())
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
    """Create ByzFL's environment: its code, and this environment's packages, because it would install another torch.

    Raises:
        NotHereError: the environment cannot be created on this machine.
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

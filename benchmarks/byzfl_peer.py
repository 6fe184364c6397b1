"""Runs ByzFL for `rules.py`: a process in a separate environment measures ByzFL's rules on the same updates."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from exchanges import PEERS, SET_UP
from processes import ROOT, AnsweringProcess, NotHereError

from hpcps.numerics.updates import Updates
from hpcps.rules import TrimmedMean

PROGRAM = PEERS / "byzfl_rules.py"
TIMEOUT = 300.0
"""The time limit for an answer, in seconds; the slowest takes a tenth of it."""
THREADS = len(os.sched_getaffinity(0))
"""The threads of both: all cores that this process may use."""

Form = Literal["numpy", "torch"]
FORMS: tuple[Form, ...] = ("numpy", "torch")


@dataclass(frozen=True)
class Beside:
    """Runs of a rule of hpcps and one of ByzFL in turn, after one run of each that is not counted.

    Attributes:
        ours: the seconds of hpcps.
        theirs: those of ByzFL.
        form: what ByzFL got: the faster of numpy arrays and torch tensors.
    """

    ours: Sequence[float]
    theirs: Sequence[float]
    form: Form

    @property
    def ratio(self) -> float:
        """The median of ByzFL divided by that of hpcps."""
        return statistics.median(self.theirs) / statistics.median(self.ours)


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
        command = [python, PROGRAM, str(updates), str(result)]
        threads = {"OMP_NUM_THREADS": f"{THREADS}", "OPENBLAS_NUM_THREADS": f"{THREADS}"}
        self._process = AnsweringProcess("ByzFL", command, TIMEOUT, threads, (updates, result))
        self._process.answer()

    def beside(
        self, rule: str, updates: Updates, ours: Callable[[], float], repeats: int, f: int | None = None
    ) -> Beside:
        """Measure a rule beside one of hpcps, in turn; afterwards the shared memory holds ByzFL's result.

        Args:
            rule: its name; with pre-aggregators before it, such as `nnm,median`.
            updates: the updates, one after another from the start of the shared memory.
            ours: runs the rule of hpcps, and returns its seconds.
            repeats: the number of runs that are counted.
            f: the number of Byzantine updates; by default that of `TrimmedMean`.

        Raises:
            MeasurementError: the process ended, or did not answer.
        """
        # The first run of each allocates memory; torch or numpy is chosen from a second one.
        for _ in range(2):
            warm = {form: seconds for form in FORMS if (seconds := self.seconds(rule, updates, form, f)) is not None}
        form = min(warm, key=warm.__getitem__)
        ours()
        own, theirs = [], []
        for _ in range(repeats):
            own.append(ours())
            seconds = self.seconds(rule, updates, form, f)
            assert seconds is not None
            theirs.append(seconds)
        return Beside(own, theirs, form)

    def seconds(self, rule: str, updates: Updates, form: Form, f: int | None = None) -> float | None:
        """Measure a rule, which writes its result to the shared memory.

        Args:
            rule: its name; with pre-aggregators before it, such as `nnm,median`.
            updates: the updates, one after another from the start of the shared memory.
            form: what it gets.
            f: the number of Byzantine updates; by default that of `TrimmedMean`.

        Returns:
            The seconds, or None if the rule fails for torch tensors.

        Raises:
            MeasurementError: the process ended, or did not answer.
        """
        n, d = len(updates), updates.layout.size
        trimmed = TrimmedMean().trimmed(n) if n > 2 else 0
        answer = self._process.ask(f"{rule} {n} {d} {trimmed if f is None else f} {form}")
        return None if answer == "failed" else float(answer)

    def close(self) -> None:
        """End it."""
        self._process.close()


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

"""Plays a run over MPI again in virtual time, to see how much slower than its CPU seconds say it was."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hpcps.records.run_directory import RunDirectory
from hpcps.runtime.inprocess import run_in_process
from hpcps.simulation.calibration import Records
from hpcps.simulation.config import Measured
from hpcps.spec.schema import Run


def seconds_per_round(run: Run, simulation: Measured) -> float:
    """Play a run in virtual time, records and all in a folder that is gone afterwards; return the time of a round."""
    transport = run.transport.model_copy(update={"kind": "inproc"})
    simulated = run.model_copy(update={"transport": transport, "simulation": simulation})
    with tempfile.TemporaryDirectory(prefix="hpcps-") as folder:
        directory = RunDirectory(Path(folder))
        directory.create({"run_id": "replay", "run": simulated.model_dump(mode="json")})
        run_in_process(simulated, "replay", directory)
        return Records(directory.path).seconds_per_round


def speed_of(path: str | Path) -> float:
    """Return the `speed` with which a run's simulation takes as long as the run itself did on this machine.

    It stands for what CPU seconds do not show: cores that a scheduler leaves idle while tasks wait on another one, and
    what else the machine did.

    Args:
        path: the folder of a finished run over MPI, all on one host.

    Raises:
        RunError: its records cannot be used.
    """
    records = Records(Path(path))
    return seconds_per_round(records.run, Measured(records=str(path))) / records.seconds_per_round

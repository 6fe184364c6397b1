"""Repeat an MPI run in virtual time, to compare its duration with the simulated one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hpcps.execution.inprocess import run_in_process
from hpcps.execution.simulation.calibration import RunRecords
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.registry import using
from hpcps.registry.components import sha256
from hpcps.registry.plugins import registry_of
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Measured
from hpcps.transport import InOneProcess


def seconds_per_round(run: Run, simulation: Measured, plugins: Iterable[tuple[str, str]] = ()) -> float:
    """Simulate a run, with its records in a temporary folder; return the time per round.

    Args:
        run: the run.
        simulation: the costs.
        plugins: the file name and the text of each plugin file that the run uses.
    """
    transport = InOneProcess(partition=run.transport.partition, timeout=run.transport.timeout)
    simulated = run.model_copy(update={"transport": transport, "simulation": simulation})
    with tempfile.TemporaryDirectory(prefix="hpcps-") as folder:
        directory = RunDirectory(Path(folder))
        copies = [{"file": file, "text": text, "sha256": sha256(text)} for file, text in plugins]
        directory.create({"run_id": "replay", "run": simulated.model_dump(mode="json"), "plugins": copies})
        with using(registry_of(directory.plugins, directory.path / PLUGINS)):
            run_in_process(simulated.identified("replay"), directory)
        return RunRecords(directory.path).seconds_per_round


def speed_of(path: str | Path) -> float:
    """Return the `speed` with which the simulation of a run takes as long as the run took on its machine.

    The value accounts for effects that CPU seconds do not show: cores that are idle while tasks wait for another core,
    and other work of the machine.

    Args:
        path: the folder of a finished run over MPI, all on one host.

    Raises:
        RunError: its records cannot be used.
    """
    records = RunRecords(Path(path))
    simulated = seconds_per_round(records.run, Measured(records=str(path)), RunDirectory(Path(path)).plugins)
    return simulated / records.seconds_per_round

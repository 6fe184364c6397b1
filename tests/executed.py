"""Runs that a test executes, in its own process or in one launch, and what they leave."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcps.execution.inprocess import run_in_process
from hpcps.launch.detect import detect_mpi
from hpcps.launch.launchers import Job, Plain
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.supervise import supervise
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.identity import run_id
from hpcps.spec.schema import Run

ROOT = Path(__file__).parents[1]


def run_here(run: Run, folder: Path | str) -> RunDirectory:
    """Execute a run in this process to its end; return its folder."""
    directory, name = RunDirectory(Path(folder)), run_id(run)
    directory.create({"run_id": name, "label": "", "run": run.model_dump(mode="json")})
    assert run_in_process(run.identified(name), directory)
    return directory


def launch(
    folder: Path, runs: Mapping[str, Run], world: tuple[Rank, ...], mpirun: Path | None, **variables: str
) -> list[str]:
    """Execute runs in one launch, each in the folder of its name; without `mpirun`, without MPI. Return the output."""
    planned = []
    for name, run in runs.items():
        values = {"run_id": run_id(run), "label": name, "index": 0, "swept": {}, "run": run.model_dump(mode="json")}
        planned.append(PlannedRun(run_id(run), name, str(folder / name), values))
    job = Job(
        plan=Plan(world, tuple(planned), mpi=mpirun is not None),
        plan_file=folder / "conf.plan.json",
        configfile=folder / "conf",
        mpirun=mpirun or Path(sys.executable),
        python=(mpirun or Path(sys.executable)).parent / "python",
        variables={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables},
    )
    started = (detect_mpi(mpirun).launcher if mpirun else Plain()).launch_of(job)
    started.write()
    output: list[str] = []
    outcome = supervise(started, output.append)
    assert outcome.status == 0, "\n".join([str(outcome), *output])
    return output


def lines(folder: Path, process: str, event: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of a process's record, or those of one event."""
    text = (Path(folder) / "records" / f"{process}.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if event in (None, line["event"])]

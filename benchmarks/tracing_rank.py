"""One rank of hpcps in the benchmark of tracing: the process that `hpcps run --trace` starts, partly traced.

    mpirun ... python -m mpi4py tracing_rank.py PLAN ROLE

The same processes play all runs after a warm-up, so that the runs differ only in the trace. The environment variable
TRACED has a letter for each run: `n`o, `y`es, or `r`ounds: those for which `traced` is true. The file
`rank-<number>.jsonl` next to the plan gets a line for each run: the wall seconds from the arrival of all processes
until the last one has finished, and the CPU seconds of this process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hpcps.execution import process
from hpcps.execution.__main__ import main
from hpcps.execution.process_context import ProcessContext
from hpcps.execution.role_driver import RoleDriver
from hpcps.launch.stop import StopFile
from hpcps.records.trace.clocks import Clocks
from hpcps.roles.events import Event
from hpcps.transport.process_group import ProcessGroup

BLOCK = 2
"""Rounds."""
TRACED = "nyyn"
"""Which of four blocks are traced; in this order slow changes cancel out."""


def traced(round: int) -> bool:
    """Return whether a round is traced in a run with some traced rounds."""
    return TRACED[round // BLOCK % len(TRACED)] == "y"


class InTurns(RoleDriver):
    """Traces some of its rounds."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._kept = self._tracer

    def take(self) -> Event | None:
        self._tracer = self._kept if traced(self._role.round) else None
        return super().take()


_execute_run = process._execute_run
_whole = process.RoleDriver
_letters = iter(os.environ.get("TRACED", ""))


def play_one(part: ProcessContext, stop: StopFile, group: ProcessGroup, clocks: Clocks | None, *more: Any) -> bool:
    """Play a run, traced or not, and write its times."""
    letter = next(_letters)
    process.RoleDriver = InTurns if letter == "r" else _whole
    gc.collect()
    group.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    well = _execute_run(part, stop, group, None if letter == "n" else clocks, *more)
    group.barrier()
    with Path(sys.argv[1]).with_name(f"rank-{group.rank}.jsonl").open("a") as file:
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), file=file)
    return well


if __name__ == "__main__":
    process._execute_run = play_one
    sys.exit(main())

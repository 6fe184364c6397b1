"""One rank of hpcps in a comparison: the process that `hpcps run --trace` starts, but not all is traced.

    mpirun ... python -m mpi4py tracing_rank.py PLAN ROLE

All runs are played by the same processes, which are warm by then, so that they differ in nothing but the trace. The
environment variable TRACED has a letter for each: `n`o, `y`es, or `r`ounds: those that `traced` says. The file
`rank-<number>.jsonl` beside the plan gets a line for each: the wall seconds from when all had come to it until all have
left it, and the CPU seconds of this process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hpcps.launch.stop import StopFile
from hpcps.roles.events import Event
from hpcps.runtime import process
from hpcps.runtime.__main__ import main
from hpcps.runtime.engagement import Engagement
from hpcps.runtime.node import Node
from hpcps.trace.clocks import Clocks
from hpcps.transport.gathering import Gathering

BLOCK = 2
"""Rounds."""
TRACED = "nyyn"
"""Which of four blocks are traced: what changes slowly cancels out."""


def traced(round: int) -> bool:
    """Say whether a round is traced, in a run of which some are."""
    return TRACED[round // BLOCK % len(TRACED)] == "y"


class InTurns(Node):
    """Traces some of its rounds."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._kept = self._tracer

    def take(self) -> Event | None:
        self._tracer = self._kept if traced(self._role.round) else None
        return super().take()


_play_one = process._play_one
_whole = process.Node
_letters = iter(os.environ.get("TRACED", ""))


def play_one(part: Engagement, stop: StopFile, gathering: Gathering, clocks: Clocks | None) -> bool:
    """Play a run, traced or not, and say what it took."""
    letter = next(_letters)
    process.Node = InTurns if letter == "r" else _whole
    gc.collect()
    gathering.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    well = _play_one(part, stop, gathering, None if letter == "n" else clocks)
    gathering.barrier()
    with Path(sys.argv[1]).with_name(f"rank-{gathering.rank}.jsonl").open("a") as file:
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), file=file)
    return well


if __name__ == "__main__":
    process._play_one = play_one
    sys.exit(main())

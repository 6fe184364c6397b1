"""Letting all processes know each other's problems, so that they go on together or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hpcps.transport.gathering import Gathering


def nothing() -> None:
    """Leave no report."""


def agree(gathering: Gathering, problem: str, report: Callable[[], None] = nothing) -> bool:
    """Let all processes know each other's problems; say whether there are none.

    One process prints each of them once, and the first one that has any makes its report.

    Args:
        gathering: all processes.
        problem: what is wrong with this one; empty if nothing is.
        report: leaves a report of it.
    """
    everyone = gathering.collect(problem)
    troubled = [rank for rank, text in enumerate(everyone) if text]
    if gathering.rank in troubled[:1]:
        report()
    if troubled and gathering.rank == 0:
        lines = dict.fromkeys(line for text in everyone for line in text.splitlines())
        print("\n".join(f"hpcps: {line}" for line in lines), file=sys.stderr, flush=True)
    # Nobody leaves before the message is out: the launcher kills the job at the first exit.
    gathering.barrier()
    return not troubled

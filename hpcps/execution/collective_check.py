"""The collective check: all processes exchange their problems, so that all of them continue or none."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hpcps.transport.process_group import ProcessGroup


def nothing() -> None:
    """Write no report."""


def collective_check(group: ProcessGroup, problem: str, report: Callable[[], None] = nothing) -> bool:
    """Exchange the problems of all processes; return whether there are none.

    Rank 0 prints each problem once. The first process with a problem writes its report.

    Args:
        group: the process group.
        problem: the problem of this process; empty if it has none.
        report: writes a report of the problem.
    """
    problems = group.collect(problem)
    affected = [rank for rank, text in enumerate(problems) if text]
    if group.rank in affected[:1]:
        report()
    if affected and group.rank == 0:
        lines = dict.fromkeys(line for text in problems for line in text.splitlines())
        print("\n".join(f"hpcps: {line}" for line in lines), file=sys.stderr, flush=True)
    # No process exits before the message is printed: the launcher kills the job at the first exit.
    group.barrier()
    return not affected

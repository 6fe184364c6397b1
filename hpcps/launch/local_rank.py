"""The rank and the GPU of a process before MPI starts, from the environment that the launcher sets."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from hpcps.inputs import whole_number
from hpcps.launch.plan import Plan, Rank

OWN_RANK = "HPCPS_RANK"
"""The variable in which our own starter, or a user, sets the rank."""


def planned_rank(plan: Plan, environment: MutableMapping[str, str] = os.environ) -> Rank | None:
    """Return the entry of this process in the plan, or None if the launcher sets no rank or an invalid one."""
    for variable in (OWN_RANK, *plan.rank_variables):
        text = environment.get(variable, "")
        if text.isascii() and text.isdigit():
            number = whole_number(text, 0, len(plan.world) - 1)
            return None if number is None else plan.world[number]
    return None


def preset_gpu(plan: Plan, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make only the planned GPU visible to this process; call this before MPI and the framework are imported.

    The configfile cannot choose the GPU, because all ranks of a segment have the same command line.
    """
    rank = planned_rank(plan, environment)
    if rank is not None and rank.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = rank.gpu

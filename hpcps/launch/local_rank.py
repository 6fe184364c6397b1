"""What the launcher's environment tells a process before MPI starts."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from hpcps.launch.plan import Plan, Rank

OWN_RANK = "HPCPS_RANK"
"""Where our own starter says the rank."""

_RANK_VARIABLES = (OWN_RANK, "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID")


def planned_rank(plan: Plan, environment: MutableMapping[str, str] = os.environ) -> Rank | None:
    """Return this process's place in the plan, or None if the launcher does not say or says nonsense."""
    for variable in _RANK_VARIABLES:
        text = environment.get(variable, "")
        if text.isdigit():
            return plan.world[int(text)] if int(text) < len(plan.world) else None
    return None


def preset_gpu(plan: Plan, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process see only the GPU that the plan gives it; call it before MPI and the framework are imported.

    Ranks of one segment share their command line, so the choice cannot be in the configfile.
    """
    rank = planned_rank(plan, environment)
    if rank is not None and rank.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = rank.gpu

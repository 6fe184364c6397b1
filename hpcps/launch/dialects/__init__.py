"""How each launcher is told what to start where: a module per dialect."""

from hpcps.errors import LaunchError
from hpcps.launch.dialects import hydra, intel, openmpi, pals, plain, slurm
from hpcps.launch.dialects.job import Job, Launch, Render

_DIALECTS: dict[str, Render] = {
    "hydra": hydra.render,
    "intel": intel.render,
    "openmpi": openmpi.render,
    "pals": pals.render,
    "plain": plain.render,
    "slurm": slurm.render,
}

DIALECTS = tuple(_DIALECTS)
"""The names of the dialects."""

__all__ = ["DIALECTS", "Job", "Launch", "render"]


def render(dialect: str, job: Job) -> Launch:
    """Put a job into a dialect.

    Raises:
        LaunchError: the dialect cannot express it, or there is no such dialect.
    """
    if dialect not in _DIALECTS:
        raise LaunchError(f"unknown dialect {dialect!r}: choose one of {', '.join(DIALECTS)}")
    return _DIALECTS[dialect](job)

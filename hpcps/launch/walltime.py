"""A job's walltime: stopping in time, and going on in a job after it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping

SUSPENDED = 75
"""Exit status of a job that stopped at a checkpoint because its time was nearly over (EX_TEMPFAIL of sysexits.h)."""

_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_PREDECESSORS = "HPCPS_SUCCESSOR"


def seconds(text: str) -> float:
    """Read a time as batch systems write it: seconds, MM:SS, HH:MM:SS or D-HH:MM:SS.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if text.isascii() and text.isdigit():
        return float(text)
    found = _CLOCK.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, or HH:MM:SS")
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def predecessors(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many jobs of its chain came before this one: `HPCPS_SUCCESSOR`."""
    text = environment.get(_PREDECESSORS, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def may_go_on(successors: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Say why no further job may go on where this one stops; None if one may.

    Args:
        successors: how many the experiment allows, one after another.
        environment: of the job.
    """
    before = predecessors(environment)
    if before < successors:
        return None
    return (
        f"checkpoint.successors = {successors} allows no job after this one (number {before + 1} of its chain): run "
        "it again to go on"
    )

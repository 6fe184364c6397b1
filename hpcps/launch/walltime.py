"""The walltime of a job, and the successor jobs that continue its run."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping

from hpcps.inputs import whole_number
from hpcps.registry.config import MOST

_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})")
_PREDECESSORS = "HPCPS_SUCCESSOR"


def seconds(text: str) -> float:
    """Read a time as batch systems write it: seconds, MM:SS, HH:MM:SS or D-HH:MM:SS.

    Raises:
        argparse.ArgumentTypeError: the text is not a time.
    """
    if text.isascii() and text.isdigit():
        text = f"0:{text}"
    found = _CLOCK.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, or HH:MM:SS")
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def predecessors(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of earlier jobs in the chain of this job, from `HPCPS_SUCCESSOR`."""
    text = environment.get(_PREDECESSORS, "0")
    return whole_number(text, 0, MOST) or 0


def may_go_on(successors: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why no successor job may continue the run after this one; None if a successor is allowed.

    Args:
        successors: the number of successors that the experiment allows.
        environment: the environment of the job.
    """
    before = predecessors(environment)
    if before < successors:
        return None
    return (
        f"checkpoint.successors = {successors} allows no job after this one (number {before + 1} of its chain): run "
        "it again to go on"
    )

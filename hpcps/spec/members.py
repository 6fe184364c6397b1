"""How many workers a run has, from which position on: `hpcps resize` changes it where an epoch ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcps.errors import InputError


class WorkerCount(NamedTuple):
    """The number of workers of a run from a checkpoint on.

    Attributes:
        position: the round, or the place in the servers' log; 0 for the beginning of the run.
        epoch: the epochs that are over there.
        workers: the number.
    """

    position: int
    epoch: int
    workers: int


def members_of(spec: Mapping[str, Any]) -> tuple[WorkerCount, ...]:
    """Return the memberships that the `spec.json` of a run states; none if it was never resized.

    Raises:
        InputError: they do not have the form that `described` gives.
    """
    listed = spec.get("members", [])
    try:
        return tuple(WorkerCount(*(int(each[name]) for name in WorkerCount._fields)) for each in listed)
    except (TypeError, KeyError, ValueError) as error:
        raise InputError("members", "they are no list of memberships; --no-resume begins the run anew") from error


def described(members: Sequence[WorkerCount]) -> list[dict[str, int]]:
    """Return memberships as JSON values."""
    return [each._asdict() for each in members]

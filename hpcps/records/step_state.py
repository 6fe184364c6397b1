"""The local steps of the roles of a run with a policy, from the records of its state server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcps.inputs import finite


@dataclass(frozen=True)
class StepState:
    """The local steps of one role in the present round, as server 0 knows them.

    Attributes:
        who: the role, such as `worker-3`.
        k: its local steps in the round.
        c: its seconds per local step; None if they are not known yet.
        te: when its last step ended or the round began, in seconds of server 0's record; None if it has not begun.
        ready: whether it has the order to send its update.
        now: the time of the record line.
    """

    who: str
    k: int
    c: float | None
    te: float | None
    ready: bool
    now: float

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> tuple[StepState, ...]:
        """Return what a line says; nothing if it is damaged."""
        columns = [line.get(name) for name in ("who", "k", "c", "te", "ready")]
        if not all(isinstance(column, list) for column in columns):
            return ()
        rows = zip(*(column for column in columns if isinstance(column, list)), strict=False)
        return tuple(
            cls(str(who), int(finite(k)), _known(c), _known(te), ready is True, finite(line.get("time")))
            for who, k, c, te, ready in rows
        )


def _known(value: object) -> float | None:
    return finite(value) if isinstance(value, (int, float)) else None

"""Earlier weights that a server keeps, for rules that compensate the delay of updates."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import Peer
from hpcps.registry.failures import errors_of
from hpcps.roles.asynchronous.log import LogEntry
from hpcps.rules.asynchronous import AsyncRule, Backup


class Backups:
    """The weights b of `DcAsgd`: those that each worker pulled last, or those before the last update of each block.

    They are on the host, also if the model is on a device.
    """

    def __init__(self, backup: Backup, model: Vector) -> None:
        """Begin with the first model of a shard, `[m]`."""
        self._pulled: dict[Peer, Vector] = {}
        self._previous = on_host(model).copy() if backup == "previous" else None

    def pull(self, reader: Peer, model: Vector) -> None:
        """Note that a role gets this model `[m]`, which nobody changes."""
        if self._previous is None and reader.role == "worker":
            self._pulled[reader] = on_host(model)

    def compensated(self, rule: AsyncRule, entry: LogEntry, changed: list[tuple[int, int]], model: Vector) -> Vector:
        """Return what the rule makes of an update's payload, on the host; the update is applied next.

        Args:
            rule: the rule.
            entry: the update, with a payload.
            changed: the ranges of the model that it changes, at least one.
            model: the model `[m]` before the update.
        """
        payload, parts, taken = on_host(entry.payload), [], 0
        for start, stop in changed:
            drift = self._drift(entry.reader, model, start, stop)
            with errors_of(rule, "its compensate() failed", foreign=True):
                parts.append(rule.compensate(payload[taken : taken + stop - start], drift, entry.rate))
            taken += stop - start
        return np.concatenate(parts)

    def _drift(self, worker: Peer, model: Vector, start: int, stop: int) -> Vector:
        """Return the difference between the model and a worker's weights, and keep the model as previous weights."""
        backup = self._pulled[worker] if self._previous is None else self._previous
        weights = on_host(model[start:stop])
        drift: Vector = weights - backup[start:stop]
        if self._previous is not None:
            self._previous[start:stop] = weights
        return drift

    def state(self) -> State:
        """Return the previous weights; after a resume every worker pulls the model."""
        return State({} if self._previous is None else {"previous": self._previous})

    def restore(self, state: State) -> None:
        """Restore the previous weights."""
        if self._previous is not None:
            self._previous[:] = state.arrays["previous"]

"""Earlier weights that a server keeps, for rules that compensate the delay of updates."""

from __future__ import annotations

from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import Peer
from hpcps.rules.asynchronous import Backup


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

    def drift(self, worker: Peer, model: Vector, start: int, stop: int) -> Vector:
        """Return the difference between the model and the weights for an update of a worker, `[stop - start]`.

        The update is applied next: then these are the weights before it.
        """
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

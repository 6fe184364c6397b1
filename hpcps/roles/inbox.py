"""Where a worker or validator gathers the shards of the next model."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcps.errors import RunError
from hpcps.layout import Layout, Vector
from hpcps.messages import Flag, Message, Peer
from hpcps.roles.checks import wrong_size


class ModelInbox:
    """Puts the shards of one round's model together.

    Attributes:
        model: the flat vector `[d]`, whole once `complete`.
        flags: what the servers said with it, all together.
        version: how many updates it holds (asynchronous).
        index: the place in the servers' log of what it answers (asynchronous).
        note: the last server's note with it.
    """

    def __init__(self, owner: Peer, layout: Layout, servers: int) -> None:
        self._owner = owner
        self._bounds = layout.bounds(servers)
        self._missing = set(range(servers))
        self.model: Vector = np.zeros(layout.size, np.float32)
        self.flags = Flag.NONE
        self.version = self.index = 0
        self.note: dict[str, Any] = {}

    @property
    def complete(self) -> bool:
        """Whether all shards have come."""
        return not self._missing

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The servers whose shards have not come."""
        return tuple(Peer("server", s) for s in sorted(self._missing))

    def clear(self) -> None:
        """Begin to gather the next model."""
        self._missing = set(range(len(self._bounds)))

    def put(self, message: Message, round: int) -> None:
        """Take a MODEL message.

        Args:
            message: the message.
            round: the round that begins with the model, or the number of the request that it answers.

        Raises:
            RunError: if it is not the shard that its server owes, or of another version than the shards before it:
                nobody can go on from a wrong model.
        """
        shard = message.sender.index
        reason = None
        if message.round != round or shard not in self._missing or message.shard != shard:
            reason = f"it is shard {message.shard} of round {message.round}, and round {round} begins"
        elif len(self._missing) < len(self._bounds) and (message.index, message.version) != (self.index, self.version):
            reason = f"it is version {message.version}, and other shards are version {self.version}"
        else:
            start, stop = self._bounds[shard]
            reason = wrong_size(message, stop - start)
        if reason:
            raise RunError(f"{self._owner} cannot use the model that {message.sender} sent: {reason}")
        if message.payload is not None:
            self.model[start:stop] = message.payload
        fresh = len(self._missing) == len(self._bounds)
        self.flags = message.flags if fresh else self.flags | message.flags
        self.note = message.note
        self.index, self.version = message.index, message.version
        self._missing.discard(shard)

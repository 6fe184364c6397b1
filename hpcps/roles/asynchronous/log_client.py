"""What workers and validators do with the servers' log: they submit entries, and get models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.packing import pack, packed_size
from hpcps.protocol.messages import Flag, Message, Peer
from hpcps.protocol.roster import Roster, shards_of
from hpcps.roles.asynchronous.log import Entry
from hpcps.roles.checks import rejection
from hpcps.roles.events import Effect, Finish, Send
from hpcps.roles.local_training import LocalTraining, Stage
from hpcps.spec.schema import Run


class LogClient:
    """Submits a training role's entries to all servers, and takes the models that answer its requests.

    A model has the same version in all shards. Requests end when the servers say that a model is the last one.

    Attributes:
        request: the number of the last request. The first model comes without one, and answers request 0.
    """

    def __init__(self, run: Run, run_id: str, layout: Layout, training: LocalTraining) -> None:
        self._run_id = run_id
        self._training = training
        self._layout = layout
        self._servers = Roster.of(run).all_servers()
        self._shards = [(start, stop, layout.restrict(start, stop)) for start, stop in shards_of(run, layout)]
        self.request = 0
        self._entries = 0

    def take_model(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a shard of the model that was asked for; the run is over with the last model."""
        training = self._training
        last = bool(message.flags & Flag.LAST)
        waiting = training.stage in (Stage.STARTING, Stage.WAITING_FOR_MODEL, Stage.STOPPING)
        expected = self.request if waiting else self.request + 1
        if last and not training.is_coordinator:
            yield Finish()
        elif training.stage is Stage.STOPPING and not last:
            # It answers the coordinator's last update; only the last model counts now.
            return
        elif message.round != expected:
            yield rejection(source, f"a model that answers request {message.round} instead of {expected}")
        else:
            training.inbox.put(message, expected)
            yield from training.adopt_when_complete()

    def ask(self) -> Iterator[Effect]:
        """Wait for the answer to the next request; it may be here if a server took other bytes for the request."""
        self.request += 1
        yield from self._training.adopt_when_complete()

    def next_number(self) -> int:
        """Number the next entry."""
        self._entries += 1
        return self._entries

    def submit(self, entry: Entry, parts: list[tuple[Mask, Vector]] | None = None) -> Iterator[Effect]:
        """Send an entry to all servers; `parts` are its mask and payload for each of them."""
        for shard, server in enumerate(self._servers):
            if parts is not None:
                entry = replace(entry, mask=parts[shard][0], payload=parts[shard][1])
            yield Send(server, entry.message(self._run_id, shard))

    def cut(self, update: Vector, mask: Mask) -> list[tuple[Mask, Vector]]:
        """Cut the masked blocks of an update `[d]` into a part (mask, payload of its own) for each server."""
        parts = []
        for start, stop, layout in self._shards:
            first = self._layout.first_in(start)
            here = mask[first : first + len(layout.blocks)]
            payload = np.empty(packed_size(layout, here), np.float32)
            parts.append((here, pack(layout, update[start:stop], here, payload)))
        return parts

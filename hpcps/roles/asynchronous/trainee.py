"""What workers and validators of the asynchronous protocol share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hpcps.errors import RunError
from hpcps.layout import Mask, Vector
from hpcps.messages import Flag, Kind, Message, Peer
from hpcps.packing import pack, packed_size
from hpcps.roles.asynchronous.entry import Entry
from hpcps.roles.checkpointing import KEEPER
from hpcps.roles.checks import rejection
from hpcps.roles.events import Compute, Effect, Finish, Send, SetDeadline
from hpcps.roles.trainee import Trainee
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner


class AsyncTrainee(Trainee):
    """Asks for the model and gets it, of one version in all shards, until the servers say that it was the last one.

    A worker's cycle, or a validator's refresh, takes the place of the synchronous round.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner) -> None:
        super().__init__(peer, run, run_id, learner)
        self._bounds = learner.layout.bounds(run.topology.servers)
        self._pieces = tuple(learner.layout.restrict(start, stop) for start, stop in self._bounds)
        # The first model comes unasked: it answers request 0.
        self._request = 0
        self._awaiting = True
        self._stopping = False
        self._entries = 0
        self._version = 0
        self._log_epoch = 0

    @property
    def epoch(self) -> int:
        """Epochs of the own steps that are over."""
        return self._learner.steps_done // self._learner.steps_per_epoch

    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Write a checkpoint when server 0 says so: where it is now, less what is under way; refuse the rest."""
        if message.kind is Kind.CHECKPOINT and source == KEEPER:
            self._flags = message.flags
            yield from self.snapshot(message.round)
        else:
            yield from self.refuse(source, f"{self.peer} gets no {message.kind.name} from {source}")

    def restore(self, state: State) -> None:
        """Go on from a checkpoint; the cycle in which it was written counts as over if its steps were done."""
        super().restore(state)
        self.round = self._learner.steps_done // self._run.train.local_steps

    def adopt(self) -> None:
        """Take note of what came with the model; subclasses take the model."""
        self._version = self._inbox.version
        self._log_epoch = int(self._inbox.note.get("epoch", 0))

    def epochs_due(self) -> tuple[int, ...]:
        """The epochs that are over and have not been evaluated."""
        return tuple(range(self._evaluated + 1, min(self._run.train.epochs, self.epoch) + 1))

    def ask(self) -> Iterator[Effect]:
        """Wait for the answer to the next request; it may be here if a server took other bytes for the request."""
        self._request += 1
        self._awaiting = True
        yield from self._adopt_when_complete()

    def take_model(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a shard of the model that was asked for; at the last model the run is over."""
        last = bool(message.flags & Flag.LAST)
        expected = self._request if self._awaiting else self._request + 1
        if last and not self._is_chief:
            yield Finish()
        elif self._stopping and not last:
            # What answers the chief's last update: only the last model counts now.
            return
        elif message.round != expected:
            yield rejection(source, f"a model that answers request {message.round} instead of {expected}")
        else:
            self._inbox.put(message, expected)
            yield from self._adopt_when_complete()

    def _adopt_when_complete(self) -> Iterator[Effect]:
        if not self._awaiting:
            return
        yield SetDeadline(self._inbox.waiting_for)
        if self._inbox.complete:
            self._awaiting = False
            yield Compute("adopt", self.adopt, elements=self._base.size)

    def submit(self, entry: Entry, parts: list[tuple[Mask, Vector]] | None = None) -> Iterator[Effect]:
        """Send an entry to all servers; `parts` are its mask and payload for each of them."""
        for shard, server in enumerate(self._cast.all_servers()):
            if parts is not None:
                entry = replace(entry, mask=parts[shard][0], payload=parts[shard][1])
            yield Send(server, entry.message(self._run_id, shard))

    def cut(self, update: Vector, mask: Mask) -> list[tuple[Mask, Vector]]:
        """Cut the masked blocks of an update `[d]` into a part (mask, payload of its own) for each server."""
        parts = []
        for (start, stop), pieces in zip(self._bounds, self._pieces, strict=True):
            first = self._learner.layout.first_in(start)
            here = mask[first : first + len(pieces.blocks)]
            payload = np.empty(packed_size(pieces, here), np.float32)
            parts.append((here, pack(pieces, update[start:stop], here, payload)))
        return parts

    def next_number(self) -> int:
        """Number the next entry."""
        self._entries += 1
        return self._entries

    def unusable(self, source: Peer, reason: str) -> RunError:
        """The error of a server's or validator's message that nobody can go on without."""
        return RunError(f"{self.peer} cannot use what {source} sent in cycle {self.round}: {reason}")

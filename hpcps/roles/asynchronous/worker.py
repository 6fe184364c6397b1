"""The worker of the asynchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hpcps.messages import Kind, Message, Peer
from hpcps.roles.asynchronous.entry import Entry
from hpcps.roles.asynchronous.trainee import AsyncTrainee
from hpcps.roles.checks import rejection
from hpcps.roles.events import Compute, Computed, Drain, Effect, Pause, Record, Send
from hpcps.roles.packer import Packed, Packer
from hpcps.roles.resources import ALONE, Resources
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner, Progress


class Worker(AsyncTrainee):
    """Trains on its shard, sends its update, and goes on as soon as it has the model after it, whatever others do.

    ZenoPS's c is `_base`, x is the learner's, Δ and e are the packer's.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner, resources: Resources = ALONE) -> None:
        super().__init__(peer, run, run_id, learner)
        combiners = self._cast.combiners_of(peer.index)
        self._packer = Packer(peer, run, combiners, learner.layout, resources.allocate)
        self._packed: Packed | None = None
        self._delay = 0.0
        self._validator = combiners[0] if self._cast.validators else None

    def adopt(self) -> None:
        """Set x = c = the model + e: the residual survives locally."""
        super().adopt()
        self._inbox.read(self._base, self._packer.delta)
        self._learner.copy_from(self._base)

    def take_steps(self, steps: int) -> Progress:
        """Train on the own shard."""
        settings = self._run.asynchronous
        epoch = self._log_epoch if settings.epochs == "validator" and not self._is_chief else None
        return self._learner.train(steps, anchor=self._base, pull=settings.proximal.worker, epoch=epoch)

    def finish_steps(self) -> Iterator[Effect]:
        """Make the update."""
        yield Compute("pack", partial(self._packer.pack, self._learner, self._base), elements=self._base.size)

    def computed(self, event: Computed) -> Iterator[Effect]:
        """Send the update that was packed, after the delay that the experiment adds."""
        self._packed = event.result
        self._delay = self._packer.delay()
        if self._delay:
            yield Pause(self._delay)
        else:
            yield from self.resumed()

    def resumed(self) -> Iterator[Effect]:
        """Send the update, or say that there is none, and wait for the answer, if there will be one."""
        packed = self._packed
        assert packed is not None
        waits = bool(packed.parts) or self._run.asynchronous.absent == "reset"
        send = self._send_to_validator if self._validator else self._send_to_servers
        yield from send(packed, self._request + waits)
        yield Record(
            "round",
            {**self.training_fields(), **packed.fields(), "version": self._version, "delay": self._delay},
        )
        self.round += 1
        if self._is_chief and self.round >= self._course.rounds:
            self._stopping = True
            self._request = self.next_number()
            self._inbox.clear()
            self._awaiting = True
            yield from self.submit(Entry(Kind.STOP, self.peer, self._request, self.peer, self._request))
        elif waits:
            yield from self.ask()
        else:
            # Messages are looked at between two cycles, or the end of the run would go unnoticed.
            yield Drain()

    def idle(self) -> Iterator[Effect]:
        """Train on: this cycle was not taken part in."""
        yield from self._begin_steps()

    def state(self) -> State:
        """Add the residual, which is all that is left of an update under way, and the random streams."""
        return super().state().having(packer=self._packer.state())

    def restore(self, state: State) -> None:
        """Take them back."""
        super().restore(state)
        self._packer.restore(state.part("packer"))

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Record what is no message; a server's cannot be done without."""
        if source.role == "server":
            raise self.unusable(source, reason)
        yield rejection(source, reason)

    def _send_to_validator(self, packed: Packed, request: int) -> Iterator[Effect]:
        assert self._validator is not None
        if not packed.parts:
            yield Send(self._validator, Message(Kind.ABSENT, self.peer, self._run_id, request))
        for part in packed.parts:
            mask, payload, version = part.mask, part.payload, self._version
            message = Message(
                Kind.UPDATE, self.peer, self._run_id, request, mask=mask, payload=payload, version=version
            )
            yield Send(part.combiner, message)

    def _send_to_servers(self, packed: Packed, request: int) -> Iterator[Effect]:
        """Have the servers judge the update; who sends nothing but wants the model reads it."""
        if request == self._request:
            return
        kind = Kind.UPDATE if packed.sent else Kind.READ
        entry = Entry(kind, self.peer, self.next_number(), self.peer, request, self._version, self.epoch)
        parts = [(part.mask, part.payload) for part in packed.parts]
        yield from self.submit(entry, parts if packed.sent else None)

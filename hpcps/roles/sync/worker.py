"""The worker of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hpcps.errors import RunError
from hpcps.messages import Kind, Message, Peer
from hpcps.roles.cast import Cast
from hpcps.roles.checks import rejection
from hpcps.roles.events import Compute, Computed, Effect, Pause, Record, Send
from hpcps.roles.packer import Packed, Packer
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.sync.trainee import SyncTrainee
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner, Progress


class Worker(SyncTrainee):
    """Trains on its shard, sends its update (error reset keeps what it did not send), and takes the new model.

    ZenoPS's c is `_base`, x is the learner's, Δ and e are the packer's.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner, resources: Resources = ALONE) -> None:
        combiners = Cast.of(run).combiners_of(peer.index)
        super().__init__(peer, run, run_id, learner, combiners)
        self._packer = Packer(peer, run, combiners, learner.layout, resources.allocate)
        self._packed: Packed | None = None
        self._delay = 0.0

    def adopt(self) -> None:
        """Set x = c = the model + e: the residual survives locally."""
        self._inbox.read(self._base, self._packer.delta)
        self._learner.copy_from(self._base)

    def take_steps(self, steps: int) -> Progress:
        """Train on the own shard."""
        return self._learner.train(steps)

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
        """Send the update, as fast as it is taken, and wait for the next model."""
        packed = self._packed
        assert packed is not None
        self._answering = True
        for part in packed.parts:
            shard = part.combiner.index if part.combiner.role == "server" else 0
            message = Message(
                Kind.UPDATE, self.peer, self._run_id, self.round, shard, self.echo, part.mask, payload=part.payload,
                partition=part.number,
            )  # fmt: skip
            yield from self._outbox.put(part.combiner, message)
        if not packed.parts:
            for combiner in self._receivers:
                yield Send(combiner, Message(Kind.ABSENT, self.peer, self._run_id, self.round, flags=self.echo))
        yield from self.end_when_sent()

    def granted(self) -> Iterator[Effect]:
        """Go on once everything is sent."""
        yield from self.end_when_sent()

    def close(self) -> Iterator[Effect]:
        """Record what was trained and sent."""
        assert self._packed is not None
        yield Record("round", {**self.training_fields(), **self._packed.fields(), "delay": self._delay})

    def state(self) -> State:
        """Add the residual and the random streams."""
        return super().state().having(packer=self._packer.state())

    def restore(self, state: State) -> None:
        """Take them back."""
        super().restore(state)
        self._packer.restore(state.part("packer"))

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Record what is no message; a server's cannot be done without."""
        if source.role == "server":
            raise RunError(f"{self.peer} cannot use what {source} sent in round {self.round}: {reason}")
        yield rejection(source, reason)

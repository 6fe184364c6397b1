"""The validator of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcps.cuts import Partition
from hpcps.errors import RunError
from hpcps.kernels import prepare
from hpcps.layout import Vector
from hpcps.messages import Kind, Message, Peer
from hpcps.roles.acceptance import Acceptance
from hpcps.roles.cast import Cast
from hpcps.roles.events import Compute, Computed, Effect, Record, SetDeadline
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.sync.collector import Collector
from hpcps.roles.sync.outbox import grants
from hpcps.roles.sync.trainee import SyncTrainee
from hpcps.rules import Combined, Rule
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner, Progress


class Validator(SyncTrainee):
    """Combines its share of the updates by the run's rule and gives the result to the servers.

    Under a rule that scores it trains on its own shard to know what an update should look like; under the others it
    only runs its batches, which feeds its BatchNorm statistics.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner, resources: Resources = ALONE) -> None:
        super().__init__(peer, run, run_id, learner, Cast.of(run).all_servers())
        layout = learner.layout
        partitions = tuple(Partition.of(layout, bounds) for bounds in self._cuts.updates[peer.index])
        self._collector = Collector(self._cast.share(peer), partitions)
        self._reference: Vector | None = np.empty_like(self._base) if run.validation.rule.scores else None
        self._combined = resources.allocate(layout.size)
        self._threads = resources.threads
        prepare(len(self._cast.share(peer)) * layout.size)
        self._combining = False
        self._acceptance = Acceptance()

    @property
    def steps_before_model(self) -> int:
        """The artifact's quirk concerns the validators that train."""
        return super().steps_before_model if self._run.validation.rule.scores else 0

    def adopt(self) -> None:
        """Set x = c = the model."""
        self._inbox.read(self._base)
        self._learner.copy_from(self._base)

    def take_steps(self, steps: int) -> Progress:
        """Train under a rule that scores, else only run the batches."""
        return self._learner.train(steps) if self._run.validation.rule.scores else self._learner.observe(steps)

    def finish_steps(self) -> Iterator[Effect]:
        """Take note that the own steps are done; combine what is there of the updates."""
        self._answering = True
        yield from self._combine_when_ready()

    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take an update."""
        if message.kind in (Kind.UPDATE, Kind.ABSENT) and source.role == "worker":
            yield from self._collector.put(source, message, self.round)
            yield from self._combine_when_ready()
        else:
            yield from super().take(source, message)

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count what is no message as an update with nothing in it; a server's cannot be done without."""
        if source.role == "server":
            raise RunError(f"{self.peer} cannot use what {source} sent in round {self.round}: {reason}")
        yield from self._collector.refuse(source, reason)
        yield from self._combine_when_ready()

    def computed(self, event: Computed) -> Iterator[Effect]:
        """Send what was combined of a partition; go on with the next one."""
        self._combining = False
        collector, done = self._collector, self._collector.current
        yield from grants(self.peer, self._run_id, self.round, done, collector.total, collector.present)
        for server, number, (start, stop) in self._cuts.pieces(done - 1):
            message = Message(
                Kind.COMBINED, self.peer, self._run_id, self.round, server, self.echo,
                payload=self._combined[start:stop], partition=number,
            )  # fmt: skip
            yield from self._outbox.put(Peer("server", server), message)
        if collector.done:
            yield from self.end_when_sent()
        else:
            yield from self._combine_when_ready()

    def granted(self) -> Iterator[Effect]:
        """Go on once everything is combined and sent."""
        if self._collector.done:
            yield from self.end_when_sent()

    def close(self) -> Iterator[Effect]:
        """Record what was trained, and what became of the updates."""
        fields, rejections = self._collector.report()
        self._acceptance.add(self._collector.tally)
        yield from rejections
        yield Record("round", self.training_fields() | fields)
        self._collector.clear()

    def state(self) -> State:
        """Add the counts."""
        return super().state().having(acceptance=self._acceptance.state())

    def restore(self, state: State) -> None:
        """Take them back."""
        super().restore(state)
        self._acceptance.restore(state.part("acceptance"))

    def evaluation_fields(self) -> dict[str, object]:
        """Acceptance since the last evaluation and since the start."""
        return self._acceptance.fields()

    def _combine_when_ready(self) -> Iterator[Effect]:
        if not self._answering or self._combining or self._collector.done:
            return
        yield SetDeadline(self._collector.waiting_for)
        if self._collector.ready:
            self._combining = True
            yield Compute("combine", self._combine, elements=self._collector.elements)

    def _combine(self) -> Combined:
        collector, columns = self._collector, self._collector.partition.columns
        if self._reference is not None and collector.current == 0:
            self._learner.copy_to(self._reference)
            self._reference -= self._base
        rule = self._run.validation.rule
        assert isinstance(rule, Rule), "the specification has been checked"
        reference = None if self._reference is None else self._reference[columns]
        return collector.combine(rule, reference, out=self._combined[columns], threads=self._threads)

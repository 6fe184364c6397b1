"""The validator of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcps.errors import RunError
from hpcps.layout import Vector
from hpcps.messages import Kind, Message, Peer
from hpcps.roles.acceptance import Acceptance
from hpcps.roles.events import Compute, Computed, Effect, Record, Send, SetDeadline
from hpcps.roles.sync.collector import Collector
from hpcps.roles.trainee import Trainee
from hpcps.rules import Combined, Rule
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner, Progress


class Validator(Trainee):
    """Combines its share of the updates by the run's rule and gives the result to the servers.

    Under a rule that scores it trains on its own shard to know what an update should look like; under the others it
    only runs its batches, which feeds its BatchNorm statistics.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner) -> None:
        super().__init__(peer, run, run_id, learner)
        self._collector = Collector(self._cast.share(peer), learner.layout)
        self._bounds = learner.layout.bounds(run.topology.servers)
        self._reference: Vector | None = np.empty_like(self._base) if run.validation.rule.scores else None
        self._combined: Vector = self._base
        self._stepped = False
        self._acceptance = Acceptance()

    @property
    def steps_before_model(self) -> int:
        """The artifact's quirk concerns the validators that train."""
        return super().steps_before_model if self._run.validation.rule.scores else 0

    def adopt(self) -> None:
        """Set x = c = the model."""
        np.copyto(self._base, self._inbox.model)
        self._learner.copy_from(self._base)
        self._stepped = False

    def take_steps(self, steps: int) -> Progress:
        """Train under a rule that scores, else only run the batches."""
        return self._learner.train(steps) if self._run.validation.rule.scores else self._learner.observe(steps)

    def finish_steps(self) -> Iterator[Effect]:
        """Take note that the own steps are done; combine if all updates are in."""
        self._stepped = True
        yield from self._combine_when_ready()

    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take an update."""
        if message.kind in (Kind.UPDATE, Kind.ABSENT) and source.role == "worker":
            yield from self._collector.put(source, message, self.round)
            yield from self._combine_when_ready()
        else:
            yield from self.refuse(source, f"a validator gets no {message.kind.name} from {source}")

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count what is no message as an update with nothing in it; a server's cannot be done without."""
        if source.role == "server":
            raise RunError(f"{self.peer} cannot use what {source} sent in round {self.round}: {reason}")
        yield from self._collector.refuse(source, reason)
        yield from self._combine_when_ready()

    def computed(self, event: Computed) -> Iterator[Effect]:
        """Send the combined update and wait for the next model."""
        combined: Combined = event.result
        self._combined = combined.update
        for server, (start, stop) in zip(self._cast.all_servers(), self._bounds, strict=True):
            payload = self._combined[start:stop]
            yield Send(
                server,
                Message(Kind.COMBINED, self.peer, self._run_id, self.round, server.index, self.echo, payload=payload),
            )
        self._acceptance.add(self._collector.tally)
        fields, rejections = self._collector.report()
        yield from rejections
        yield Record("round", self.training_fields() | fields)
        self._collector.clear()
        yield from self.end_round()

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
        if not self._stepped:
            return
        yield SetDeadline(self._collector.waiting_for)
        if self._collector.complete:
            self._stepped = False
            yield Compute("combine", self._combine, elements=self._collector.elements)

    def _combine(self) -> Combined:
        if self._reference is not None:
            self._learner.copy_to(self._reference)
            self._reference -= self._base
        rule = self._run.validation.rule
        assert isinstance(rule, Rule), "the specification has been checked"
        return self._collector.combine(rule, self._reference)

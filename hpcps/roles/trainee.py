"""What workers and validators share: they get the model, take local steps, and one of them, the chief, evaluates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcps.layout import Vector
from hpcps.messages import Flag, Kind, Malformed, Message, Peer, Received
from hpcps.roles.cast import Cast, cuts_of
from hpcps.roles.checkpointing import report
from hpcps.roles.checks import rejection, wrong_envelope
from hpcps.roles.course import Course, Segment
from hpcps.roles.events import (
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Idle,
    Resumed,
    Send,
    SetDeadline,
    Settle,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.roles.examination import Candidate
from hpcps.roles.inbox import ModelInbox
from hpcps.roles.measuring import Measuring
from hpcps.roles.training import training_fields
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner, Progress


class Trainee(ABC):
    """A role that trains between two models; subclasses say what it does with the result.

    One round: adopt the model, begin to evaluate it if that is due (the chief only), take the local steps,
    `finish_steps`. The evaluation goes on beside the steps, so that nobody waits for it.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner) -> None:
        self.peer = peer
        self.round = 0
        self._run = run
        self._run_id = run_id
        self._learner = learner
        topology = run.topology
        self._cast = Cast(topology.servers, topology.validators, topology.workers)
        self._is_chief = peer == self._cast.chief
        self._course = Course(
            run.train.epochs,
            learner.steps_per_epoch,
            run.train.local_steps,
            inside_rounds=run.validation.evaluate == "validator_model",
        )
        self._cuts = cuts_of(run, learner.layout)
        self._inbox = ModelInbox(peer, learner.layout.size, self._cuts.shards)
        self._base: Vector = np.empty(learner.layout.size, np.float32)
        learner.copy_to(self._base)
        self._segments: list[Segment] = []
        self._seen: list[Progress] = []
        others = tuple(p for p in self._cast.readers() if p.role == "worker" and p != peer)
        validation = run.validation
        self._averages = bool(validation.batchnorm == "averaged" and learner.statistics.size)
        self._measuring = Measuring(
            learner, others, own=peer.role == "worker", reestimate=validation.batchnorm == "reestimated"
        )
        self._evaluated = 0
        self._restored = False
        self._flags = Flag.NONE

    @property
    def device(self) -> str:
        """Where its learner computes."""
        return self._learner.device

    @property
    def keeps_checkpoints(self) -> bool:
        """Server 0 does."""
        return False

    @abstractmethod
    def adopt(self) -> None:
        """Begin the round from the model in the inbox: set `_base` and the learner's parameters."""

    @abstractmethod
    def take_steps(self, steps: int) -> Progress:
        """Do the local steps of this role."""

    @abstractmethod
    def finish_steps(self) -> Iterator[Effect]:
        """Go on once the round's local steps are done."""

    @abstractmethod
    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Handle a message that only this role gets."""

    @abstractmethod
    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Handle bytes from `source` that are no message for this role."""

    def computed(self, event: Computed) -> Iterator[Effect]:
        """Handle the end of a computation that only this role asks for."""
        raise AssertionError(f"{self.peer} did not ask for {event.task}")

    @abstractmethod
    def take_model(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take what a server sends of the model."""

    def state(self) -> State:
        """Return what it takes to go on from the model that comes next; subclasses add what is theirs."""
        facts = {"round": self.round, "evaluated": self._evaluated}
        return State(facts=facts).having(learner=self._learner.state())

    def restore(self, state: State) -> None:
        """Go on from a checkpoint: wait for the model, as between two rounds."""
        self._learner.restore(state.part("learner"))
        self.round, self._evaluated = state.facts["round"], state.facts["evaluated"]
        self._restored = True

    def snapshot(self, moment: int) -> Iterator[Effect]:
        """Write this process's part of a checkpoint."""
        yield Settle()
        yield Snapshot(moment, self.state())

    def epochs_due(self) -> tuple[int, ...]:
        """The epochs that are to be evaluated on the model just adopted."""
        return self._course.epochs_before(self.round)

    def resumed(self) -> Iterator[Effect]:
        """Go on after a pause that only this role asks for."""
        raise AssertionError(f"{self.peer} did not ask for a pause")

    def idle(self) -> Iterator[Effect]:
        """Go on once no message waits, if only this role asked to know."""
        raise AssertionError(f"{self.peer} did not ask for an end of messages")

    def evaluation_fields(self) -> dict[str, object]:
        """What this role adds to the record of an evaluation."""
        return {}

    @property
    def steps_before_model(self) -> int:
        """Local steps taken before the first model comes (the artifact's quirk)."""
        return 1 if self._run.train.first_step == "overwritten" else 0

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        match event:
            case Start():
                if self._restored:
                    yield SetDeadline(self._inbox.waiting_for)
                elif self.steps_before_model:
                    yield Compute("train", partial(self.take_steps, 1), steps=1)
                else:
                    yield from self._present_initial_model()
            case Received(source, message):
                yield from self._receive(source, message)
            case Malformed(source, reason):
                if self._measuring.lacks(source):
                    yield rejection(source, reason)
                    yield from self._measuring.refuse(source)
                else:
                    yield from self.refuse(source, reason)
            case Computed("train", progress) if not self._segments:
                # The step before the first model.
                self._seen.append(progress)
                yield from self._present_initial_model()
            case Computed("train", progress, time):
                self._seen.append(progress)
                yield from self._after_segment(time)
            case Computed("adopt", _, time):
                yield from self._after_adopting(time)
            case Computed("evaluate", (candidate, evaluation)):
                yield from self._measuring.measured(candidate, evaluation)
            case Computed():
                yield from self.computed(event)
            case Resumed():
                yield from self.resumed()
            case Idle():
                yield from self.idle()
            case Snapped():
                yield report(self.peer, self._run_id, event)
                if self._flags & Flag.SUSPEND:
                    yield Finish(suspended=True)
            case StopRequested():
                raise AssertionError(f"{self.peer} keeps no checkpoints")

    def _present_initial_model(self) -> Iterator[Effect]:
        """Give the servers the initial weights, if this role does; then wait for the model."""
        if self._is_chief:
            if self.peer.role == "validator":
                # A step it took before this one is part of the model; a worker's is not, its first pull undoes it.
                self._learner.copy_to(self._base)
            note = {
                "layout": self._learner.layout.to_json(),
                "steps_per_epoch": self._learner.steps_per_epoch,
                "statistics": self._averages,
            }
            for server, (start, stop) in zip(
                self._cast.all_servers(), self._learner.layout.bounds(self._cast.servers), strict=True
            ):
                payload = self._base[start:stop]
                yield Send(
                    server,
                    Message(Kind.INIT, self.peer, self._run_id, 0, shard=server.index, note=note, payload=payload),
                )
        yield SetDeadline(self._inbox.waiting_for)

    def _receive(self, source: Peer, message: Message) -> Iterator[Effect]:
        reason = wrong_envelope(message, source, self._run_id)
        if reason:
            yield from self.refuse(source, reason)
        elif message.kind is Kind.MODEL and source.role == "server":
            yield from self.take_model(source, message)
        elif message.kind is Kind.STATISTICS and self._takes_statistics(source, message.round):
            yield from self._measuring.put(source, message)
        else:
            yield from self.take(source, message)

    def _takes_statistics(self, source: Peer, of: int) -> bool:
        return self._averages and self._is_chief and self._measuring.takes(source, of, self.round)

    def _after_adopting(self, time: float) -> Iterator[Effect]:
        self._flags = self._inbox.flags
        if self._flags & Flag.STATISTICS and self.peer.role == "worker" and not self._is_chief:
            statistics = self._learner.statistics
            yield Send(
                self._cast.chief, Message(Kind.STATISTICS, self.peer, self._run_id, self.round, payload=statistics)
            )
        epochs = self.epochs_due() if self._is_chief else ()
        if epochs:
            yield from self._measuring.when_over(partial(self._examine_adopted, epochs, time))
        else:
            yield from self._begin_steps()

    def _examine_adopted(self, epochs: tuple[int, ...], time: float) -> Iterator[Effect]:
        """Begin to measure the model that a round begins with, and go on."""
        own = self._run.validation.evaluate == "validator_model"
        candidate = self._candidate(epochs, time, None if own else self._inbox.model)
        average = bool(self._flags & Flag.STATISTICS)
        yield from self._measuring.begin(candidate, self._begin_steps, average=average)

    def _examine_own(self, epoch: int, time: float) -> Iterator[Effect]:
        """Begin to measure the chief's own network where an epoch ends inside a round, and go on."""
        yield from self._measuring.begin(self._candidate((epoch,), time), self._next_segment)

    def _candidate(self, epochs: tuple[int, ...], time: float, model: Vector | None = None) -> Candidate:
        self._evaluated = epochs[-1]
        return Candidate.of(self._learner, self.round, time, epochs, self.evaluation_fields, model)

    def _begin_steps(self) -> Iterator[Effect]:
        last = bool(self._inbox.flags & Flag.LAST)
        self._inbox.clear()
        if last:
            yield from self._measuring.when_over(self._finish)
            return
        whole = [Segment(self._course.stop(self.round))]
        self._segments = self._course.segments(self.round) if self._is_chief else whole
        yield from self._next_segment()

    def _finish(self) -> Iterator[Effect]:
        yield Finish()

    def _next_segment(self) -> Iterator[Effect]:
        steps = self._segments[0].stop - self._learner.steps_done
        yield Compute("train", partial(self.take_steps, steps), steps=steps)

    def _after_segment(self, time: float) -> Iterator[Effect]:
        segment = self._segments.pop(0)
        if segment.epoch is None:
            yield from self.finish_steps()
        else:
            yield from self._measuring.when_over(partial(self._examine_own, segment.epoch, time))

    def training_fields(self) -> dict[str, object]:
        """What the local steps since the last round saw, for the round's record."""
        seen, self._seen = self._seen, []
        return training_fields(self._learner, seen)

"""The validator of the asynchronous protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcps.layout import Vector
from hpcps.messages import Kind, Message, Peer
from hpcps.roles.acceptance import Acceptance
from hpcps.roles.asynchronous.entry import Entry
from hpcps.roles.asynchronous.judgement import Announcement, Judge, Verdict
from hpcps.roles.asynchronous.trainee import AsyncTrainee
from hpcps.roles.checks import not_finite, rejection, wrong_blocks
from hpcps.roles.events import Compute, Computed, Drain, Effect, Record, SetDeadline
from hpcps.roles.tally import Tally
from hpcps.rules import AsyncRule
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.training.learner import Learner, Progress


class Validator(AsyncTrainee):
    """Refreshes its model and its own update, judges some of its workers' updates by it, and refreshes again.

    What it accepts of an update goes straight to the servers, which answer the worker. Under a rule that does not
    score it only runs its batches, which feeds its BatchNorm statistics and counts its epochs.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner) -> None:
        super().__init__(peer, run, run_id, learner)
        rule = run.validation.rule
        assert isinstance(rule, AsyncRule), "the specification has been checked"
        self._judge = Judge(rule, learner.layout)
        self._share = self._cast.share(peer)
        self._reference: Vector | None = np.empty_like(self._base) if rule.scores else None
        self._queue: deque[Announcement] = deque()
        self._requests = dict.fromkeys(self._share, 0)
        self._left = 0
        self._busy = False
        self._participants: list[int] = []
        self._absent: list[int] = []
        self._malformed = 0
        self._tally, self._acceptance = Tally(), Acceptance()

    @property
    def steps_before_model(self) -> int:
        """The artifact's quirk concerns the validators that train."""
        return super().steps_before_model if self._reference is not None else 0

    def adopt(self) -> None:
        """Set x = c = the model."""
        super().adopt()
        self._inbox.read(self._base)
        self._learner.copy_from(self._base)

    def take_steps(self, steps: int) -> Progress:
        """Train under a rule that scores, else only run the batches."""
        if self._reference is None:
            return self._learner.observe(steps)
        return self._learner.train(steps, anchor=self._base, pull=self._run.asynchronous.proximal.validator)

    def finish_steps(self) -> Iterator[Effect]:
        """Begin to handle the workers' messages: a share of them, or those that wait now."""
        if self._reference is not None:
            self._learner.copy_to(self._reference)
            self._reference -= self._base
        if self._run.asynchronous.updates_per_refresh == "share":
            self._left = len(self._share)
            yield from self._handle_next()
        else:
            yield Drain()

    def idle(self) -> Iterator[Effect]:
        """Handle all messages that wait, at least one."""
        self._left = max(1, len(self._queue))
        yield from self._handle_next()

    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a worker's message; it is handled when its turn comes."""
        if message.kind not in (Kind.UPDATE, Kind.ABSENT) or source not in self._requests:
            yield from super().take(source, message)
            return
        expected = self._requests[source] + 1
        if message.kind is Kind.ABSENT and self._run.asynchronous.absent == "accumulate":
            self._queue.append(Announcement(source, message.round, absent=True, answered=False))
        elif message.round < expected:
            yield rejection(source, f"a second or late message (of request {message.round})")
            return
        elif message.round > expected:
            yield from self.refuse(source, f"it is of request {message.round}")
            return
        elif message.kind is Kind.UPDATE and (reason := wrong_blocks(message, self._learner.layout)):
            yield from self.refuse(source, reason)
            return
        else:
            self._requests[source] = expected
            self._queue.append(Announcement.of(message))
        yield from self._handle_next()

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count what is no message as an update with nothing in it; a server's cannot be done without."""
        if source.role == "server":
            raise self.unusable(source, reason)
        yield rejection(source, reason)
        self._malformed += 1
        owes = source in self._requests and not any(a.worker == source and a.answered for a in self._queue)
        if owes:
            self._requests[source] += 1
            self._queue.append(Announcement(source, self._requests[source]))
            yield from self._handle_next()

    def computed(self, event: Computed) -> Iterator[Effect]:
        """Send what was accepted of an update to the servers; if nothing was, its worker just gets the model."""
        verdict: Verdict = event.result
        update = verdict.announcement
        kind = Kind.APPLY if verdict.applied.any() else Kind.READ
        parts = self.cut(self._judge.update, verdict.applied) if kind is Kind.APPLY else None
        yield from self.submit(self._entry(kind, update.worker, update.request, update.base), parts)
        if verdict.rejected.any():
            yield not_finite(update.worker, verdict.rejected)
        self._participants.append(update.worker.index)
        self._tally.add(verdict.tally)
        self._busy = False
        yield from self._handled()

    def state(self) -> State:
        """Add the counts; updates that wait here are under way, and lost."""
        return super().state().having(acceptance=self._acceptance.state())

    def restore(self, state: State) -> None:
        """Take them back."""
        super().restore(state)
        self._acceptance.restore(state.part("acceptance"))

    def evaluation_fields(self) -> dict[str, object]:
        """Acceptance since the last evaluation and since the start."""
        return self._acceptance.fields()

    @property
    def _decay_epoch(self) -> int:
        """The epoch that alpha follows."""
        own = self._is_chief or self._run.asynchronous.epochs == "own"
        return self.epoch if own else self._log_epoch

    def _entry(self, kind: Kind, reader: Peer, request: int, base: int = 0) -> Entry:
        return Entry(kind, self.peer, self.next_number(), reader, request, base, self.epoch)

    def _handle_next(self) -> Iterator[Effect]:
        if not self._left or self._busy:
            return
        if not self._queue:
            yield SetDeadline(self._share)
            return
        announcement = self._queue.popleft()
        if announcement.absent:
            self._absent.append(announcement.worker.index)
            if announcement.answered:
                yield from self.submit(self._entry(Kind.READ, announcement.worker, announcement.request))
            yield from self._handled()
        else:
            self._busy = True
            alpha = self._run.asynchronous.alpha_in(self._decay_epoch)
            judge = partial(self._judge, announcement, alpha, self._reference)
            yield Compute("combine", judge, elements=self._base.size)

    def _handled(self) -> Iterator[Effect]:
        self._left -= 1
        yield from self._handle_next() if self._left else self._refresh()

    def _refresh(self) -> Iterator[Effect]:
        """Record what was handled, and ask for the model; the chief's last request ends the run."""
        self._acceptance.add(self._tally)
        yield Record("round", self.training_fields() | self._handled_fields())
        self._participants, self._absent, self._malformed, self._tally = [], [], 0, Tally()
        self.round += 1
        self._stopping = self._is_chief and self.round >= self._course.rounds
        kind = Kind.STOP if self._stopping else Kind.READ
        yield from self.submit(self._entry(kind, self.peer, self._request + 1))
        yield from self.ask()

    def _handled_fields(self) -> dict[str, object]:
        return {
            "participants": self._participants,
            "absent": self._absent,
            "version": self._version,
            "queued": len(self._queue),
            "received_pairs": self._tally.received,
            "sent_pairs": self._tally.sent,
            "skipped_pairs": self._tally.received - self._tally.sent,
            "accepted_pairs": self._tally.accepted,
            "accepted_sent_pairs": self._tally.accepted_sent,
            "turned_pairs": self._tally.turned,
            "rejected_blocks": self._tally.rejected,
            "malformed": self._malformed,
            "acceptance_rate": self._tally.acceptance_rate,
        }

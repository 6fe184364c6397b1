"""Queries of a policy of local steps: a role asks before each further step, and server 0 answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite

from hpcps.numerics.state import State
from hpcps.policies import Policy
from hpcps.policies.local_steps import StateServer
from hpcps.protocol.messages import Peer, StepsAnswer, StepsQuery
from hpcps.protocol.roster import SERVER_0, Roster
from hpcps.roles.checks import rejection
from hpcps.roles.evaluation import Continuation
from hpcps.roles.events import Compute, Drain, Effect, Record, Send, SetDeadline
from hpcps.spec.schema import Run

STATE_SERVER = SERVER_0
"""The role that answers queries, by its own clock."""


class QueriedSteps:
    """Takes local steps, reports them to server 0, and takes as many further ones as the answers allow.

    It takes the first step of a round without asking. A step is never interrupted, and never taken back.

    Attributes:
        sources: the roles whose answers it takes.
        kind: the class of their messages.
        steps: the local steps of the round so far.
    """

    sources, kind = (STATE_SERVER,), StepsAnswer

    def __init__(
        self,
        peer: Peer,
        policy: Policy,
        train: Callable[[int], Compute],
        after_steps: Continuation,
        duration_factor: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Prepare the local steps of one role.

        Args:
            peer: the role.
            policy: the policy.
            train: returns the computation of so many steps.
            after_steps: goes on once the local steps of a round are done.
            duration_factor: returns the factor on the seconds per step in reports; that of an honest role is 1.
        """
        self._duration_factor = duration_factor
        self._peer = peer
        self._policy = policy
        self._train = train
        self._after_steps = after_steps
        self._round = -1
        self.steps = 0
        self._seconds = 0.0
        self._allowed = 0
        self._waiting = self._over = False

    def begin(self, round: int) -> Iterator[Effect]:
        """Begin a round."""
        self._round, self.steps, self._seconds = round, 0, 0.0
        self._allowed, self._waiting, self._over = 1, False, False
        yield self._query(0)
        yield self._train(1)

    def stepped(self, steps: int, seconds: float) -> Iterator[Effect]:
        """Note steps that took so many seconds in all; ask whether to go on."""
        self.steps += steps
        self._seconds += seconds
        yield self._query(self.steps, self._duration_factor() * seconds / steps)
        if self._over or self._policy.waits or self.steps >= self._allowed:
            yield from self.go_on()
        else:  # an answer that has come may allow other steps
            yield Drain()

    def take(self, answer: StepsAnswer) -> Iterator[Effect]:
        """Take the answer to a query; one that comes after the steps of its round has no effect."""
        if answer.round != self._round:
            return
        self._over = self._over or answer.steps <= 0
        self._allowed = answer.k + answer.steps
        if self._waiting:
            yield from self.go_on()

    def go_on(self) -> Iterator[Effect]:
        """Take the next steps, or end the steps of the round, or wait for an answer: as the answers so far allow."""
        self._waiting = False
        further = self._allowed - self.steps
        if self._over:
            self._round = -1
            yield from self._after_steps()
        elif further > 0:
            yield self._train(further if self._policy.waits else 1)
        else:
            self._waiting = True
            yield SetDeadline((STATE_SERVER,))

    def _query(self, k: int, c: float | None = None) -> Send:
        return Send(STATE_SERVER, StepsQuery(round=self._round, k=k, c=c))

    def fields(self) -> dict[str, object]:
        """Return the fields of the record of the round."""
        return {"local_steps": self.steps, "step_seconds": self._seconds / self.steps if self.steps else None}


_PERIOD = 1.0
"""The least number of seconds between two records of the progress."""


class QueryAnswers:
    """Gives the state server the queries of the roles, and counts epochs by the steps that it has counted.

    Attributes:
        roles: the roles that it answers.
    """

    def __init__(self, run: Run, policy: Policy) -> None:
        self.roles = Roster.of(run).governed(run)
        self._epochs = run.train.epochs
        self._most = policy.most
        self._workers = run.topology.workers
        self._row = {role: row for row, role in enumerate(self.roles)}
        self._states = StateServer(policy, len(self.roles), self._workers)
        self._steps_before = 0
        self._recorded: float | None = None

    def progress(self, steps_per_epoch: int) -> float:
        """Return the epochs of the run so far, as a fraction."""
        return self._states.steps / (self._workers * steps_per_epoch)

    def ended(self, steps_per_epoch: int) -> int:
        """Return the number of epochs that have ended."""
        return min(self._epochs, self._states.steps // (self._workers * steps_per_epoch))

    def query(self, source: Peer, query: StepsQuery, round: int, now: float) -> Iterator[Effect]:
        """Take a query and answer it; one that cannot be used is recorded, and its sender told to send its update.

        Args:
            source: its sender.
            query: the query.
            round: the round of the server.
            now: when it came, on the clock of this process.
        """
        k, seconds = query.k, query.c or 0.0
        if not 0 <= k <= self._most:
            yield from self.excuse(source, f"its k is {k!r}", round)
        elif not isfinite(seconds) or seconds < 0:
            yield from self.excuse(source, f"its c is {seconds!r}", round)
        elif query.round > round:
            yield from self.excuse(source, f"it is of round {query.round}", query.round)
        elif k == 0:
            self._states.begin(self._row[source], query.round, now)
        else:
            further = self._states.report(self._row[source], query.round, k, seconds, now)
            yield self._answer(source, query.round, k, further)
        if self._recorded is None or now - self._recorded >= _PERIOD:
            self._recorded = now
            yield Record("local_steps", self._progress())

    def steps_of(self, source: Peer) -> int:
        """Return the local steps of a role in this round, as far as it was allowed to take them."""
        return self._states.taken[self._row[source]]

    def takes_steps(self, source: Peer) -> bool:
        """Return whether a role has not been told to send its update, so that its next message is a query."""
        return source in self._row and not self._states.progress[self._row[source]].ready

    def excuse(self, source: Peer, reason: str, round: int) -> Iterator[Effect]:
        """Record a bad message in place of a query, and tell its sender to send its update."""
        yield rejection(source, reason)
        yield self._answer(source, round, 0, self._states.excuse(self._row[source]))

    def _answer(self, to: Peer, round: int, k: int, steps: int) -> Send:
        return Send(to, StepsAnswer(round=round, k=k, steps=steps))

    def round_fields(self, steps_per_epoch: int) -> dict[str, object]:
        """Return the fields of the record of a round."""
        steps, self._steps_before = self._states.steps - self._steps_before, self._states.steps
        return {"steps": steps, "epoch": self.progress(steps_per_epoch)}

    def _progress(self) -> dict[str, object]:
        progress = self._states.progress
        return {
            "who": [str(role) for role in self.roles],
            "k": [role.k for role in progress],
            "c": [role.c for role in progress],
            "te": [role.te if role.begun else None for role in progress],
            "ready": [role.ready for role in progress],
        }

    def state(self) -> State:
        """Return what a checkpoint keeps."""
        return self._states.state()

    def restore(self, state: State) -> None:
        """Restore it."""
        self._states.restore(state)
        self._steps_before = self._states.steps

"""The local steps of a round, as many as the policy of local steps decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.errors import RunError
from hpcps.policies import Policy
from hpcps.protocol.messages import Kind, Message, Peer
from hpcps.roles.checkpointing import KEEPER
from hpcps.roles.evaluations import Continuation
from hpcps.roles.events import Compute, Drain, Effect, Send, SetDeadline

STATE_SERVER = KEEPER
"""The role that answers queries, by its own clock."""


class QueriedSteps:
    """Takes local steps, reports them to server 0, and takes as many further ones as the answers allow.

    It takes the first step of a round without asking. A step is never interrupted, and never taken back.

    Attributes:
        steps: the local steps of the round so far.
    """

    def __init__(
        self, peer: Peer, run_id: str, policy: Policy, train: Callable[[int], Compute], after_steps: Continuation
    ) -> None:
        """Prepare the local steps of one role.

        Args:
            peer: the role.
            run_id: the run.
            policy: the policy.
            train: returns the computation of so many steps.
            after_steps: goes on once the local steps of a round are done.
        """
        self._peer = peer
        self._run_id = run_id
        self._policy = policy
        self._train = train
        self._after_steps = after_steps
        self._round = -1
        self.steps = 0
        self._seconds = 0.0
        self._allowed = 0
        self._waiting = self._told = False

    def begin(self, round: int) -> Iterator[Effect]:
        """Begin a round."""
        self._round, self.steps, self._seconds = round, 0, 0.0
        self._allowed, self._waiting, self._told = 1, False, False
        yield self._query({"k": 0})
        yield self._train(1)

    def stepped(self, steps: int, seconds: float) -> Iterator[Effect]:
        """Note steps that took so many seconds in all; ask whether to go on."""
        self.steps += steps
        self._seconds += seconds
        yield self._query({"k": self.steps, "c": seconds / steps})
        if self._told or self._policy.waits or self.steps >= self._allowed:
            yield from self.go_on()
        else:  # an answer that has come may allow other steps
            yield Drain()

    def take(self, message: Message) -> Iterator[Effect]:
        """Take the answer to a query; one that comes after the steps of its round has no effect.

        Raises:
            RunError: it does not say how many steps to take.
        """
        k, steps = message.note.get("k"), message.note.get("steps")
        if not (isinstance(k, int) and isinstance(steps, int)):
            what = f"what {STATE_SERVER} sent in round {message.round}: it does not say how many steps to take"
            raise RunError(f"{self._peer} cannot use {what}")
        if message.round != self._round:
            return
        self._told = self._told or steps <= 0
        self._allowed = k + steps
        if self._waiting:
            yield from self.go_on()

    def go_on(self) -> Iterator[Effect]:
        """Take the next steps, or end the steps of the round, or wait for an answer: as the answers so far allow."""
        self._waiting = False
        further = self._allowed - self.steps
        if self._told:
            self._round = -1
            yield from self._after_steps()
        elif further > 0:
            yield self._train(further if self._policy.waits else 1)
        else:
            self._waiting = True
            yield SetDeadline((STATE_SERVER,))

    def _query(self, note: dict[str, float]) -> Send:
        return Send(STATE_SERVER, Message(Kind.QUERY, self._peer, self._run_id, self._round, note=note))

    def fields(self) -> dict[str, object]:
        """Return the fields of the record of the round."""
        return {"local_steps": self.steps, "step_seconds": self._seconds / self.steps if self.steps else None}

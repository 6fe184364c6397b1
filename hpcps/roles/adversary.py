"""The adversary, as far as it does not depend on the mode of training, and how a worker shows its updates to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcps.aggregation.attack_group import AttackGroup
from hpcps.errors import RunError
from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Absent, Copy, CraftedUpdate, Description, Flag, Message, Peer
from hpcps.protocol.received import Malformed, Received
from hpcps.protocol.roster import ADVERSARY, Roster
from hpcps.roles.checkpointing import report
from hpcps.roles.checks import rejection, unwanted
from hpcps.roles.events import Compute, Computed, Effect, Event, Finish, Send, SetDeadline, Snapped, Start
from hpcps.roles.knowledge import Knowledge
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.update.packer import Packed, Packer
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Crafted:
    """The result of the attack for some Byzantine workers of one combiner.

    Attributes:
        group: the workers of the combiner.
        round: the round or cycle.
        asked: the workers to answer.
        payloads: what each of them sends instead of its update; none for a worker that sends its own.
    """

    group: AttackGroup
    round: int
    asked: tuple[int, ...]
    payloads: dict[int, Vector]


class Adversary(MessagingRole):
    """Sees a copy of every update before it is sent, and decides what the Byzantine workers send instead.

    Only this role knows who is Byzantine. It gets the copies, and from the coordinator the layout of the model and the
    schedule; it gets no model, no combined update and nothing of a validator. Servers and validators get what they
    would get without it.
    """

    def __init__(self, peer: Peer, run: Run, resources: Resources = ALONE, weights: UpdateWeights = ALIKE) -> None:
        super().__init__(peer, run)
        self.round = 0
        self._weights = weights
        self._resources = resources
        roster = Roster.of(run)
        self._coordinator = roster.coordinator
        self._workers = roster.all_workers()
        self._known: Knowledge | None = None
        # Messages that come before the layout; the payload of a copy does not change before it is answered.
        self._early: list[tuple[Peer, Message]] = []
        self._flags = Flag.NONE

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Start():
                yield SetDeadline(self._waiting_for)
            case Received(source, message) if self._takes(source, message):
                yield from self._receive(source, message)
                yield from self._go_on()
            case Received() | Malformed():
                yield rejection(event.source, unwanted(event, "the adversary"))
                yield from self._excuse(event.source)
                yield from self._go_on()
            case Computed("craft", crafted):
                for worker in crafted.asked:
                    yield self._answer(worker, crafted.round, crafted.group, crafted.payloads.get(worker))
                yield from self._answered(crafted)
                yield from self._go_on()
            case Snapped():
                yield report(event)
                yield Finish(suspended=True) if Flag.SUSPEND in self._flags else SetDeadline(self._waiting_for)
                self._flags = Flag.NONE

    @property
    @abstractmethod
    def _waiting_for(self) -> tuple[Peer, ...]:
        """The roles whose messages this role waits for."""

    def _takes(self, source: Peer, message: Message) -> bool:
        """Return whether a message is one that this role gets from its source."""
        if isinstance(message, Description):
            return source == self._coordinator and self._known is None
        return isinstance(message, (Copy, Absent)) and source in self._workers

    def _receive(self, source: Peer, message: Message) -> Iterator[Effect]:
        if isinstance(message, Description):
            known = self._know(message.layout, message.steps_per_epoch)
            for early in self._early:
                yield from self._take(*early, known)
            self._early.clear()
        elif self._known is None:
            self._early.append((source, message))
        else:
            yield from self._take(source, message, self._known)

    def _know(self, layout: list[list[Any]], steps_per_epoch: int) -> Knowledge:
        """Learn the model's layout and the schedule of the run; see `InitialModel`."""
        self._known = Knowledge(self.peer, self._run, layout, steps_per_epoch, self._resources, self._weights)
        return self._known

    @abstractmethod
    def _take(self, source: Peer, message: Message, known: Knowledge) -> Iterator[Effect]:
        """Take a worker's copy, or that it is absent; answer the worker at once if its update is not replaced."""

    @abstractmethod
    def _excuse(self, source: Peer) -> Iterator[Effect]:
        """Let a worker whose message cannot be used send its update as it is."""

    @abstractmethod
    def _go_on(self) -> Iterator[Effect]:
        """Begin to compute the next attack, if all that it needs has come; else wait."""

    @abstractmethod
    def _answered(self, crafted: Crafted) -> Iterator[Effect]:
        """Note that the workers of an attack are answered."""

    def _begin(self, group: AttackGroup, round: int, asked: tuple[int, ...]) -> Compute:
        """Return the computation of what the given Byzantine workers send."""
        work = partial(self._craft, group, round, asked)
        return Compute("craft", work, elements=len(group.present) * group.layout.size)

    @staticmethod
    def _craft(group: AttackGroup, round: int, asked: tuple[int, ...]) -> Crafted:
        payloads = group.craft(round, asked)
        group.follow(payloads)
        return Crafted(group, round, asked, payloads)

    def _answer(self, worker: int, round: int, group: AttackGroup | None = None, payload: Vector | None = None) -> Send:
        """Return the answer to a worker's copy: what it sends instead, or that it sends its update as it is."""
        mask = group.mask(worker) if group is not None and payload is not None else None
        return Send(Peer("worker", worker), CraftedUpdate(round=round, mask=mask, values=payload))

    @abstractmethod
    def state(self) -> State:
        """Return what a checkpoint keeps."""

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        known = state.part("known")
        self._know(known.facts["layout"], known.facts["steps_per_epoch"]).restore(known)
        self.round = state.facts["round"]


class AdversaryClient:
    """Sends copies of one worker's updates to the adversary, if the run has one. The worker does not know who attacks.

    Attributes:
        waiting: whether the worker waits for an answer.
    """

    def __init__(self, peer: Peer, run: Run, packer: Packer) -> None:
        self._peer = peer
        self._packer = packer
        self._there = Roster.of(run).adversary
        self._shown: tuple[Packed, int] | None = None

    @property
    def waiting(self) -> bool:
        """Whether the worker waits for an answer."""
        return self._shown is not None

    def show(
        self, packed: Packed, round: int, flags: Flag = Flag.NONE, *, epoch: int | None = None
    ) -> Iterator[Effect]:
        """Send a copy of an update and wait for the answer; an absent worker says so, and waits for none.

        Args:
            packed: the update that was packed last.
            round: the round or cycle.
            flags: those that the worker sends with the update.
            epoch: the epochs of the run that are over, as far as the worker knows; None: the adversary knows.
        """
        if not self._there:
            return
        if not packed.parts:
            yield Send(ADVERSARY, Absent(round=round, flags=flags))
            return
        self._shown = packed, round
        yield Send(ADVERSARY, Copy(round=round, flags=flags, mask=packed.mask, epoch=epoch, values=packed.payload))
        yield SetDeadline((ADVERSARY,))

    def answers(self, event: Received | Malformed) -> bool:
        """Return whether a message is the answer that the worker waits for, or came in place of it; no earlier one."""
        if self._shown is None or event.source != ADVERSARY:
            return False
        if isinstance(event, Malformed) or not isinstance(event.message, CraftedUpdate):
            return True
        return event.message.mask is None or event.message.round >= self._shown[1]

    def take(self, event: Received | Malformed) -> Packed:
        """Return the update to send: the one that was shown, or with the values that the adversary gives it.

        Raises:
            RunError: the answer cannot be used.
        """
        assert self._shown is not None, "it waits for an answer"
        packed, round = self._shown
        if (reason := _wrong(event, packed, round)) is not None:
            raise RunError(f"{self._peer} cannot use what {ADVERSARY} sent in round {round}: {reason}")
        assert isinstance(event, Received)
        assert isinstance(event.message, CraftedUpdate)
        self._shown = None
        values = event.message.values
        return packed if event.message.mask is None or values is None else self._packer.crafted(packed, values)


def _wrong(event: Received | Malformed, packed: Packed, round: int) -> str | None:
    """Return what is wrong with an answer to a copy; None if nothing is."""
    if isinstance(event, Malformed):
        return event.reason
    message = event.message
    if not isinstance(message, CraftedUpdate):
        return f"a worker gets no {message.kind} from {ADVERSARY}"
    if message.mask is None:  # whatever the round: the adversary does not know it if it could not read the copy
        return None
    if message.round != round:
        return f"it is of round {message.round}"
    if not np.array_equal(message.mask, packed.mask):
        return "it has other blocks than the update"
    got, want = 0 if message.values is None else message.values.size, packed.payload.size
    return None if got == want else f"its payload has {got} elements instead of {want}"

"""The adversary of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcps.aggregation.attack_group import AttackGroup
from hpcps.aggregation.encoding import wrong_blocks
from hpcps.numerics.state import State
from hpcps.protocol.messages import Absent, Copy, Flag, Message, Peer, RunEnds
from hpcps.protocol.roster import SERVER_0
from hpcps.protocol.schedule import OpenSchedule
from hpcps.roles.adversary import Adversary, Crafted
from hpcps.roles.checkpointing import CHECKPOINT_FLAGS
from hpcps.roles.checks import rejection
from hpcps.roles.events import Effect, Finish, Record, SetDeadline, Snapshot
from hpcps.roles.knowledge import Knowledge
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.schema import Run


class SyncAdversary(Adversary):
    """Answers the Byzantine workers of a combiner when all its workers have shown their updates or are absent.

    It answers an honest worker at once. A round ends when all are answered. A worker may show its update of the next
    round earlier, if another worker's message about its absence is slow: nobody but the adversary waits for that one.
    """

    def __init__(self, peer: Peer, run: Run, resources: Resources = ALONE, weights: UpdateWeights = ALIKE) -> None:
        super().__init__(peer, run, resources, weights)
        self._owed: set[Peer] = set(self._workers)
        self._unanswered: list[AttackGroup] = []
        self._shown: list[int] = []
        self._replaced: list[int] = []
        self._ahead: dict[Peer, Copy | Absent] = {}

    @property
    def _waiting_for(self) -> tuple[Peer, ...]:
        return tuple(sorted(self._owed)) if self._known else (self._coordinator,)

    def _know(self, layout: list[list[Any]], steps_per_epoch: int) -> Knowledge:
        known = super()._know(layout, steps_per_epoch)
        self._unanswered = list(known.groups)
        return known

    def _takes(self, source: Peer, message: Message) -> bool:
        stops = isinstance(message, RunEnds) and source == SERVER_0 and self._run.train.policy is not None
        return stops or super()._takes(source, message)

    def _take(self, source: Peer, message: Message, known: Knowledge) -> Iterator[Effect]:
        if isinstance(message, RunEnds) and isinstance(known.schedule, OpenSchedule):
            known.schedule.learn(message.round, self._run.train.epochs)
            if self.round == message.round:
                yield Finish()
        if not isinstance(message, (Copy, Absent)):
            return
        if source not in self._owed and message.round == self.round + 1 and source not in self._ahead:
            self._ahead[source] = message
        elif source not in self._owed or message.round != self.round:
            yield rejection(source, f"a second, late or early message (of round {message.round})")
        elif isinstance(message, Copy) and (reason := wrong_blocks(message.mask, message.values, known.layout)):
            yield rejection(source, reason)
            yield from self._excuse(source)
        else:
            self._flags |= message.flags & CHECKPOINT_FLAGS
            self._owed.discard(source)
            if isinstance(message, Copy):
                known.put(source.index, message)
                if isinstance(known.schedule, OpenSchedule) and message.epoch is not None:
                    known.schedule.learn(self.round, message.epoch)
                epoch = known.schedule.ended(self.round)
                self._shown.append(source.index)
                if not known.attacks(source.index, self.round, epoch):
                    yield self._answer(source.index, self.round)

    def _excuse(self, source: Peer) -> Iterator[Effect]:
        if source in self._owed:
            self._owed.discard(source)
            yield self._answer(source.index, self.round)

    def _go_on(self) -> Iterator[Effect]:
        known, owed = self._known, {peer.index for peer in self._owed}
        group = next((group for group in self._unanswered if owed.isdisjoint(group.workers)), None)
        if known is None or group is None:
            yield SetDeadline(self._waiting_for)
            return
        self._unanswered.remove(group)
        epoch = known.schedule.ended(self.round)
        yield self._begin(group, self.round, tuple(k for k in group.present if known.attacks(k, self.round, epoch)))

    def _answered(self, crafted: Crafted) -> Iterator[Effect]:
        crafted.group.clear()
        self._replaced += crafted.payloads
        if not self._unanswered:
            yield from self._end_round()

    def _end_round(self) -> Iterator[Effect]:
        """Record the round, all of whose workers are answered; end with the last one."""
        known = self._known
        assert known is not None, "it has the layout"
        yield Record("round", {"shown": sorted(self._shown), "replaced": sorted(self._replaced)})
        self._shown, self._replaced = [], []
        self._owed, self._unanswered = set(self._workers), list(known.groups)
        self.round += 1
        if Flag.SNAPSHOT in self._flags:
            yield Snapshot(self.round, self.state())
        elif known.schedule.over(self.round):
            yield Finish()
        ahead, self._ahead = self._ahead, {}
        for source, message in ahead.items():
            yield from self._take(source, message, known)

    def state(self) -> State:
        """Return what the adversary keeps from one round to the next."""
        assert self._known is not None, "there is no checkpoint before the first round"
        return State(facts={"round": self.round}).having(known=self._known.state())

"""The adversary of the asynchronous protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hpcps.aggregation.encoding import wrong_blocks
from hpcps.numerics.state import State
from hpcps.protocol.messages import Copy, Message, Peer, RunEnds, WriteCheckpoint
from hpcps.protocol.roster import SERVER_0
from hpcps.roles.adversary import Adversary, Crafted
from hpcps.roles.checks import rejection
from hpcps.roles.events import Effect, Finish, Record, SetDeadline, Snapshot
from hpcps.roles.knowledge import Knowledge
from hpcps.roles.resources import ALONE, Resources
from hpcps.spec.schema import Run


class AsyncAdversary(Adversary):
    """Answers every worker at once: the attack gets the last update that each worker of the combiner has shown.

    Before an honest worker has shown one, a Byzantine worker sends its own update. A round is an answer to a copy.
    """

    def __init__(self, peer: Peer, run: Run, resources: Resources = ALONE) -> None:
        super().__init__(peer, run, resources)
        # Byzantine workers that wait for an answer, and their cycles.
        self._asking: deque[tuple[int, int]] = deque()

    @property
    def _waiting_for(self) -> tuple[Peer, ...]:
        return self._workers if self._known else (self._coordinator,)

    def _takes(self, source: Peer, message: Message) -> bool:
        ordered = source == SERVER_0 and isinstance(message, (WriteCheckpoint, RunEnds))
        return ordered or super()._takes(source, message)

    def _take(self, source: Peer, message: Message, known: Knowledge) -> Iterator[Effect]:
        if isinstance(message, RunEnds):
            yield Finish()
        elif isinstance(message, WriteCheckpoint):
            self._flags = message.flags
            yield Snapshot(message.position, self.state())
        elif isinstance(message, Copy) and (reason := wrong_blocks(message.mask, message.values, known.layout)):
            yield rejection(source, reason)
            yield from self._excuse(source)
        elif isinstance(message, Copy):
            known.put(source.index, message)
            if known.attacks(source.index, message.round, message.epoch or 0):
                self._asking.append((source.index, message.round))
            else:
                yield self._answer(source.index, message.round)
                yield from self._record(source.index, message.round, replaced=False)

    def _excuse(self, source: Peer) -> Iterator[Effect]:
        if source in self._workers:
            yield self._answer(source.index, 0)  # the cycle is not known; the worker accepts any

    def _go_on(self) -> Iterator[Effect]:
        if self._known is None or not self._asking:
            yield SetDeadline(self._waiting_for)
            return
        worker, cycle = self._asking.popleft()
        yield self._begin(self._known.group_of(worker), cycle, (worker,))

    def _answered(self, crafted: Crafted) -> Iterator[Effect]:
        (worker,) = crafted.asked
        yield from self._record(worker, crafted.round, replaced=bool(crafted.payloads))

    def _record(self, worker: int, cycle: int, *, replaced: bool) -> Iterator[Effect]:
        yield Record("round", {"shown": [worker], "cycle": cycle, "replaced": [worker] * replaced})
        self.round += 1

    def state(self) -> State:
        """Return what the adversary keeps, with the updates that it knows."""
        assert self._known is not None, "messages that come before the layout wait"
        parts = {"known": self._known.state(), "updates": self._known.updates_state()}
        return State(facts={"round": self.round}).having(**parts)

    def restore(self, state: State) -> None:
        super().restore(state)
        assert self._known is not None
        self._known.restore_updates(state.part("updates"))

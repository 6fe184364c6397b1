"""The driver of a server that has a standby: nothing leaves it before the standby has got what it follows from."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hpcps.execution.account import Account
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.standby.image import Image
from hpcps.execution.standby.journal import FINISHED, SNAPPED, WAITING
from hpcps.execution.standby.post import Place
from hpcps.numerics.state import State
from hpcps.protocol.envelope import Delivered, Envelope, Envelopes
from hpcps.protocol.messages import CopyOfMessage, CopyRequest, Followed, Journal, Message, Peer, StandbyBegins
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import standby_of
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordLines, RecordWriter
from hpcps.roles.events import Effect, Event, Finish, Role, Save, SaveEvaluation, Seal, Send, Snapped, Snapshot
from hpcps.transport.base import Arrived, KeptMessage, MessageTransport, StandbyTransport, Traffic


class HeldRecord(RecordWriter):
    """A record whose lines wait until they may leave the process.

    Attributes:
        put: gets what appends a line; None: it is appended at once.
    """

    put: Callable[[Callable[[], None]], None] | None = None

    def append(self, line: bytes) -> None:
        if self.put is None:
            super().append(line)
        else:
            self.put(partial(super().append, line))


class _Held(NamedTuple):
    """What shall leave the process.

    Attributes:
        entries: the number of entries of the journal from which it follows.
        action: lets it leave.
        is_line: whether it is a line of the record.
    """

    entries: int
    action: Callable[[], None]
    is_line: bool


class PrimaryDriver(RoleDriver):
    """Drives a server that has a standby, or waits for one."""

    def __init__(
        self, role: Role, transport: MessageTransport, record: RecordLines, directory: RunDirectory, **options: Any
    ) -> None:
        """Take a role to drive; see `RoleDriver`."""
        super().__init__(role, transport, record, directory, **{**options, "ordered": True})
        self._standby: Peer | None = standby_of(role.peer)
        self._joining: Replaced | None = None
        self._delivering = False  # a new standby waits until the others have got what they were sent
        self._own = Envelopes(role.peer, role.run_id)
        # Bytes count when the role sends and gets messages, as without a standby.
        self._traffic = Traffic(scale=transport.traffic.scale)
        self._account = Account(record, self._traffic, self._stopwatch, [])
        self._account.noted = self._note
        self._names: list[str] = []
        self._count = self._followed = self._least = 0
        self._held: deque[_Held] = deque()
        self._stalled = self._releasing = False
        # Messages that the standby may lack, by the numbers of their entries; and what came during a stall.
        self._kept: deque[tuple[int, Received | Malformed]] = deque()
        self._early: deque[Arrived] = deque()
        # The place of the next message of each role, and the number of messages to each.
        self._places: dict[Peer, Place] = {}
        self._known_lost: set[Peer] = set()
        self._sent: Counter[Peer] = Counter()
        if isinstance(record, HeldRecord):
            record.put = self._release_line

    def take(self) -> Event | None:
        self._transport.confirm()  # if it was stopped, the standby may have its place
        if self._stalled:
            self._gather()
        if self._stalled or self.finished or not self._goes_on():
            return None
        event = super().take()
        if event is None and self._may_begin:  # the standby has just come, and more after it
            event = super().take() if self._goes_on() else None
        return event

    def _goes_on(self) -> bool:
        """Give a new standby the state, if there is one; return whether the role may go on.

        It waits until the others have got what it has sent: the new standby could not send that again.
        """
        self._delivering = False
        if self._may_begin:
            kept = self._transport.kept if isinstance(self._transport, StandbyTransport) else {}
            if kept is None:
                self._delivering = True
                self._gather()
            else:
                self._begin_journal(kept)
        return not self._delivering

    @property
    def _may_begin(self) -> bool:
        """Whether a new standby is there, and the server between two events."""
        busy = self._queue or self._held or self._draining
        return self._joining is not None and self._acts and not busy

    @property
    def _acts(self) -> bool:
        """Whether this process is the server."""
        return True

    @property
    def resumes(self) -> float | None:
        return None if self._stalled or self._delivering else super().resumes

    def give_up(self, reason: str, error: BaseException | None = None) -> None:
        for held in self._held:
            if held.is_line:
                self._releasing = True
                held.action()
        self._held.clear()
        self._releasing = True
        super().give_up(reason, error)

    def handle(self, event: Event) -> Iterator[Effect]:
        yield from super().handle(event)
        self._tell()

    def record_wait(self) -> None:
        self._note(WAITING)
        super().record_wait()
        self._tell()

    def _react(self, event: Event) -> Iterator[Effect]:
        if isinstance(event, (Received, Malformed)):
            if self._standby is not None:
                self._kept.append((self._count, event))
            incarnation, number = self._places.get(event.source, (0, 0))
            self._places[event.source] = incarnation, number + 1
        if isinstance(event, Received):
            envelope = Envelope(event.source, "", event.message)
            self._traffic.received += self._traffic.size(envelope.header, envelope.payload_bytes)
        if isinstance(event, Lost):
            self._known_lost.add(event.peer)
        if isinstance(event, Replaced):
            self._places[event.peer] = event.incarnation, 0
            self._known_lost.discard(event.peer)
        yield from super()._react(event)

    @property
    def _due(self) -> Mapping[Peer, Place]:
        """The place of the next message of each role."""
        return self._places

    def _receive(self) -> Arrived | None:
        arrival = self._early.popleft() if self._early else self._from_others()
        return None if self._is_new_standby(arrival) else arrival

    def _is_new_standby(self, arrival: Arrived | None) -> bool:
        """Note a new standby. It comes after all messages that are not sent to it, too."""
        if not isinstance(arrival, Replaced) or arrival.peer != standby_of(self._role.peer):
            return False
        self._joining = arrival
        return True

    def _forget_standby(self) -> None:
        """Do not wait for a new standby, which is lost."""
        self._joining = None
        self._early = deque(each for each in self._early if not self._is_new_standby(each))
        self._joining = None

    def _gather(self) -> None:
        """Take in what has come during a stall."""
        while (arrival := self._from_others()) is not None:
            self._early.append(arrival)

    def _from_others(self) -> Arrived | None:
        """Return what has come from others than the standby."""
        standby = standby_of(self._role.peer)
        while (arrival := self._transport.receive()) is not None:
            if isinstance(arrival, Lost) and arrival.peer == standby:
                self._forget_standby()
                self._go_on_alone(arrival)
            elif isinstance(arrival, Delivered) and arrival.source == standby:
                self._listen_to_standby(arrival.envelope.message)
            else:
                return arrival
        return None

    def _listen_to_standby(self, message: Message) -> None:
        if self._standby is None:
            return
        if isinstance(message, Followed):
            self._followed = max(self._followed, message.count)
            while self._kept and self._kept[0][0] < self._followed:
                self._kept.popleft()
            self._let_go()
        elif isinstance(message, CopyRequest):
            event = next((event for entry, event in self._kept if entry == message.entry), None)
            if event is not None:
                self._send(self._copy(message.entry, event))

    def _copy(self, entry: int, event: Received | Malformed) -> CopyOfMessage:
        if isinstance(event, Malformed):
            return CopyOfMessage(entry=entry, header="", reason=event.reason)
        envelope = Envelope(event.source, self._role.run_id, event.message)
        return CopyOfMessage(entry=entry, header=envelope.header.hex(), values=envelope.payload)

    def _begin_journal(self, kept: Mapping[Peer, Sequence[KeptMessage]]) -> None:
        """Give a new standby the state, with what is kept for others, and all further events."""
        joined, self._joining = self._joining, None
        assert joined is not None, "there is one"
        self._record.write("standby_began", process=str(joined.peer), incarnation=joined.incarnation)
        image = Image(
            self._role, self._account.kept(), self._record.lines_of_attempt or 0, dict(self._due),
            frozenset(self._known_lost), Counter(self._sent), kept, self._alarms.left, self.waiting_for, self.limited,
        )  # fmt: skip
        file = f"{self._role.peer}-{joined.incarnation}.image"
        image.write(self._directory.images / file)
        self._standby = joined.peer
        self._count = self._followed = self._least = 0
        self._send(StandbyBegins(file=file))

    def _note(self, name: str) -> None:
        if self._standby is not None:
            self._names.append(name)
            self._count += 1

    def _tell(self) -> None:
        """Tell the standby the events since the last time."""
        if self._standby is not None and self._names:
            names, self._names = self._names, []
            self._send(Journal(entries=tuple(names), lines=self._record.lines_of_attempt or 0))

    def _send(self, message: Message) -> None:
        assert self._standby is not None, "there is a standby"
        self._transport.send(self._standby, self._own.around(message))

    def _release(self, action: Callable[[], None], *, is_line: bool = False) -> None:
        """Let something leave the process once the standby has got what it follows from."""
        if self._standby is None or self._releasing:
            action()
        else:
            self._held.append(_Held(self._count, action, is_line))
            self._let_go()

    def _release_line(self, append: Callable[[], None]) -> None:
        self._release(append, is_line=True)

    def _let_go(self) -> None:
        if self._releasing:
            return
        self._releasing = True
        while self._held and (self._standby is None or max(self._held[0].entries, self._least) <= self._followed):
            self._held.popleft().action()
        self._releasing = False
        self._stalled = self._stalled and bool(self._held)

    def _go_on_alone(self, lost: Lost) -> None:
        """Go on without the standby, which is lost."""
        if self._standby is None:
            return
        self._releasing = True  # the line comes first: the last one that is held may end the record
        self._record.write("standby_lost", process=str(lost.peer), cause=lost.cause)
        self._releasing, self._standby = False, None
        self._names.clear()
        self._kept.clear()
        self._let_go()

    def _execute(self, effect: Effect, began: float) -> None:
        match effect:
            case Send(to, message):
                envelope = self._envelopes.around(message)
                self._traffic.sent += self._traffic.size(envelope.header, envelope.payload_bytes)
                self._account.sent(to, envelope)
                self._sent[to] += 1
                self._release(partial(self._transport.send, to, envelope))
            case Snapshot(position, state):
                self._write("snapshot", {"moment": position})
                self._release_file(partial(self._write_part, position, copied(state)))
            case Seal(position):
                self._release_file(partial(self._seal_checkpoint, effect))
                self._write("checkpoint", {"moment": position})
            case Save() | SaveEvaluation() | Finish():
                self._release_file(partial(self._carry_out, effect, began))
            case _:
                super()._execute(effect, began)

    def _release_file(self, write: Callable[[], None]) -> None:
        """Let a file be written; the role gets no event before that."""
        self._stalled = self._standby is not None
        self._release(write)

    def _carry_out(self, effect: Effect, began: float) -> None:
        super()._execute(effect, began)
        if isinstance(effect, Finish) and self._standby is not None:
            self._send(Journal(entries=(*self._names, FINISHED), lines=self._record.lines_of_attempt or 0))
            self._names.clear()

    def _write_part(self, position: int, state: State) -> None:
        super()._write_part(position, state)
        snapped = self._queue[-1]
        assert isinstance(snapped, Snapped), "it has just been written"
        # The lines that follow must not be there if the standby has to write the part again.
        self._note(f"{SNAPPED}{position} {snapped.checksum}")
        self._tell()
        self._least = self._count


def copied(state: State) -> State:
    """Return a state that does not change when its role goes on."""
    arrays = {name: np.array(values) for name, values in state.arrays.items()}
    return State(arrays, copy.deepcopy(state.facts))

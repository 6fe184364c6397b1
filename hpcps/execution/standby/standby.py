"""The driver of the standby of a server, which takes its place when it is lost."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import inf, nextafter
from typing import Any

from hpcps.errors import RunError
from hpcps.execution.account import IDLE, LOST, REPLACED, SAME, STOP, STOP_AT_EPOCH, TIMER
from hpcps.execution.standby.image import Image
from hpcps.execution.standby.journal import FINISHED, SNAPPED, WAITING
from hpcps.execution.standby.post import Place, Post
from hpcps.execution.standby.primary import HeldRecord, PrimaryDriver, copied
from hpcps.numerics.state import State
from hpcps.protocol.envelope import Delivered, Envelope, Envelopes, MalformedMessageError
from hpcps.protocol.messages import CopyOfMessage, CopyRequest, Followed, Journal, Message, Peer, StandbyBegins
from hpcps.protocol.received import Lost, Malformed, Replaced
from hpcps.protocol.roster import SERVER_0, standby_of
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordLines, RecordWriter
from hpcps.roles.events import (
    Compute,
    Effect,
    Event,
    Finish,
    Idle,
    Now,
    Role,
    Save,
    SaveEvaluation,
    Seal,
    Send,
    SetDeadline,
    Snapped,
    Snapshot,
    StopRequested,
)
from hpcps.roles.resources import Resources
from hpcps.transport.base import Arrived, StandbyTransport

_KEPT = 1000
"""Lines of the record that a standby keeps at least."""


class KeptRecord(RecordLines):
    """The lines that a server writes, which its standby keeps until it takes the place of the server."""

    def __init__(
        self, server: Peer, run_id: str, host: str, clock: Callable[[], float], elapsed: float,
        open: Callable[[], HeldRecord], begin: Callable[[RecordWriter], None],
    ) -> None:  # fmt: skip
        """Begin with no lines.

        Args:
            server: the server.
            run_id: the run.
            host: the host of the standby.
            clock: returns seconds.
            elapsed: the seconds from which `time` continues now.
            open: opens the server's record.
            begin: writes the `start` line.
        """
        super().__init__(run_id, server.role, server.index, host, clock, elapsed)
        self._open, self._begin = open, begin
        self._writer: HeldRecord | None = None
        # The lines of the attempt from a number on.
        self._first = 0
        self._lines: list[bytes] = []

    def begin(self, first: int) -> None:
        """Begin after so many lines of the attempt."""
        self._first = first

    @property
    def lines_of_attempt(self) -> int | None:
        return self._written.lines_of_attempt

    @property
    def count(self) -> int:
        """The number of lines of the attempt so far."""
        return self._first + len(self._lines)

    def forget(self, written: int) -> None:
        """Drop lines that are in the file, but for the last ones: a host that is gone may not have written them."""
        if (number := written - _KEPT - self._first) > _KEPT:
            del self._lines[:number]
            self._first += number

    def take_over(
        self, part_after: int, write_part: Callable[[], None], put: Callable[[Callable[[], None]], None]
    ) -> bool:
        """Write the lines that are not in the file, and all further ones; return whether the server has ended there.

        Args:
            part_after: after how many lines `write_part` is called.
            write_part: writes the part of a checkpoint.
            put: see `HeldRecord`.
        """
        self._writer = writer = self._open()
        there = writer.lines_of_attempt
        if there is None:
            self._begin(writer)
        for number, line in enumerate(self._lines, self._first):
            if number == part_after:
                write_part()
            if number >= (there or 0):
                writer.append(line)
        last = self._first + len(self._lines)
        if part_after == last:
            write_part()
        self._lines.clear()
        writer.resume(0, self.time)  # a part of a checkpoint states the time
        writer.put = put
        return there is not None and there > last

    def append(self, line: bytes) -> None:
        if self._writer is None:
            self._lines.append(line)
        else:
            self._writer.append(line)

    def part(self, state: State) -> CheckpointPart:
        return self._written.part(state)

    def sync(self) -> None:
        self._written.sync()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def _written(self) -> HeldRecord:
        assert self._writer is not None, "a standby writes nothing before it takes the place of its server"
        return self._writer


class StandbyDriver(PrimaryDriver):
    """Handles the events of a server in the server's order, and takes its place when it is lost.

    Until then nothing leaves it but the number of entries of the journal that it has followed.
    """

    def __init__(
        self, role: Role, transport: StandbyTransport, record: KeptRecord, directory: RunDirectory,
        joins: Resources | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Take a role to drive; see `RoleDriver`.

        Args:
            role: the role.
            transport: its end of the transport.
            record: the lines of its record.
            directory: the folder of the run.
            joins: the resources of the role, if the run is under way and the server gives it its state.
            options: see `RoleDriver`.
        """
        super().__init__(role, transport, record, directory, **options)
        self._standby = None
        self._transport: StandbyTransport = transport
        self._record: KeptRecord = record
        self._joins = joins
        if joins is not None:
            self._queue.clear()
        self._own_standby = Envelopes(standby_of(role.peer), role.run_id)
        self._post = Post()
        self._entries: deque[str] = deque()
        self._entry = self._said = 0
        self._copies: dict[int, CopyOfMessage] = {}
        self._asked = -1
        self._moment = 0.0
        self._lost: Lost | None = None
        self._leads = False
        # What the server writes into the run's folder, as far as it may have to be written here.
        self._snapshot: Snapshot | None = None
        self._snapshot_after = -1
        self._seal: Seal | None = None
        self._last: list[Save | SaveEvaluation | Finish] = []
        # The server has a limit for its waits, and the standby would reach it first.
        self._deadline = SetDeadline((), True)
        self.limited = False

    @property
    def peer(self) -> Peer:
        return self._role.peer if self._leads else standby_of(self._role.peer)

    def take(self) -> Event | None:
        event = super().take()
        if self._said < self._entry and not self._leads and (event is None or not self._entries):
            self._said = self._entry
            self._send_to_server(Followed(count=self._entry))
        return event

    def handle(self, event: Event) -> Iterator[Effect]:
        for effect in super().handle(event):
            if self._leads or isinstance(effect, (Compute, Now)):  # the others take no time
                yield effect

    def record_wait(self) -> None:
        if self._leads:
            super().record_wait()

    def _ask_whether_to_stop(self) -> None:
        if self._leads:
            super()._ask_whether_to_stop()

    @property
    def resumes(self) -> float | None:
        return super().resumes if self._leads else None

    @property
    def _acts(self) -> bool:
        return self._leads

    @property
    def _due(self) -> Mapping[Peer, Place]:
        return self._post.due

    def _next(self) -> Event | None:
        if not self._leads:
            self._gather()
            event = self._follow()
            if event is not None or self._lost is None or self.finished:
                return event
            self._take_over(self._lost)
            if self._queue or self.finished:
                return self._queue.popleft() if self._queue else None
        return super()._next()

    def _receive(self) -> Arrived | None:
        self._gather()
        while isinstance(arrival := self._post.take(), Lost) and self._role.peer != SERVER_0:
            pass  # server 0 decides what follows from it
        if self._is_new_standby(arrival):
            return None
        if isinstance(arrival, Replaced):
            self._transport.forget(arrival.peer)
        return arrival

    def _forget_standby(self) -> None:
        super()._forget_standby()
        self._post.forget(standby_of(self._role.peer))

    def _gather(self) -> None:
        server = self._role.peer
        while (arrival := self._from_others()) is not None:
            if isinstance(arrival, Lost) and arrival.peer == server:
                self._lost = arrival
            elif isinstance(arrival, Delivered) and arrival.source == server:
                self._listen_to_server(arrival.envelope.message)
            elif isinstance(arrival, (Delivered, Malformed, Lost, Replaced)):
                self._post.put(arrival)

    def _listen_to_server(self, message: Message) -> None:
        if self._joins is not None and not isinstance(message, StandbyBegins):
            return  # it was for the standby before this one
        match message:
            case Journal(entries=entries, lines=lines):
                self._entries.extend(entries)
                self._record.forget(lines)
            case CopyOfMessage(entry=entry):
                self._copies[entry] = message
            case StandbyBegins(file=file) if self._joins is not None:
                image = Image.read(self._directory.images / file, self._joins)
                self._joins = None
                self._role = image.role
                self._account.resume(image.account)
                self._record.begin(image.lines)
                self._post.begin(image.due, image.lost)
                self._known_lost = set(image.lost)
                self._sent = image.sent
                known = {peer: incarnation for peer, (incarnation, _) in image.due.items()}
                self._transport.begin(image.sent, image.kept, known)
                for seconds, event in image.alarms:
                    self._alarms.set(self._clock() + seconds, event)
                self.waiting_for = image.waiting_for
                self._deadline = SetDeadline(image.waiting_for, image.limited)

    def _follow(self) -> Event | None:
        """Return the next event of the journal, if it is there."""
        while self._entries:
            name = self._entries[0]
            if name in (FINISHED, WAITING):
                self._entries.popleft()
                if name == FINISHED:
                    self.finished = True
                    self.suspended = any(isinstance(each, Finish) and each.suspended for each in self._last)
                    return None
                self._entry += 1
                super().record_wait()
                continue
            event = self._expected(name)
            if event is not None:
                self._entries.popleft()
                self._entry += 1
            return event
        return None

    def _expected(self, name: str) -> Event | None:
        """Return the event of an entry, if it is there."""
        if name == IDLE:
            self._draining = False
            return Idle()
        if name == STOP:
            self._stop = None
            return StopRequested()
        if name == STOP_AT_EPOCH:
            self._resize = None
            return StopRequested(at_epoch=True)
        if name == TIMER:
            return self._alarms.pop()
        if name.startswith(SNAPPED):
            position, _, checksum = name.removeprefix(SNAPPED).partition(" ")
            self._snapshot = None
            return Snapped(int(position), checksum)
        arrival = self._arrival(name.removeprefix(SAME))
        if arrival is None:
            return None
        if isinstance(arrival, (Lost, Replaced)):
            return self._opened(arrival, self._clock())
        if not name.startswith(SAME):
            # The server got it later than the message before.
            self._moment = max(self._clock(), nextafter(self._moment, inf))
        return self._opened(arrival, self._moment)

    def _arrival(self, name: str) -> Delivered | Malformed | Lost | Replaced | None:
        """Return a message of a process, or what became of it, if it is there."""
        if name.startswith(LOST):
            return self._post.take_lost(Peer.parse(name.removeprefix(LOST)))
        if name.startswith(REPLACED):
            process, _, number = name.removeprefix(REPLACED).partition(" ")
            replaced = self._post.take_replaced(Peer.parse(process), int(number))
            if replaced is not None:
                self._transport.forget(replaced.peer)
            return replaced
        source = Peer.parse(name)
        found = self._post.take_from(source)
        if found is None and (copy := self._copies.pop(self._entry, None)) is not None:
            self._post.skip(source)
            return _opened_copy(source, copy)
        if found is None and self._asked < self._entry and self._post.lacks(source):
            self._asked = self._entry
            self._send_to_server(CopyRequest(entry=self._entry))
        return found

    def _send_to_server(self, message: Message) -> None:
        self._transport.send(self._role.peer, self._own_standby.around(message))

    def _execute(self, effect: Effect, began: float) -> None:
        if self._leads:
            super()._execute(effect, began)
            return
        match effect:
            case Send(to, message):
                envelope = self._envelopes.around(message)
                self._traffic.sent += self._traffic.size(envelope.header, envelope.payload_bytes)
                self._account.sent(to, envelope)
                self._sent[to] += 1
                self._transport.keep(to, envelope)
            case SetDeadline():
                self._deadline, self.waiting_for = effect, effect.waiting_for
            case Snapshot(position, state):
                self._write("snapshot", {"moment": position})
                self._snapshot, self._snapshot_after = Snapshot(position, copied(state)), self._record.count
            case Seal():
                self._seal = effect
                self._write("checkpoint", {"moment": effect.position})
            case Save() | SaveEvaluation() | Finish():
                self._last.append(effect)
            case _:
                super()._execute(effect, began)

    def _take_over(self, lost: Lost) -> None:
        """Take the place of the server."""
        if self._joins is not None:
            raise RunError(
                f"{lost.peer} is lost ({lost.cause}) before its standby had its state: start the run again; it goes on"
            )
        self._leads = True
        self._entries.clear()
        self._transport.take_over()
        after = -1 if self._snapshot is None else self._snapshot_after
        ended = self._record.take_over(after, self._write_snapshot, self._release_line)
        if not ended:
            self._record.write("took_over", pid=os.getpid(), cause=lost.cause)
        checkpoints = self._directory.checkpoints
        if self._seal is not None and self._seal.position not in checkpoints.positions():
            self._seal_checkpoint(self._seal)
        self.waiting_for, self.limited = self._deadline.waiting_for, self._deadline.limited
        for effect in self._last:
            if isinstance(effect, Finish) and ended:
                self._record.close()
                self.finished, self.suspended = True, effect.suspended
            else:
                super()._execute(effect, self._clock())

    def _write_snapshot(self) -> None:
        """Write the part of a checkpoint that the server has not written, as far as this process knows."""
        assert self._snapshot is not None, "it is called only then"
        self._write_part(self._snapshot.position, self._snapshot.state)


def _opened_copy(source: Peer, copy: CopyOfMessage) -> Delivered | Malformed:
    """Return the message of a copy."""
    if not copy.header:
        return Malformed(source, copy.reason)
    try:
        return Delivered(source, Envelope.decode(bytes.fromhex(copy.header), copy.values))
    except (ValueError, MalformedMessageError) as error:
        return Malformed(source, str(error))

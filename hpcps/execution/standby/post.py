"""What has come for a standby, which takes it in the order in which its server did."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from hpcps.protocol.envelope import Delivered
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import REPLACED, Lost, Malformed, Replaced
from hpcps.protocol.roster import STANDBY

Place = tuple[int, int]
"""A message of a role to another one: the number of the sender's process, 0 or that of a replacement, and how many
messages this process sent to the receiver before."""


class _Numbered(NamedTuple):
    """A message and its place."""

    place: Place
    message: Delivered | Malformed


class Post:
    """The messages, and what became of other processes, in the order in which they came here."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._waiting: deque[_Numbered | Lost | Replaced] = deque()
        self._lost: set[Peer] = set()
        # The last process of each role that is known to be lost, and those of whose loss the server knows.
        self._gone: dict[Peer, Lost] = {}
        self._down: set[Peer] = set()
        # The place of the next message of each role that comes, if it is known, and of the next one that is taken.
        self._next: dict[Peer, Place] = {}
        self._due: dict[Peer, Place] = {}
        self._complete = True
        # Those whose messages say of which process they are.
        self._exact: set[Peer] = set()

    def put(self, arrival: Delivered | Malformed | Lost | Replaced) -> None:
        """Take what has come."""
        if isinstance(arrival, Lost):
            self._lost.add(arrival.peer)
            self._note_gone(arrival)
            self._waiting.append(arrival)
        elif isinstance(arrival, Replaced):
            self._lost.discard(arrival.peer)
            self._note_gone(Lost(arrival.peer, REPLACED, incarnation=arrival.incarnation - 1))
            said = self._next.get(arrival.peer, (0, 0)) if arrival.peer in self._exact else (0, 0)
            self._next[arrival.peer] = max(said, (arrival.incarnation, 0))  # a first message may come before this
            self._waiting.append(arrival)
        else:
            incarnation, number = self._next.get(arrival.source, (self._due.get(arrival.source, (0, 0))[0], 0))
            if isinstance(arrival, Delivered) and arrival.incarnation is not None:
                incarnation = arrival.incarnation
                self._exact.add(arrival.source)
            if isinstance(arrival, Delivered) and arrival.skipped is not None:
                number, arrival = arrival.skipped, arrival._replace(skipped=None)  # a server has no predecessor
            self._next[arrival.source] = incarnation, number + 1
            self._waiting.append(_Numbered((incarnation, number), arrival))

    def _note_gone(self, lost: Lost) -> None:
        """Note that a process is lost, and all that had its role before it."""
        if lost.peer not in self._gone or lost.incarnation > self._gone[lost.peer].incarnation:
            self._gone[lost.peer] = lost

    def begin(self, due: Mapping[Peer, Place], lost: Collection[Peer]) -> None:
        """Begin after what the server has taken before; messages that came before this process began may lack.

        Args:
            due: the place of the next message of each role.
            lost: the processes of whose loss the server knows.
        """
        self._due, self._down = dict(due), set(lost)
        self._complete = False
        waiting, self._waiting = self._waiting, deque()
        past = Counter(each.peer for each in waiting if isinstance(each, Replaced) and self._is_past(each))
        for each in waiting:
            if isinstance(each, Replaced) and self._is_past(each):
                past[each.peer] -= 1
            elif not isinstance(each, _Numbered):
                self._waiting.append(each)
            elif not past[each.message.source]:
                incarnation = self._incarnation(each.message.source, each.place[0])
                self._waiting.append(_Numbered((incarnation, each.place[1]), each.message))
        for peer, (incarnation, number) in list(self._next.items()):
            self._next[peer] = self._incarnation(peer, incarnation), number

    def _incarnation(self, peer: Peer, said: int) -> int:
        """Return the number of the process that has sent messages before this process began.

        Without a word on it, it was there before this one, and is that in `due`. The server may know a later one.
        """
        return said if peer in self._exact else max(said, self._due.get(peer, (0, 0))[0])

    def _is_past(self, event: Replaced) -> bool:
        return event.incarnation <= self._due.get(event.peer, (0, 0))[0]

    @property
    def due(self) -> Mapping[Peer, Place]:
        """The place of the next message of each role."""
        return self._due

    def take(self) -> Delivered | Malformed | Lost | Replaced | None:
        """Return the first of all, if there is any."""
        while self._waiting:
            first = self._waiting.popleft()
            if not isinstance(first, _Numbered) and first.peer.role == STANDBY:
                return first  # which of two processes it is, its number does not say
            if isinstance(first, Lost):
                if first.peer in self._down or first.incarnation < self._due.get(first.peer, (0, 0))[0]:
                    continue  # the server knows it
                self._down.add(first.peer)
                return first
            if isinstance(first, Replaced):
                if self._is_past(first):
                    continue  # it was made up for
                self._begin_with(first)
                return first
            source = first.message.source
            if first.place >= self._due.get(source, (0, 0)):
                self._due[source] = first.place[0], first.place[1] + 1
                return first.message
        return None

    def take_from(self, source: Peer) -> Delivered | Malformed | None:
        """Return the next message of a role that the server takes, if it is there."""
        due = self._due.get(source, (0, 0))
        for at, each in enumerate(self._waiting):
            if isinstance(each, _Numbered) and each.message.source == source and each.place == due:
                del self._waiting[at]
                self.skip(source)
                return each.message
        return None

    def take_lost(self, peer: Peer) -> Lost | None:
        """Return what says that a process is lost, if that is known; `take` then passes over it."""
        known, due = self._gone.get(peer), self._due.get(peer, (0, 0))[0]
        if known is None or known.incarnation < due:
            return None
        self._down.add(peer)
        waiting = (each for each in self._waiting if isinstance(each, Lost) and each.peer == peer)
        return next((each for each in waiting if each.incarnation >= due), known)

    def take_replaced(self, peer: Peer, incarnation: int) -> Replaced | None:
        """Return what says that a replacement has started, if it is there; its predecessor's messages are dropped.

        One that was lost, too, before it could tell this process is made up for.
        """
        found = Replaced(peer, incarnation)
        known = self._gone.get(peer)
        for at, each in enumerate(self._waiting):
            if isinstance(each, Replaced) and (each.peer, each.incarnation) == (peer, incarnation):
                del self._waiting[at]
                found = each
                break
        else:
            if known is None or known.incarnation < incarnation:
                return None
        self._begin_with(found)
        return found

    def _begin_with(self, replaced: Replaced) -> None:
        """Expect the messages of a replacement."""
        self._due[replaced.peer] = replaced.incarnation, 0
        self._down.discard(replaced.peer)

    def forget(self, peer: Peer) -> None:
        """Drop what says that a replacement of a process has started."""
        self._waiting = deque(each for each in self._waiting if not isinstance(each, Replaced) or each.peer != peer)

    def skip(self, source: Peer) -> None:
        """Note that the next message of a role is taken; if it comes later, too, it is dropped."""
        incarnation, number = self._due.get(source, (0, 0))
        self._due[source] = incarnation, number + 1

    def lacks(self, source: Peer) -> bool:
        """Return whether the next message of a role may never come here.

        Its process is lost, or has sent it to the server alone, before this process joined.
        """
        due, coming = self._due.get(source, (0, 0)), self._next.get(source)
        if source in self._lost or (coming is not None and coming > due):
            return True
        return coming is None and not self._complete

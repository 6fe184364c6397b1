"""The messages between the processes of a replay, some of which are lost and have replacements."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed
from hpcps.transport.base import MessageTransport, Traffic
from hpcps.transport.inproc import delivered, payload_of

Member = tuple[Peer, int]
"""A process: its role, and the number of the replacement that it is; 0 if it is none."""
_Place = tuple[int, int]
"""A message from one role to another: the number of the sender's process, and how many messages this process sent to
the receiver before."""


class _Letter(NamedTuple):
    """A message on its way.

    Attributes:
        sender: the process that sent it.
        header: its header.
        payload: its payload.
    """

    sender: Member
    header: bytes
    payload: bytes | None


class Mail:
    """Delivers each message to the process that got it in the run: one that was lost, or a replacement of it."""

    def __init__(
        self, everyone: Iterable[Peer], skipped: Mapping[Member, Mapping[Peer, _Place]], scale: float = 1.0
    ) -> None:
        """Take what the records say of replacements.

        Args:
            everyone: the roles.
            skipped: for each process that has a record, which message of each sender is its first one, as far as the
                record says it; see also `begin`.
            scale: a factor on the bytes of payloads, to simulate a larger model.
        """
        self.boxes: dict[Member, deque[_Letter]] = {member: deque() for member in skipped}
        self._scale = scale
        self._sent: Counter[tuple[Member, Peer]] = Counter()
        # The number of the process that has a role now.
        self._present: Counter[Peer] = Counter()
        # The first message of each sender to each replacement.
        self._firsts: dict[Peer, dict[int, dict[Peer, _Place]]] = {peer: {} for peer in everyone}
        for (peer, incarnation), firsts in skipped.items():
            self._firsts[peer][incarnation] = dict(firsts)

    def endpoint(self, owner: Member) -> MailTransport:
        """Return the transport of a process."""
        return MailTransport(owner, self, self._scale)

    def begin(self, member: Member, senders: Iterable[Peer]) -> None:
        """Deliver to a replacement what these roles send from now on, unless the records say from when on."""
        peer, incarnation = member
        self._present[peer] = incarnation
        firsts = self._firsts[peer].setdefault(incarnation, {})
        for sender in senders:
            number = self._present[sender]
            firsts.setdefault(sender, (number, self._sent[(sender, number), peer]))

    def end(self, member: Member) -> None:
        """Deliver nothing more to a process, which nobody expects anything of."""
        self.boxes.pop(member, None)

    def carry(self, letter: _Letter, to: Peer) -> None:
        """Deliver a message; one to a process that recorded nothing is dropped."""
        source, incarnation = letter.sender
        place = incarnation, self._sent[letter.sender, to]
        self._sent[letter.sender, to] += 1
        later = (n for n, firsts in self._firsts[to].items() if source in firsts and firsts[source] <= place)
        if (box := self.boxes.get((to, max(later, default=0)))) is not None:
            box.append(letter)


class MailTransport(MessageTransport):
    """The end of one process, which takes messages by their senders."""

    def __init__(self, owner: Member, mail: Mail, scale: float) -> None:
        self._owner = owner
        self._mail = mail
        self._incarnations: Counter[Peer] = Counter()
        self.traffic = Traffic(scale=scale)

    def send(self, to: Peer, envelope: Envelope) -> None:
        self._mail.carry(_Letter(self._owner, envelope.header, payload_of(envelope)), to)
        self.traffic.sent += self.traffic.size(envelope.header, envelope.payload_bytes)

    def receive(self) -> Delivered | Malformed | None:
        """Return the next message, of whatever sender."""
        box = self._box
        return self._open(box.popleft()) if box else None

    def receive_from(self, source: Peer) -> Delivered | Malformed | None:
        """Return the next message of a role: of its present process, as far as this one knows; those of others stay."""
        sender, box = self.sender(source), self._box
        place = next((place for place, letter in enumerate(box) if letter.sender == sender), None)
        if place is None:
            return None
        letter = box[place]
        del box[place]
        return self._open(letter)

    def sender(self, source: Peer) -> Member:
        """Return the process whose messages this one takes for those of a role."""
        return source, self._incarnations[source]

    def replace(self, peer: Peer, incarnation: int) -> None:
        """Take the messages of a replacement from now on, and drop those of its predecessors."""
        self._incarnations[peer] = incarnation
        box = self._box
        kept = [letter for letter in box if letter.sender[0] != peer or letter.sender[1] >= incarnation]
        box.clear()
        box.extend(kept)

    @property
    def _box(self) -> deque[_Letter]:
        return self._mail.boxes.get(self._owner, deque())

    def _open(self, letter: _Letter) -> Delivered | Malformed:
        (source, _), header, payload = letter
        self.traffic.received += self.traffic.size(header, len(payload) if payload else 0)
        return delivered(source, header, payload)

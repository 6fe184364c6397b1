"""The order in which all servers do the same things."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hpcps.errors import RunError
from hpcps.messages import ROLES, Flag, Kind, Message, Peer
from hpcps.roles.asynchronous.entry import UPDATES, Entry
from hpcps.roles.checkpointing import KEEPER
from hpcps.state import State


@dataclass(frozen=True)
class Place:
    """Where an entry stands.

    Attributes:
        index: its place in the log, from 1.
        version: how many updates the model holds with it.
        epoch: the chief's epoch, as far as the log knows.
        submitter: whose entry; None for the initial model.
        number: the submitter's number of it.
    """

    index: int
    version: int
    epoch: int
    submitter: Peer | None = None
    number: int = 0

    def message(self, sender: Peer, run_id: str, entry: Entry) -> Message:
        """Write it for another server."""
        submitter = [ROLES.index(entry.submitter.role), entry.submitter.index]
        note = {"of": submitter, "epoch": self.epoch}
        return Message(
            Kind.ORDER, sender, run_id, entry.number, 0, entry.flags,
            note=note, version=self.version, index=self.index,
        )  # fmt: skip

    @staticmethod
    def of(message: Message) -> Place:
        """Read it."""
        role, index = message.note["of"]
        return Place(message.index, message.version, message.note["epoch"], Peer(ROLES[role], index), message.round)


class Log:
    """Numbers entries (server 0), or puts those that come into the order they were given (the other servers).

    Attributes:
        submitters: who makes entries.
        index: the place of the last entry executed.
        version: how many updates the model holds.
    """

    def __init__(self, submitters: tuple[Peer, ...]) -> None:
        self.submitters = submitters
        self.index = 0
        self.version = 0
        self._epoch = 0
        self._checkpoints: deque[Entry] = deque()
        self._numbers = dict.fromkeys(submitters, 0)
        self._entries: dict[Peer, deque[Entry]] = {peer: deque() for peer in submitters}
        self._places: deque[Place] = deque()

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """Who holds up the next entry: its submitter, or server 0 if only its place is unknown; nobody if none came."""
        if self._places:
            submitter = self._places[0].submitter
            return (submitter,) if submitter is not None else ()
        return (Peer("server", 0),) if any(self._entries.values()) else ()

    def next_number(self, submitter: Peer) -> int:
        """Return the number that a submitter's next entry must have."""
        return self._numbers[submitter] + 1

    def count(self, entry: Entry) -> None:
        """Take note that an entry came."""
        self._numbers[entry.submitter] = entry.number

    def place(self, entry: Entry, chief: Peer) -> Place:
        """Give an entry the next place; an update advances the version."""
        self.index += 1
        self.version += entry.kind in UPDATES
        if entry.submitter == chief:
            self._epoch = max(self._epoch, entry.epoch)
        return Place(self.index, self.version, self._epoch, entry.submitter, entry.number)

    def put(self, entry: Entry) -> None:
        """Keep an entry until it is given its place."""
        self.count(entry)
        self._entries[entry.submitter].append(entry)

    def order(self, place: Place, flags: Flag) -> None:
        """Take note of the place that server 0 gave an entry; one that is server 0's own is a checkpoint."""
        self._places.append(place)
        if place.submitter == KEEPER:
            self._checkpoints.append(Entry.checkpoint(flags))

    def state(self) -> State:
        """Return how far it is; who makes entries counts anew after a restart."""
        return State(facts={"index": self.index, "version": self.version, "epoch": self._epoch})

    def restore(self, state: State) -> None:
        """Go on from there."""
        self.index, self.version, self._epoch = (state.facts[key] for key in ("index", "version", "epoch"))

    @property
    def here(self) -> Place:
        """Return the place of the last entry executed."""
        return Place(self.index, self.version, self._epoch)

    def take(self) -> tuple[Entry, Place] | None:
        """Return the next entry and its place; None if either has not come.

        An update for which server 0 did not advance the version is not applied here either.
        """
        if not self._places or self._places[0].submitter is None:
            return None
        place = self._places[0]
        assert place.submitter is not None
        waiting = self._checkpoints if place.submitter == KEEPER else self._entries[place.submitter]
        if not waiting:
            return None
        entry = waiting.popleft()
        self._places.popleft()
        if entry.number != place.number or place.index != self.index + 1:
            raise RunError(
                f"server 0 put entry {place.number} of {place.submitter} at {place.index}; here entry {entry.number} "
                f"comes next, at {self.index + 1}"
            )
        if entry.kind in UPDATES and place.version == self.version:
            entry = entry.refused()
        self.index, self.version, self._epoch = place.index, place.version, place.epoch
        return entry, place

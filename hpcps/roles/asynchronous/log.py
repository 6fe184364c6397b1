"""The log of the servers: how other roles submit entries, and the order in which all servers execute them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.errors import RunError
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.state import Position, State
from hpcps.numerics.vectors import DeviceVector, empty_like, pack
from hpcps.protocol.messages import (
    ApplyUpdate,
    Flag,
    ModelReply,
    Ordered,
    Peer,
    Read,
    Stop,
    SubmittedEntry,
    UpdateEntry,
    UpdateRequest,
)
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import SERVER_0, Roster, shards_of
from hpcps.roles.checks import rejection, wrong_rate
from hpcps.roles.events import Effect, Finish, Send
from hpcps.roles.local_training import LocalTraining
from hpcps.roles.stages import Stage, Trigger
from hpcps.spec.schema import Run


class EntryKind(Enum):
    """What an entry of the log is."""

    APPLY = "apply"
    """An update that a validator has filtered."""
    UPDATE = "update"
    """A worker's update, which the servers filter."""
    READ = "read"
    """Its reader gets the model, which does not change."""
    STOP = "stop"
    """The coordinator has finished its epochs."""
    ABSENT = "absent"
    """A worker has no update; it only waits at a validator."""
    CHECKPOINT = "checkpoint"
    """Server 0's own entry: everyone writes a part of a checkpoint."""
    SERVE = "serve"
    """Server 0's own entry: a validator is lost, and others serve its workers."""


_KINDS: dict[type[SubmittedEntry], EntryKind] = {
    ApplyUpdate: EntryKind.APPLY,
    UpdateEntry: EntryKind.UPDATE,
    Read: EntryKind.READ,
    Stop: EntryKind.STOP,
}
UPDATES = (EntryKind.APPLY, EntryKind.UPDATE)
"""Entries that change the model."""
OWN = (EntryKind.CHECKPOINT, EntryKind.SERVE)
"""Server 0's own entries, which have no reader."""


@dataclass(frozen=True)
class LogEntry:
    """Something that all servers execute at the same place of their log; then its reader gets the model.

    Attributes:
        kind: what it is.
        submitter: the role that sends the entry.
        number: the submitter's count of its entries, from 1; 0 if they are not counted.
        reader: the role that gets the model.
        request: which of the reader's requests the model answers.
        base_version: the version of the model that the update was made from.
        epoch: the epochs of the submitter's own steps that are over, see `SubmittedEntry`.
        rate: the learning rate of the update's local step, for rules that compensate delays; else 0. An APPLY's is
            multiplied by alpha, as its payload is.
        position: where its reader is after it, see `SubmittedEntry`.
        incarnation: of a READ, see `Read`.
        since: see `SubmittedEntry`.
        validators: of an entry that changes who serves which worker, see `Ordered`; else None.
        mask: the blocks of this shard, or of the model at a validator, that `payload` holds.
        payload: float32, packed.
        flags: whether a checkpoint suspends the run.
    """

    kind: EntryKind
    submitter: Peer
    number: int
    reader: Peer
    request: int
    base_version: int = 0
    epoch: int = 0
    mask: Mask | None = None
    payload: Vector | None = None
    flags: Flag = Flag.NONE
    rate: float = 0.0
    position: Position | None = None
    incarnation: int = 0
    since: int = 0
    validators: tuple[int, ...] | None = None

    @staticmethod
    def checkpoint(flags: Flag) -> LogEntry:
        """Return server 0's own entry, at which everyone writes a checkpoint."""
        return LogEntry(EntryKind.CHECKPOINT, SERVER_0, 0, SERVER_0, 0, flags=flags)

    @staticmethod
    def serve(validators: tuple[int, ...]) -> LogEntry:
        """Return server 0's own entry, from which on only these validators serve."""
        return LogEntry(EntryKind.SERVE, SERVER_0, 0, SERVER_0, 0, validators=validators)

    @staticmethod
    def own(message: Ordered) -> LogEntry:
        """Return server 0's own entry of a message."""
        serves = message.validators
        return LogEntry.checkpoint(message.flags) if serves is None else LogEntry.serve(serves)

    def message(self, shard: int) -> SubmittedEntry:
        """Return it as a message to one server."""
        of_validator, reads_itself = self.submitter.role == "validator", self.reader == self.submitter
        fields: dict[str, Any] = {
            "number": self.number, "shard": shard, "base_version": self.base_version, "epoch": self.epoch,
            "rate": self.rate, "request": self.request if of_validator else None,
            "worker": self.reader.index if of_validator and not reads_itself else None,
            "position": self.position, "since": self.since,
        }  # fmt: skip
        match self.kind:
            case EntryKind.APPLY | EntryKind.UPDATE:
                assert self.mask is not None, "an update that is sent has blocks"
                assert self.payload is not None, "an update that is sent has blocks"
                kind = ApplyUpdate if self.kind is EntryKind.APPLY else UpdateEntry
                return kind(**fields, mask=self.mask, values=self.payload)
            case EntryKind.STOP:
                return Stop(**fields)
        return Read(**fields, incarnation=self.incarnation)

    @staticmethod
    def of(source: Peer, message: SubmittedEntry, decoder: UpdateDecoder, whole: Partition) -> LogEntry:
        """Return the entry in a message to a server.

        Args:
            source: its sender.
            message: the message.
            decoder: decodes a worker's update.
            whole: the elements of the update.

        Raises:
            ValueError: its blocks or its learning rate are wrong; the reason in one line.
        """
        kind, mask, payload, reason = _KINDS[type(message)], None, None, None
        if isinstance(message, ApplyUpdate):
            mask, payload = message.mask, message.values
        elif isinstance(message, UpdateEntry):
            mask = message.mask
            payload, reason = decoder(source, mask, message.values, whole)
        if reason := reason or wrong_rate(message.rate):
            raise ValueError(reason)
        reader, request = source, message.number if source.role == "worker" else message.request or 0
        if source.role != "worker" and message.worker is not None:
            reader = Peer("worker", message.worker)
        return LogEntry(
            kind, source, message.number, reader, request, message.base_version, message.epoch, mask, payload,
            rate=message.rate, position=message.position, since=message.since,
            incarnation=message.incarnation if isinstance(message, Read) else 0,
        )  # fmt: skip

    @staticmethod
    def requested(source: Peer, message: UpdateRequest, decoder: UpdateDecoder, whole: Partition) -> LogEntry:
        """Return the entry in a worker's update to a validator; arguments and errors as in `of`."""
        payload, reason = decoder(source, message.mask, message.values, whole)
        if reason := reason or wrong_rate(message.rate):
            raise ValueError(reason)
        return LogEntry(
            EntryKind.UPDATE, source, message.request, source, message.request, message.base_version, 0, message.mask,
            payload, rate=message.rate, position=message.position, since=message.since,
        )  # fmt: skip

    def fields(self) -> dict[str, object]:
        """Return what a server's record says of it."""
        return {
            "kind": self.kind.value,
            "submitter": str(self.submitter),
            "number": self.number,
            "reader": str(self.reader),
            "request": self.request,
        }

    def kept(self) -> LogEntry:
        """Return it with a copy of its payload, which outlives the message; that on a device does so anyway."""
        if self.payload is None or isinstance(self.payload, DeviceVector):
            return self
        return replace(self, payload=self.payload.copy())

    def refused(self) -> LogEntry:
        """Return it as a READ, if its update cannot be used: its reader still gets the model."""
        return replace(self, kind=EntryKind.READ, mask=None, payload=None)


@dataclass(frozen=True)
class LogPosition:
    """The place of an entry in the log, and what the log knows there.

    Attributes:
        index: the number of the entry in the log, from 1; 0 before the first.
        version: that of the model after the entry, see `ModelReply`.
        epoch: the epochs of the coordinator's own steps that are over, by its entries so far.
        submitter: the submitter of the entry; None for the initial model.
        number: the submitter's number of it.
    """

    index: int
    version: int
    epoch: int
    submitter: Peer | None = None
    number: int = 0

    def message(self, entry: LogEntry) -> Ordered:
        """Return it as a message to another server."""
        return Ordered(
            number=entry.number, submitter=entry.submitter, position=self.index, version=self.version,
            epoch=self.epoch, flags=entry.flags, validators=entry.validators,
        )  # fmt: skip

    @staticmethod
    def of(message: Ordered) -> LogPosition:
        """Return the position in a message."""
        return LogPosition(message.position, message.version, message.epoch, message.submitter, message.number)


class LogClient:
    """Submits a training role's entries to all servers, and takes the models that answer its requests.

    A model has the same version in all shards. Requests end when the servers say that a model is the last one.

    Attributes:
        request: the number of the last request. The first model comes without one, and answers request 0.
    """

    def __init__(self, run: Run, layout: Layout, training: LocalTraining) -> None:
        self._training = training
        self._layout = layout
        self._servers = Roster.of(run).all_servers()
        self._shards = [(start, stop, layout.restrict(start, stop)) for start, stop in shards_of(run, layout)]
        self.request = 0
        self._entries = 0

    def receive_model(self, source: Peer, model: ModelReply) -> Iterator[Effect]:
        """Take a shard of the model that was asked for; the run is over with the last model."""
        training = self._training
        last = bool(model.flags & Flag.LAST)
        waiting = training.stage in (Stage.STARTING, Stage.WAITING_FOR_MODEL, Stage.STOPPING)
        expected = self.request if waiting else self.request + 1
        if last and not training.is_coordinator:
            training.on(Trigger.RUN_OVER)
            yield Finish()
        elif training.stage is Stage.STOPPING and not last:
            # It answers the coordinator's last update; only the last model counts now.
            return
        elif model.request != expected:
            yield rejection(source, f"a model that answers request {model.request} instead of {expected}")
        else:
            training.inbox.put(source, model, expected)
            yield from training.adopt_when_complete()

    def ask(self) -> Iterator[Effect]:
        """Count the next request and wait for its answer.

        The answer may be here already: an unusable message of a worker counts as its request, and gets the model.
        """
        self.request += 1
        yield from self._training.adopt_when_complete()

    def go_on(self, request: int) -> None:
        """Wait, in the place of a lost worker, for the answer to a request that a combiner has made for this role."""
        self.request = self._entries = request

    def next_number(self) -> int:
        """Number the next entry."""
        self._entries += 1
        return self._entries

    def submit(self, entry: LogEntry, parts: list[tuple[Mask, Vector]] | None = None) -> Iterator[Effect]:
        """Send an entry to all servers; `parts` are its mask and payload for each of them."""
        for shard, server in enumerate(self._servers):
            if parts is not None:
                entry = replace(entry, mask=parts[shard][0], payload=parts[shard][1])
            yield Send(server, entry.message(shard))

    def cut(self, update: Vector, mask: Mask) -> list[tuple[Mask, Vector]]:
        """Cut the masked blocks of an update `[d]` into a part (mask, payload) for each server."""
        payload = pack(self._layout, update, mask, empty_like(update, self._layout.packed_size(mask)))
        parts, taken = [], 0
        for start, _, layout in self._shards:
            first = self._layout.first_in(start)
            here = mask[first : first + len(layout.blocks)]
            size = layout.packed_size(here)
            parts.append((here, payload[taken : taken + size]))
            taken += size
        return parts


class Log:
    """Orders entries: server 0 gives each its place, the other servers follow these places.

    Attributes:
        submitters: the roles that submit entries.
        index: the place of the last entry executed; 0 in a new run.
        version: that of the model, see `ModelReply`.
    """

    def __init__(self, submitters: tuple[Peer, ...]) -> None:
        self.submitters = submitters
        self.index = 0
        self.version = 0
        self._epoch = 0
        self._own: deque[LogEntry] = deque()  # those of server 0
        self._numbers = dict.fromkeys(submitters, 0)
        self._entries: dict[Peer, deque[LogEntry]] = {peer: deque() for peer in submitters}
        self._places: deque[LogPosition] = deque()

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The role that the next entry waits for: its submitter, or server 0 if only its place is unknown."""
        if self._places:
            submitter = self._places[0].submitter
            return (submitter,) if submitter is not None else ()
        return (Peer("server", 0),) if any(self._entries.values()) else ()

    def next_number(self, submitter: Peer) -> int:
        """Return the number that a submitter's next entry must have."""
        return self._numbers[submitter] + 1

    def count(self, entry: LogEntry) -> None:
        """Note that an entry came."""
        self._numbers[entry.submitter] = entry.number

    def place(self, entry: LogEntry, coordinator: Peer) -> LogPosition:
        """Give an entry the next place; an update advances the version."""
        self.index += 1
        self.version += entry.kind in UPDATES
        if entry.submitter == coordinator:
            self._epoch = max(self._epoch, entry.epoch)
        return LogPosition(self.index, self.version, self._epoch, entry.submitter, entry.number)

    def put(self, entry: LogEntry) -> None:
        """Keep an entry until it is given its place."""
        self.count(entry)
        self._entries[entry.submitter].append(entry)

    def first(self, submitter: Peer) -> LogEntry | None:
        """Return the first entry of a submitter that has no place yet, on server 0; None if there is none."""
        return self._entries[submitter][0] if self._entries[submitter] else None

    def remove_first(self, submitter: Peer) -> None:
        """Remove that entry, because it is given its place."""
        self._entries[submitter].popleft()

    def drop(self, submitter: Peer) -> None:
        """Drop the entries of a lost submitter that have no place; its replacement numbers its entries from 1."""
        kept, placed = self._entries[submitter], deque[LogEntry]()
        for number in [place.number for place in self._places if place.submitter == submitter]:
            while kept[0].number != number:
                kept.popleft()
            placed.append(kept.popleft())
        self._entries[submitter], self._numbers[submitter] = placed, 0

    def order(self, place: LogPosition, own: LogEntry | None = None) -> None:
        """Note the place that server 0 gave an entry; `own` is an entry of server 0 itself."""
        self._places.append(place)
        if own is not None:
            self._own.append(own)

    def state(self) -> State:
        """Return the last place; after a resume all submitters number their entries from 1 again."""
        return State(facts={"index": self.index, "version": self.version, "epoch": self._epoch})

    def restore(self, state: State) -> None:
        """Go on from there."""
        self.index, self.version, self._epoch = (state.facts[key] for key in ("index", "version", "epoch"))

    @property
    def here(self) -> LogPosition:
        """The place of the last entry executed."""
        return LogPosition(self.index, self.version, self._epoch)

    def take(self) -> tuple[LogEntry, LogPosition] | None:
        """Return the next entry and its place; None if either has not come.

        An update for which server 0 did not advance the version is not applied here either.
        """
        if not self._places or self._places[0].submitter is None:
            return None
        place = self._places[0]
        assert place.submitter is not None
        waiting = self._own if place.submitter == SERVER_0 else self._entries[place.submitter]
        while waiting and waiting[0].number < place.number:
            waiting.popleft()  # server 0 has given it no place
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

"""What a server of an asynchronous run knows of each process: whether it is lost, where its replacement begins.

Server 0 also decides which validator serves which worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from hpcps.numerics.state import State
from hpcps.protocol.messages import EntryArrived, Peer, ServedBy, ServeWorkers
from hpcps.protocol.received import Replaced
from hpcps.protocol.roster import Roster
from hpcps.roles.asynchronous.log import LogEntry
from hpcps.roles.events import Send
from hpcps.roles.losses import Positions, take_part
from hpcps.spec.schema import Run


class AsyncMembership:
    """The processes of a run, of which some are lost or replaced.

    Attributes:
        positions: where each process was after its last update that entered the model.
        answered: the last executed request of each reader.
        begun: the number of the last replacement of each reader that has got a model.
        validators: the indices of the validators that are there.
    """

    def __init__(self, run: Run) -> None:
        """Begin with all processes."""
        self._roster = roster = Roster.of(run)
        self._survives_validators = run.survive.validators
        # On server 0: those that are there.
        self.validators = tuple(range(roster.validators))
        # On server 0, of each worker: the validator that serves it, if one does, the number of that process, and since
        # which entry.
        self._service: dict[Peer, tuple[Peer | None, int, int]] = {}
        if roster.validators:
            self._service = {worker: (self._validator_of(worker), 0, 0) for worker in roster.all_workers()}
        self.positions = Positions()
        self.answered: dict[Peer, int] = {}
        self.begun: dict[Peer, int] = {}
        self._incarnations: dict[Peer, int] = {}
        # Of each lost process the number of the one that was lost, until a later one gets a model.
        self._lost: dict[Peer, int] = {}
        self._arrived: dict[tuple[Peer, Peer], tuple[int, int]] = {}

    @property
    def lost(self) -> Collection[Peer]:
        """The processes that are lost, and whose replacements have not begun."""
        return self._lost.keys()

    def lose(self, peer: Peer) -> None:
        """Note that a process is lost."""
        self._lost[peer] = self.incarnation(peer)

    def replace(self, replaced: Replaced) -> None:
        """Note that the replacement of a process has started."""
        self._incarnations[replaced.peer] = replaced.incarnation

    def begin(self, peer: Peer) -> None:
        """Note that the replacement of a process takes part."""
        self._lost.pop(peer, None)

    def incarnation(self, peer: Peer) -> int:
        """Return the number of the last replacement of a process; 0 if there is none."""
        return self._incarnations.get(peer, 0)

    def arrive(self, server: Peer, message: EntryArrived) -> None:
        """Note that another server has an entry of a validator."""
        self._arrived[server, Peer("validator", message.validator)] = (message.incarnation, message.number)

    def is_everywhere(self, entry: LogEntry, servers: Iterable[Peer]) -> bool:
        """Return whether other servers have an entry of the present process of its submitter."""
        least, submitter = (self.incarnation(entry.submitter), entry.number), entry.submitter
        return all(self._arrived.get((server, submitter), (0, 0)) >= least for server in servers)

    def note(self, entry: LogEntry) -> None:
        """Note where the reader of an executed entry is now."""
        reader = entry.reader
        # The update of a lost worker that waits at its validator comes after the entry at which its replacement begins.
        self.answered[reader] = max(entry.request, self.answered.get(reader, 0))
        if entry.incarnation:
            self.begun[reader] = entry.incarnation
        elif entry.position is not None:
            self.positions.sent(reader, entry.position)
            self.positions.count(reader)

    def answers(self, entry: LogEntry) -> bool:
        """Return whether the reader of an executed entry waits for its model; a replacement takes part from then on."""
        reader = entry.reader
        if self._lost.get(reader, entry.incarnation) < entry.incarnation:
            self.begin(reader)  # it has not been lost meanwhile
        return entry.request == self.answered[reader]  # else it is an update of a predecessor

    def take_part(self, entry: LogEntry, evaluated: int) -> Send:
        """Return the message to the replacement of a worker which gets its first model by an entry; see `TakePart`."""
        validator = {"validator": entry.submitter.index, "since": entry.since} if self._survives_validators else {}
        return take_part(entry.reader, entry.incarnation, entry.request, entry.position, evaluated, **validator)

    def serves(self, entry: LogEntry) -> bool:
        """Return whether the submitter of an entry, a validator, is its reader or serves it since the same entry."""
        if entry.reader == entry.submitter:
            return True
        validator, _, since = self._service[entry.reader]
        return (validator, since) == (entry.submitter, entry.since)

    def serve(self, validators: tuple[int, ...], since: int) -> Iterator[Send]:
        """Have these validators serve all workers from an entry of the log on, and tell those for whom it is new.

        Args:
            validators: the indices of the validators that are there.
            since: the position of the entry.
        """
        self.validators = validators
        gained, released = defaultdict[Peer, list[Peer]](list), defaultdict[Peer, list[Peer]](list)
        for worker, (before, number, _) in self._service.items():
            validator = self._validator_of(worker)
            incarnation = 0 if validator is None else self.incarnation(validator)
            if (validator, incarnation) == (before, number):
                continue
            self._service[worker] = validator, incarnation, since
            if validator is not None:
                gained[validator].append(worker)
            if before is not None and before != validator:
                released[before].append(worker)
        for validator in self._roster.all_validators():
            if validator.index in validators and (gained[validator] or released[validator]):
                yield Send(validator, self._serve_workers(since, gained[validator], released[validator]))
        for validator, workers in gained.items():
            for worker in workers:
                yield Send(worker, ServedBy(since=since, validator=validator.index))

    def _validator_of(self, worker: Peer) -> Peer | None:
        index = self._roster.validator_of(worker.index, self.validators)
        return None if index is None else Peer("validator", index)

    def _serve_workers(self, since: int, gained: list[Peer], released: list[Peer]) -> ServeWorkers:
        counted = self.positions.counted
        return ServeWorkers(
            since=since,
            requests={str(worker): self.answered.get(worker, 0) for worker in gained},
            begun={str(worker): self.begun.get(worker, 0) for worker in gained},
            positions={str(worker): counted[str(worker)] for worker in gained if str(worker) in counted},
            released=tuple(worker.index for worker in released),
        )

    def state(self) -> State:
        """Return the positions, for a checkpoint; all processes begin again when a run resumes."""
        return self.positions.state()

    def restore(self, state: State) -> None:
        """Restore the positions."""
        self.positions.restore(state)

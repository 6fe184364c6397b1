"""What a server of an asynchronous run knows of each process: whether it is lost, and where its replacement begins."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hpcps.numerics.state import State
from hpcps.protocol.messages import EntryArrived, Peer
from hpcps.protocol.received import Replaced
from hpcps.roles.asynchronous.log import LogEntry
from hpcps.roles.losses import Positions


class AsyncMembership:
    """The processes of a run, of which some are lost or replaced.

    Attributes:
        positions: where each process was after its last update that entered the model.
        answered: the last executed request of each reader.
        begun: the number of the last replacement of each reader that has got a model.
    """

    def __init__(self) -> None:
        """Begin with all processes."""
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
        if entry.position is not None:
            self.positions.sent(reader, entry.position)
            self.positions.count(reader)

    def answers(self, entry: LogEntry) -> bool:
        """Return whether the reader of an executed entry waits for its model; a replacement takes part from then on."""
        reader = entry.reader
        if self._lost.get(reader, entry.incarnation) < entry.incarnation:
            self.begin(reader)  # it has not been lost meanwhile
        return entry.request == self.answered[reader]  # else it is an update of a predecessor

    def served(self, workers: Iterable[Peer]) -> dict[str, Any]:
        """Return the fields of `TakePart` about the workers of a validator."""
        share = [*workers]
        counted = self.positions.counted
        return {
            "requests": {str(worker): self.answered.get(worker, 0) for worker in share},
            "begun": {str(worker): self.begun.get(worker, 0) for worker in share},
            "positions": {str(worker): counted[str(worker)] for worker in share if str(worker) in counted},
        }

    def state(self) -> State:
        """Return the positions, for a checkpoint; all processes begin again when a run resumes."""
        return self.positions.state()

    def restore(self, state: State) -> None:
        """Restore the positions."""
        self.positions.restore(state)

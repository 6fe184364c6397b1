"""How the processes of a run write a checkpoint: it exists only once all parts of it are written."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.errors import RunError
from hpcps.protocol.messages import Flag, PartWritten, Peer
from hpcps.protocol.roster import SERVER_0, Roster
from hpcps.roles.events import Effect, Finish, Seal, Send, Snapped

CHECKPOINT_FLAGS = Flag.SNAPSHOT | Flag.SUSPEND


def report(snapped: Snapped, to: Peer = SERVER_0) -> Send:
    """Return the message that tells the checkpoint coordinator that this process's part is written."""
    return Send(to, PartWritten(position=snapped.position, checksum=snapped.checksum))


class CheckpointParts:
    """The list of server 0 of the processes that have written their parts of the checkpoint under way.

    Attributes:
        open: the round or log position of that checkpoint; None if none is under way.
        due: whether one is due.
        wanted: whether the run stops at the next checkpoint.
        suspending: whether the run stops at the checkpoint under way.
    """

    def __init__(self, roster: Roster) -> None:
        self._everyone = set(roster.with_state())
        self._checksums: dict[Peer, str] = {}
        self.open: int | None = None
        self.due = self.wanted = False
        self.suspending = False

    def begin(self, position: int) -> Flag:
        """Begin a checkpoint; return the flags that tell the others."""
        self.open, self._checksums, self.due = position, {}, False
        self.suspending = self.wanted
        return CHECKPOINT_FLAGS if self.suspending else Flag.SNAPSHOT

    def missing(self) -> tuple[Peer, ...]:
        """Return the processes whose parts are not written yet."""
        if self.open is None:
            return ()
        return tuple(sorted(self._everyone - self._checksums.keys(), key=str))

    def lose(self, peer: Peer) -> None:
        """Give up the checkpoint under way, because a process is lost; the next one is due then.

        Parts of others may hold what comes of the loss.

        Raises:
            RunError: the run stops at that checkpoint.
        """
        if self.open is None:
            return
        if self.suspending:
            raise RunError(
                f"{peer} is lost while the run stops at a checkpoint: run again to go on from the one before"
            )
        self.open, self.due = None, True

    def take(self, source: Peer, part: PartWritten) -> Iterator[Effect]:
        """Note that another process has written its part."""
        yield from self.enter(source, part.position, part.checksum)

    def enter(self, source: Peer, position: int, checksum: str) -> Iterator[Effect]:
        """Note that a part is written; the last one seals the checkpoint, and ends the run if it is to be suspended."""
        if position != self.open:
            return
        self._checksums[source] = checksum
        if self._checksums.keys() == self._everyone:
            yield Seal(position, dict(sorted((str(peer), sum) for peer, sum in self._checksums.items())))
            self.open = None
            if self.suspending:
                yield Finish(suspended=True)

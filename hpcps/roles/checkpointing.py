"""How the processes of a run write a checkpoint: all their parts are of one moment, or there is none."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.messages import Flag, Kind, Message, Peer
from hpcps.roles.cast import Cast
from hpcps.roles.events import Effect, Finish, Seal, Send, Snapped

KEEPER = Peer("server", 0)
"""Who decides when there is a checkpoint, and seals it."""

ECHOED = Flag.SNAPSHOT | Flag.SUSPEND


def report(peer: Peer, run_id: str, snapped: Snapped) -> Send:
    """Tell the keeper that this process's part is written."""
    note = {"checksum": snapped.checksum}
    return Send(KEEPER, Message(Kind.PART, peer, run_id, snapped.moment, note=note))


def periodic(every: int, before: int, after: int) -> bool:
    """Whether a checkpoint is due between two counts of finished epochs."""
    return bool(every) and after // every > before // every


class Ledger:
    """The keeper's: which processes have written their parts of the checkpoint that is being made.

    Attributes:
        open: the moment of that checkpoint; None if none is being made.
        wanted: whether the run shall stop at the next one.
        suspending: whether the run stops at the one being made.
    """

    def __init__(self, cast: Cast) -> None:
        self._everyone = {str(peer) for peer in (*cast.all_servers(), *cast.readers())}
        self._checksums: dict[str, str] = {}
        self.open: int | None = None
        self.wanted = False
        self.suspending = False

    def begin(self, moment: int) -> Flag:
        """Begin a checkpoint; return what to tell the others."""
        self.open, self._checksums = moment, {}
        self.suspending = self.wanted
        return ECHOED if self.suspending else Flag.SNAPSHOT

    def missing(self) -> tuple[Peer, ...]:
        """Return whose parts are not written yet."""
        if self.open is None:
            return ()
        names = sorted(self._everyone - self._checksums.keys())
        return tuple(Peer(role, int(index)) for role, _, index in (name.rpartition("-") for name in names))

    def enter(self, source: Peer, moment: int, checksum: str) -> Iterator[Effect]:
        """Take note of a part; seal the checkpoint with the last one, and end if that is what it was for."""
        if moment != self.open:
            return
        self._checksums[str(source)] = checksum
        if self._checksums.keys() == self._everyone:
            yield Seal(moment, dict(sorted(self._checksums.items())))
            self.open = None
            if self.suspending:
                yield Finish(suspended=True)

"""How the processes of a run write a checkpoint: it exists only once all parts of it are written."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hpcps.protocol.messages import Flag, NoMoreModels, PartWritten, Peer
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.roles.events import Effect, Finish, Seal, Send, Snapped, StopRequested
from hpcps.spec.schema import Checkpoint, Run

CHECKPOINT_FLAGS = Flag.SNAPSHOT | Flag.SUSPEND


def report(snapped: Snapped, to: Peer = SERVER_0) -> Send:
    """Return the message that tells the checkpoint coordinator that this process's part is written."""
    return Send(to, PartWritten(position=snapped.position, checksum=snapped.checksum))


def dismissal(run: Run, flags: Flag) -> tuple[Send, ...]:
    """Return what server 0 sends at its end to the evaluator, if the coordinator, which may be lost, does not."""
    sends = run.topology.evaluators and run.survives_coordinator
    return (Send(EVALUATOR, NoMoreModels(flags=flags)),) if sends else ()


class CheckpointParts:
    """The list of server 0 of the processes that have written their parts of the checkpoint under way.

    A checkpoint has no part of a worker that is lost: the state of its combiner says where it goes on.

    Attributes:
        open: the round or log position of that checkpoint; None if none is under way.
        due: whether one is due.
        wanted: whether the run stops at the next checkpoint.
        wanted_at_epoch: whether it stops at a checkpoint at the end of an epoch.
        at_epoch: whether it does so at the next checkpoint.
        suspending: whether the run stops at the checkpoint under way.
    """

    def __init__(self, roster: Roster, last: Collection[Send] = ()) -> None:
        """Begin without a checkpoint; `last` is what server 0 sends before it ends at one."""
        self._last = last
        self._everyone = frozenset(roster.with_state())
        self._expected: set[Peer] = set()
        self._checksums: dict[Peer, str] = {}
        self.open: int | None = None
        self.due = self.wanted = self.wanted_at_epoch = self.at_epoch = False
        self.suspending = False
        # Whether the checkpoint under way, and the next one, must survive a power failure.
        self._lasting = self._lasts_next = False

    def stop(self, request: StopRequested) -> None:
        """Note that the run is to stop."""
        if request.at_epoch:
            self.wanted_at_epoch = True
        else:
            self.wanted = True

    def is_due(self, settings: Checkpoint, rounds: tuple[int, int], epochs: tuple[int, int]) -> bool:
        """Return whether a checkpoint is due, as `Checkpoint.due` does, and note why: it counts for the next one."""
        self._lasts_next |= settings.due_by_epoch(epochs)
        return settings.due(rounds, epochs)

    def end_epoch(self) -> bool:
        """Note that an epoch ends; return whether the run stops here."""
        if self.wanted_at_epoch:
            self.wanted = self.at_epoch = True
        return self.at_epoch

    def begin(self, position: int, absent: Collection[Peer] = ()) -> Flag:
        """Begin a checkpoint without parts of absent workers; return the flags that tell the others."""
        self.open, self._checksums, self.due = position, {}, False
        self._expected = set(self._everyone.difference(absent))
        self.suspending = self.wanted
        self._lasting, self._lasts_next = self._lasts_next or self.suspending, False
        return CHECKPOINT_FLAGS if self.suspending else Flag.SNAPSHOT

    def missing(self) -> tuple[Peer, ...]:
        """Return the processes whose parts are not written yet."""
        if self.open is None:
            return ()
        return tuple(sorted(self._expected - self._checksums.keys(), key=str))

    def lose(self, peer: Peer) -> Iterator[Effect]:
        """Complete the checkpoint under way without the part of a lost worker.

        Its part may hold steps after an update that did not enter the model, so it does not count if it is written.
        """
        self._expected.discard(peer)
        self._checksums.pop(peer, None)
        yield from self._seal_when_complete()

    def take(self, source: Peer, part: PartWritten) -> Iterator[Effect]:
        """Note that another process has written its part."""
        yield from self.enter(source, part.position, part.checksum)

    def enter(self, source: Peer, position: int, checksum: str) -> Iterator[Effect]:
        """Note that a part is written; the last one seals the checkpoint, and ends the run if it is to be suspended."""
        if position == self.open and source in self._expected:
            self._checksums[source] = checksum
            yield from self._seal_when_complete()

    def _seal_when_complete(self) -> Iterator[Effect]:
        if self.open is not None and self._checksums.keys() == self._expected:
            checksums = dict(sorted((str(peer), sum) for peer, sum in self._checksums.items()))
            yield Seal(self.open, checksums, self._lasting)
            self.open = None
            if self.suspending:
                yield from self._last
                yield Finish(suspended=True)

"""Who takes part in the rounds of a combiner: its workers, without those that are lost; or validators, on a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcps.protocol.messages import Peer


class Membership:
    """The workers of a combiner that decides who is in a round.

    A lost worker gets no further model, and nobody waits for it. Its replacement gets a model when the next round
    closes, and takes part from then on.
    """

    def __init__(self, share: Sequence[Peer]) -> None:
        """Begin with all workers of the combiner."""
        self._share = frozenset(share)
        self._lost: list[Peer] = []
        self._newcomers: set[Peer] = set()

    def __contains__(self, peer: Peer) -> bool:
        """Return whether a process is a worker of the combiner."""
        return peer in self._share

    def lose(self, peer: Peer) -> None:
        """Note that a worker is lost."""
        self._lost.append(peer)
        self._newcomers.discard(peer)

    def replace(self, peer: Peer) -> None:
        """Note that the replacement of a worker has started."""
        self._newcomers.add(peer)

    def release(self, peer: Peer) -> None:
        """Forget what became of a worker: another combiner serves it."""
        self._lost = [each for each in self._lost if each != peer]
        self._newcomers.discard(peer)

    @property
    def newcomers(self) -> int:
        """The number of replacements that wait for their first model."""
        return len(self._newcomers)

    def close(self, answered: Iterable[Peer]) -> tuple[tuple[Peer, ...], tuple[Peer, ...]]:
        """Close a round.

        Args:
            answered: the workers whose answers have come.

        Returns:
            The workers that get the next model, and those that were lost since the last round closed, as often as that.
        """
        lost, newcomers = self._lost, self._newcomers
        self._lost, self._newcomers = [], set()
        return tuple(sorted({*answered}.difference(lost) | newcomers)), tuple(sorted(lost))

    def left(self, peer: Peer) -> bool:
        """Return whether a worker was lost since the last round closed."""
        return peer in self._lost

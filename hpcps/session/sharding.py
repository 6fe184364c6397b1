"""Which aggregator combines each part of a tensor; all processes compute the same, without messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcps.protocol.messages import Peer


class Sharding:
    """Gives each aggregator its share of all tensors.

    A tensor that is divided has a part, or several, for each aggregator, of sizes that are in the ratio of the shares.
    What one aggregator combines goes to them in turn: an aggregator with twice the share gets twice as many turns.

    Attributes:
        aggregators: the processes that combine tensors.
        weights: the share of each, in whole numbers that are in the ratio of the shares.
    """

    def __init__(self, weights: Mapping[Peer, int]) -> None:
        """Begin without turns.

        Args:
            weights: the share of each process; those whose share is 0 combine nothing.
        """
        held = {peer: weight for peer, weight in weights.items() if weight}
        self.aggregators, self.weights = tuple(held), tuple(held.values())
        self._turns: list[Peer] = []
        self._owed = [0] * len(held)

    @staticmethod
    def evenly(world: Iterable[Peer]) -> Sharding:
        """Give each server the same share; without servers, each worker."""
        every = tuple(world)
        servers = [peer for peer in every if peer.role == "server"]
        return Sharding(dict.fromkeys(servers or (peer for peer in every if peer.role == "worker"), 1))

    @property
    def even(self) -> bool:
        """Whether all aggregators have the same share."""
        return len(set(self.weights)) == 1

    def parts(self, size: int, most: int) -> int:
        """Return the number of parts for a tensor in which each aggregator gets its share.

        Args:
            size: the bytes of the tensor.
            most: the most bytes of a part.
        """
        return len(self.weights) * -(-size * max(self.weights) // (sum(self.weights) * most))

    def deal(self, bucket: int, parts: int) -> list[tuple[Peer, int]]:
        """Return the aggregator of each part of a tensor, and the size of the part relative to the others.

        Args:
            bucket: the number of its bucket: successive ones begin at different aggregators.
            parts: the number of its parts.
        """
        if parts == 1:
            return [(self._of_turn(bucket), 1)]
        count = len(self.aggregators)
        places = [(bucket + k) % count for k in range(parts)]
        return [(self.aggregators[place], self.weights[place]) for place in places]

    def _of_turn(self, turn: int) -> Peer:
        """Return the aggregator whose turn it is.

        At each turn, each aggregator is owed its share, and the one that is owed most gets the turn (the smooth
        weighted round robin of nginx). After as many turns as the weights add up to, nobody is owed anything.
        """
        total = sum(self.weights)
        while len(self._turns) <= turn % total:
            self._owed = [owed + weight for owed, weight in zip(self._owed, self.weights, strict=True)]
            place = self._owed.index(max(self._owed))
            self._owed[place] -= total
            self._turns.append(self.aggregators[place])
        return self._turns[turn % total]

"""The updates that an asynchronous server collects before a synchronous rule combines them."""

from __future__ import annotations

import numpy as np

from hpcps.aggregation.outcomes import BlockOutcomes
from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics.kernels import prepare
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.state import State
from hpcps.numerics.updates import Destination
from hpcps.numerics.vectors import copied, on_host
from hpcps.protocol.messages import Peer
from hpcps.roles.asynchronous.log import LogEntry
from hpcps.roles.checks import not_finite
from hpcps.roles.events import Record
from hpcps.roles.weights import UpdateWeights
from hpcps.rules import Context, Rule
from hpcps.rules.base import combine_received


class UpdateBuffer:
    """Copies of the last updates, in the order of the log; once they are `size`, they are combined and forgotten.

    After Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated learning with buffered asynchronous
    aggregation", AISTATS 2022 (arXiv 2106.06639), where the rule is the mean.

    Attributes:
        kept: what the rule keeps from one combination to the next.
    """

    def __init__(self, size: int, rule: Rule, layout: Layout, kept: RuleState, weights: UpdateWeights) -> None:
        """Begin with no update.

        Args:
            size: the number of updates that are combined.
            rule: the rule.
            layout: the blocks of the server's shard, of m elements.
            kept: what the rule keeps.
            weights: how much the updates of workers count.
        """
        self._size, self._rule, self._layout, self._weights = size, rule, layout, weights
        self.kept = kept
        self._updates: list[tuple[Peer, Mask, Vector]] = []
        prepare(size * layout.size)

    def __len__(self) -> int:
        return len(self._updates)

    @property
    def full(self) -> bool:
        """Whether the updates are as many as are combined."""
        return len(self) == self._size

    def put(self, entry: LogEntry, factor: float) -> None:
        """Take a copy of an update, multiplied by the factor of its staleness."""
        assert entry.mask is not None, "an update of the log has blocks"
        assert entry.payload is not None, "an update of the log has blocks"
        payload = copied(entry.payload)
        if factor != 1.0:
            with np.errstate(over="ignore", invalid="ignore"):
                payload *= np.float32(factor)
        self._updates.append((entry.reader, entry.mask.copy(), payload))

    def combine(self, out: Vector) -> tuple[dict[str, object], list[Record]]:
        """Combine the updates into `out`, `[m]`, and forget them.

        Returns:
            The fields of the record: whose updates they were, and what became of their blocks; and records of the
            blocks that are not finite.
        """
        workers, masks, payloads = zip(*self._updates, strict=True)
        self._updates.clear()
        sent = np.array(masks, np.bool_).reshape(len(workers), len(self._layout.blocks))
        context = Context(random=self.kept.random, state=self.kept.arrays)
        weights = self._weights.of(workers)
        found, rejected = combine_received(
            self._rule, self._layout, payloads, sent, context, Destination(out=out), weights
        )
        outcomes = BlockOutcomes(*sent.shape)
        outcomes.add(slice(None), slice(0, sent.shape[1]), sent, rejected, found, self._rule)
        tally = outcomes.tally(np.ones(len(workers), np.bool_))
        records = [not_finite(peer, row) for peer, row in zip(workers, outcomes.not_finite, strict=True) if row.any()]
        return {"combined": [peer.index for peer in workers], **tally.fields()}, records

    def state(self) -> State:
        """Return copies of the updates, and whose they are."""
        arrays = {str(n): on_host(payload) for n, (_, _, payload) in enumerate(self._updates)}
        masks = {f"{n} sent": mask for n, (_, mask, _) in enumerate(self._updates)}
        return State(arrays | masks, {"workers": [peer.index for peer, _, _ in self._updates]})

    def restore(self, state: State) -> None:
        """Go on with the updates of a checkpoint."""
        self._updates = [
            (Peer("worker", index), state.arrays[f"{n} sent"].astype(np.bool_), state.arrays[str(n)].copy())
            for n, index in enumerate(state.facts["workers"])
        ]

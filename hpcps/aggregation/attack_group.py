"""What an attack that knows other updates makes of those that one combiner gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy

import numpy as np

from hpcps.aggregation.rule_state import RuleState, arrays_state, restore_arrays
from hpcps.attacks import AdversaryContext, Omniscient
from hpcps.numerics.blocks import Float64
from hpcps.numerics.kernels import prepare
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, private
from hpcps.numerics.state import State, generators_state, restore_generators
from hpcps.numerics.updates import Destination, Updates
from hpcps.numerics.vectors import clear_not_finite, pack, unpack
from hpcps.protocol.messages import Peer
from hpcps.rules import Arrays, BaseRule, Context, Rule, combine_finite
from hpcps.seeds import generator

_TRIALS = 20
"""How often an attack usually tries the rule in a round, for which kernels are worthwhile with smaller updates."""


class AttackGroup:
    """What the adversary knows of the workers whose updates one combiner combines with each other.

    Attributes:
        workers: their indices.
        byzantine: those of them that are Byzantine.
        layout: the blocks of the d elements of an update.
    """

    def __init__(
        self,
        adversary: Peer,
        index: int,
        workers: Sequence[int],
        byzantine: Collection[int],
        attack: Omniscient,
        rule: BaseRule,
        seed: int,
        layout: Layout,
        allocate: Allocate = private,
        threads: int = 1,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Allocate memory for the updates.

        Args:
            adversary: the role that carries out the attack.
            index: the number of the group.
            workers: the indices of its workers.
            byzantine: the indices of all Byzantine workers of the run.
            attack: the attack.
            rule: the rule of the combiner.
            seed: the seed of the run.
            layout: the blocks of the d elements.
            allocate: returns memory to send crafted updates from.
            threads: the number of threads that try the rule.
            weights: how much the update of each worker of the run counts; by default all count alike.
        """
        self._attack = attack
        self.layout = layout
        self._threads = threads
        self._weights = weights
        self.workers = tuple(workers)
        self.byzantine = tuple(worker for worker in workers if worker in byzantine)
        self._honest = tuple(worker for worker in workers if worker not in byzantine)
        # Two matrices, so that the attack usually gets them as they are.
        self._known: Vector = np.zeros((len(self._honest), layout.size), np.float32)
        self._own: Vector = np.zeros((len(self.byzantine), layout.size), np.float32)
        rows = (*zip(self._honest, self._known, strict=True), *zip(self.byzantine, self._own, strict=True))
        self._rows: dict[int, Vector] = dict(rows)
        self._sent: dict[int, Mask] = {}
        self._outgoing = {worker: allocate(layout.size) for worker in self.byzantine}
        self._random = generator(seed, adversary.role, index, "attack")
        self._arrays = Arrays()
        self._rule = rule if isinstance(rule, Rule) and "rule" in attack.needs else None
        self._rule_state = RuleState(rule, seed, Peer(adversary.role, index))
        if self._rule is not None:
            prepare(_TRIALS * len(workers) * layout.size)

    @property
    def present(self) -> tuple[int, ...]:
        """The workers whose updates are here."""
        return tuple(worker for worker in self.workers if worker in self._sent)

    def mask(self, worker: int) -> Mask:
        """Return the blocks that a worker sends; its update must be here."""
        return self._sent[worker]

    def put(self, worker: int, mask: Mask, payload: Vector) -> None:
        """Copy an update; a block that is not finite becomes zero, because the rule does not get it either."""
        row = self._rows[worker]
        unpack(self.layout, payload, mask, row)
        clear_not_finite(self.layout, row)
        self._sent[worker] = mask

    def clear(self) -> None:
        """Forget the updates, so that those of the next round can come."""
        self._sent.clear()

    def craft(self, round: int, asked: Collection[int]) -> dict[int, Vector]:
        """Compute what Byzantine workers send instead of their updates, from all updates that are here.

        Args:
            round: the round or cycle.
            asked: the Byzantine workers whose crafted updates are needed; their own updates are here.

        Returns:
            The payload for each of them: the blocks that it would send itself. Valid until the next call for the same
            worker. Empty if no honest update is here.
        """
        found: dict[int, Vector] = {}
        honest, own = (tuple(k for k in part if k in self._sent) for part in (self._honest, self.byzantine))
        if asked and honest:
            context = AdversaryContext(
                n=len(honest) + len(own),
                f=len(own),
                layout=self.layout,
                random=self._random,
                round=round,
                state=self._arrays,
                workers=honest,
                byzantine=own,
                rule=None if self._rule is None else self._combined,
            )
            crafted = self._attack.replacements(self._matrix(honest), self._matrix(own), context)
            for worker, row in zip(own, crafted, strict=True):
                if worker in asked:
                    found[worker] = pack(self.layout, row, self._sent[worker], self._outgoing[worker])
        return found

    def follow(self, crafted: Mapping[int, Vector]) -> None:
        """Update the copy of the rule's state, if it has one, by the updates that its combiner gets in this round.

        Those in `crafted` replace the workers' own.
        """
        if self._rule is None or "state" not in self._rule.requires:
            return
        masks, payloads = [], []
        for worker in self.present:
            mask, row = self._sent[worker], self._rows[worker]
            masks.append(mask)
            payloads.append(crafted.get(worker, pack(self.layout, row, mask, np.empty_like(row))))
        sent = np.array(masks, np.bool_).reshape(len(masks), len(self.layout.blocks))
        kept = self._rule_state
        combine_finite(
            self._rule,
            Updates(
                self.layout,
                payloads,
                sent,
                to=Destination(threads=self._threads),
                weights=self._weights_of(len(payloads)),
            ),
            Context(random=kept.random, state=kept.arrays),
        )

    def state(self) -> State:
        """Return the random generators and what the attack and the rule keep, for a checkpoint."""
        streams = generators_state({"attack": self._random})
        return State().having(attack=arrays_state(self._arrays), rule=self._rule_state.state(), streams=streams)

    def updates_state(self) -> State:
        """Return copies of the updates that are here, for a checkpoint of an asynchronous run."""
        arrays = {str(worker): self._rows[worker].copy() for worker in self.present}
        masks = {f"{worker} sent": self._sent[worker] for worker in self.present}
        return State({**arrays, **masks}, {"workers": list(self.present)})

    def restore(self, state: State) -> None:
        """Restore what `state` returned."""
        restore_generators({"attack": self._random}, state.part("streams"))
        restore_arrays(self._arrays, state.part("attack"))
        self._rule_state.restore(state.part("rule"))

    def restore_updates(self, state: State) -> None:
        """Restore what `updates_state` returned."""
        for worker in state.facts["workers"]:
            self._rows[worker][:] = state.arrays[str(worker)]
            self._sent[worker] = state.arrays[f"{worker} sent"]

    def _matrix(self, workers: tuple[int, ...]) -> Vector:
        """Return the updates of some workers, all honest or all Byzantine, `[n, d]`."""
        whole, order = (self._known, self._honest) if workers[0] in self._honest else (self._own, self.byzantine)
        if workers == order:
            return whole
        some: Vector = whole[[order.index(worker) for worker in workers]]
        return some

    def _weights_of(self, rows: int) -> Float64 | None:
        """Return how much rows count, in the order of the workers whose updates are here; None if all count alike."""
        if self._weights is None or rows != len(self.present):
            return None
        return np.array([self._weights[worker] for worker in self.present])

    def _combined(self, updates: Vector) -> Vector:
        """Apply the run's rule to updates `[n, d]`, without a change of its state; see `AdversaryContext.rule`."""
        assert self._rule is not None, "the attack needs the rule"
        if updates.ndim != 2 or updates.shape[1] != self.layout.size:
            raise ValueError(f"rule takes updates [n, {self.layout.size}], not an array {list(updates.shape)}")
        arrays = Arrays(writable="state" in self._rule.requires)
        if "state" in self._rule.requires:
            arrays.update(self._rule_state.arrays)
        context = Context(random=deepcopy(self._rule_state.random), state=arrays)
        rows = Updates.of(np.ascontiguousarray(updates, np.float32), self.layout, self._weights_of(len(updates)))
        return combine_finite(self._rule, rows.onto(Destination(threads=self._threads)), context)[0].update

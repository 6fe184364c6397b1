"""What a Byzantine worker does: the run's attack on its labels, its update and its sending, as the schedule says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcps.attacks import (
    Attack,
    AttackContext,
    ByzantineAttack,
    ClockAttack,
    LabelAttack,
    NoAttack,
    SendingAttack,
    attacked_blocks,
    attackers,
)
from hpcps.numerics import arrays
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.training.trainer import Relabel


class Attacker:
    """Applies the run's attack to one worker, which may be honest."""

    def __init__(
        self,
        peer: Peer,
        attack: ByzantineAttack | NoAttack,
        workers: int,
        seed: int,
        classes: int,
        layout: Layout,
        choice: np.random.Generator,
        noise: np.random.Generator,
    ) -> None:
        """Prepare the attack of a worker.

        Args:
            peer: the worker.
            attack: the attack of the run.
            workers: the number of workers of the run.
            seed: the seed of the run.
            classes: the number of classes of its data.
            layout: the blocks of the model.
            choice: draws the blocks to attack.
            noise: draws what the attack needs.
        """
        self._attack = attack
        self._layout = layout
        self._worker = peer.index
        self._classes = classes
        # Of an attack that knows other updates, only the adversary knows who attacks.
        self._attackers = frozenset() if attack.omniscient else attackers(attack, workers, seed)
        self._choice, self._noise = choice, noise
        # The last model and its last change `[d]`, kept only by those who need them.
        self._model: Vector | None = None
        self._change: Vector | None = None
        self._seen = False
        attacks = not isinstance(attack, NoAttack) and (attack.scope == "block" or self._worker in self._attackers)
        if attacks and "model" in attack.needs:
            self._model, self._change = np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32)

    def relabel(self, round: int, epoch: int) -> Relabel | None:
        """Return what changes the labels of the local steps; None if nothing does."""
        attack = self._attack
        if not isinstance(attack, LabelAttack) or not self._acts(round, epoch):
            return None
        return lambda labels: attack.relabelled(labels, self._classes)

    def corrupt(self, update: Any, sent: Mask, round: int, epoch: int) -> Mask:
        """Corrupt the blocks of an update `[d]` that are attacked.

        A round in which the schedule lets the attack rest draws what it would draw otherwise. So the schedule changes
        the rounds in which the attack acts, and not its choices and its noise in the rounds after that.

        Args:
            update: the update, an array or a tensor on a device; it is changed in place.
            sent: the blocks that would be sent without the attack `[B]`.
            round: the round or cycle.
            epoch: the epochs of the run that are over.

        Returns:
            The blocks that the attack changes, makes late or withholds `[B]`.
        """
        attack = self._attack
        if isinstance(attack, NoAttack) or attack.omniscient:  # then the adversary replaces updates
            return np.zeros_like(sent)
        attacked = attacked_blocks(attack, sent, self._worker, self._attackers, self._choice)
        active = attack.active(round, epoch)
        if isinstance(attack, Attack):

            def context_of(b: int) -> AttackContext:
                block = self._layout.blocks[b]
                change = None if self._change is None else self._change[block.offset : block.stop]
                return AttackContext(self._noise, b, block.name, round, self._worker, change)

            for b in np.flatnonzero(attacked).tolist():
                block = self._layout.blocks[b]
                part = update[block.offset : block.stop]
                values = arrays.on_host(part)  # random numbers are drawn there
                attack.replace(values if active else values.copy(), context_of(b))
                if active and values is not part:
                    part[:] = arrays.like(part, values)
        return attacked if active else np.zeros_like(sent)

    @property
    def remains(self) -> bool:
        """Whether what the encoding loses of the attack enters later updates."""
        return isinstance(self._attack, Attack) and self._attack.remains

    def withholds(self, round: int, epoch: int) -> bool:
        """Return whether the update is not sent."""
        return isinstance(self._attack, SendingAttack) and self._attack.withholds and self._acts(round, epoch)

    def delay(self, round: int, epoch: int) -> float:
        """Return the seconds by which the attack delays the update."""
        return self._attack.delay if isinstance(self._attack, SendingAttack) and self._acts(round, epoch) else 0.0

    def duration_factor(self, round: int, epoch: int) -> float:
        """Return the factor on the worker's seconds per step in its reports to a policy."""
        return self._attack.reported if isinstance(self._attack, ClockAttack) and self._acts(round, epoch) else 1.0

    def _acts(self, round: int, epoch: int) -> bool:
        """Return whether this worker attacks as a whole in a round."""
        attack = self._attack
        return not isinstance(attack, NoAttack) and self._worker in self._attackers and attack.active(round, epoch)

    def see_model(self, read: Callable[[Vector], None]) -> None:
        """Note the model that the worker has got; `read` writes it into a vector `[d]`."""
        if self._model is None or self._change is None:
            return
        self._change[:] = self._model
        read(self._model)
        if self._seen:
            np.subtract(self._model, self._change, out=self._change)
        else:
            self._change[:] = 0.0
        self._seen = True

    def state(self) -> State:
        """Return the last model; a role that resumes gets the next model before it attacks again."""
        return State({} if self._model is None else {"model": self._model}, {"seen": self._seen})

    def restore(self, state: State) -> None:
        """Restore the last model."""
        if self._model is not None:
            self._model[:], self._seen = state.arrays["model"], state.facts["seen"]

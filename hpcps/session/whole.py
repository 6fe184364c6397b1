"""Steps that are combined as a whole: what a rule keeps from one to the next, and the attackers that are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from hpcps.aggregation.attack_group import AttackGroup
from hpcps.attacks import Attack, ByzantineAttack, Omniscient, attackers
from hpcps.compression import Codec, Compressor
from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import ADVERSARY
from hpcps.registry.config import Config, component_in
from hpcps.registry.field import OneOf
from hpcps.roles.update.attacker import Attacker
from hpcps.rules import Rule
from hpcps.seeds import generator


class _Simulated(Config):
    attack: Annotated[ByzantineAttack, OneOf("attacks")]


def attack_of(table: object, compressor: Compressor | None) -> ByzantineAttack:
    """Return the attack of a table; `compressor` is that with which workers send, None if tensors are not encoded.

    Raises:
        SpecError: there is no such attack, its keys are wrong, or a session cannot simulate it.
    """
    attack: ByzantineAttack = component_in(_Simulated, "attack", table)
    reason = ""
    if not isinstance(attack, Attack | Omniscient):
        reason = "it does not change updates, and a session gets nothing else"
    elif "model" in attack.needs:
        reason = "it needs the model, which a session does not get"
    elif attack.from_epoch:
        reason = "a session does not know the epoch: remove from_epoch"
    elif compressor is None:
        if attack.acts_on == "encoding":
            reason = 'no gradient is encoded: give compression=, or leave out acts_on = "encoding"'
    elif attack.acts_on == "update":
        reason = 'a session simulates it on decoded gradients: set acts_on = "encoding", or leave out compression='
    elif compressor.memory == "ef21":
        reason = "a session does not simulate it on ef21, which encodes differences: use another memory"
    if reason:
        raise SpecError(f"attack {attack.kind}: {reason}")
    return attack


class SimulatedAttack:
    """Replaces the updates of Byzantine workers, with the bits that an experiment without validators gets."""

    def __init__(
        self,
        attack: ByzantineAttack,
        rule: Rule,
        seed: int,
        workers: int,
        layout: Layout,
        compressor: Compressor | None = None,
    ) -> None:
        """Choose the attackers.

        Args:
            attack: the attack.
            rule: the rule, which the attack may try.
            seed: the seed of all random numbers, as that of an experiment.
            workers: the number of workers.
            layout: the blocks of the d elements of an update.
            compressor: with which attackers encode the result once more; None if updates are not encoded.
        """
        self._round, self._layout = 0, layout
        self._codecs = [Codec(compressor, layout) for _ in range(workers)] if compressor else []
        self._attack, byzantine = attack, attackers(attack, workers, seed)
        self._group: AttackGroup | None = None
        self._attackers: list[Attacker] = []
        if isinstance(attack, Omniscient):
            self._group = AttackGroup(ADVERSARY, 0, range(workers), byzantine, attack, rule, seed, layout)
        else:
            for k in range(workers):
                streams = (generator(seed, "worker", k, purpose) for purpose in ("attacked blocks", "attack noise"))
                self._attackers.append(Attacker(Peer("worker", k), attack, workers, seed, 0, layout, *streams))

    def replaced(self, updates: Sequence[Vector]) -> list[Vector]:
        """Return the updates of all workers `[n][d]` of the next step, with those of the attackers replaced."""
        found, sent = list(updates), np.ones(len(self._layout.blocks), np.bool_)
        for worker, attacker in enumerate(self._attackers):
            found[worker] = updates[worker].copy()  # the memory of a worker
            attacked = attacker.corrupt(found[worker], sent, self._round, 0)
            self._encode_once_more(worker, found[worker], attacked)
        if self._group is not None:
            for worker, update in enumerate(updates):
                self._group.put(worker, sent, update)
            active = self._attack.active(self._round, 0)
            crafted = self._group.craft(self._round, self._group.byzantine if active else ())
            self._group.follow(crafted)
            self._group.clear()
            for worker, update in crafted.items():
                found[worker] = update
                self._encode_once_more(worker, update, sent)
        self._round += 1
        return found

    def _encode_once_more(self, worker: int, update: Vector, attacked: Mask) -> None:
        """Give the attacked blocks the values that their encoding has; see `UpdateEncoder`."""
        if not self._codecs or not attacked.any():
            return
        codec, layout, places = self._codecs[worker], self._layout, self._layout.spread(attacked)
        room = np.empty(codec.most_elements(layout, 0), np.float32)
        update[places] = codec.decode(layout, 0, attacked, codec.encode(layout, 0, attacked, update[places], room))

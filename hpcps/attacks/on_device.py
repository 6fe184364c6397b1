"""Attacks on the blocks of an update in device memory; they give what they give on the host, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcps.attacks.base import Attack
from hpcps.attacks.constant import ConstantAttack, Infinite, Nan, Zero
from hpcps.attacks.context import AttackContext
from hpcps.attacks.negative import Negative
from hpcps.attacks.sign_flip import SignFlip
from hpcps.numerics.layout import Layout, Mask, Vector

if TYPE_CHECKING:  # runs on the host work without torch
    import torch


def corrupt(
    attack: Attack,
    update: torch.Tensor,
    layout: Layout,
    attacked: Mask,
    context_of: Callable[[int], AttackContext],
    *,
    rests: bool = False,
) -> None:
    """Corrupt the attacked blocks of an update.

    A factor or a constant needs no copy. Other attacks compute on the host, where the random generator is: noise is
    copied to the device, and the attacked blocks are copied to the host before only if the attack needs them.

    Args:
        attack: the attack.
        update: `[d]` float32, contiguous; it is changed in place.
        layout: the blocks of the d elements.
        attacked: the blocks that are corrupted: `[B]`.
        context_of: returns what the attack may use for a block.
        rests: whether the update stays as it is, and the attack only draws what it would draw otherwise.
    """
    import torch

    from hpcps.numerics.device import changes, packing
    from hpcps.numerics.device.upload import upload

    if change := _change(attack):
        if not rests:
            change(layout, update, attacked)
        return
    if not attacked.any():
        return
    size = int(layout.sizes[attacked].sum())
    values: Vector = np.empty(size, np.float32)
    if "own" in attack.needs:
        values = packing.pack(layout, update, attacked, torch.empty(size, device=update.device)).cpu().numpy()
    stop = 0
    for block in np.flatnonzero(attacked).tolist():
        start, stop = stop, stop + int(layout.sizes[block])
        attack.replace(values[start:stop], context_of(block))
    if not rests:
        changes.put(layout, upload(values, update.device), attacked, update)


def _change(attack: Attack) -> Callable[[Layout, torch.Tensor, Mask], None] | None:
    """Return how the device itself changes the attacked blocks; None if the host must compute them.

    It depends on the exact class: a plugin's attack may derive from one of these, and corrupt blocks in another way.
    """
    from hpcps.numerics.device import changes

    if type(attack) is Negative:
        return partial(changes.scale, factor=-attack.scale)
    if type(attack) is SignFlip:
        return partial(changes.scale, factor=-1.0)
    if isinstance(attack, ConstantAttack) and type(attack) in (Zero, Nan, Infinite):
        return partial(changes.fill, value=attack.value)
    return None

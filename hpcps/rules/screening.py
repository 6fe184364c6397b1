"""What every update passes before any rule sees it."""

from __future__ import annotations

import numpy as np

from hpcps.blocks import tiles
from hpcps.layout import Layout, Mask, Vector


def screen(updates: Vector, sent: Mask, layout: Layout) -> Mask:
    """Refuse blocks that have a NaN or an infinity: they become zero, in place, as if they had been skipped.

    Args:
        updates: `[n, d]` float32, changed in place.
        sent: which blocks the workers sent, `[n, B]`.
        layout: the blocks of the d elements.

    Returns:
        Which of the blocks sent were refused, `[n, B]`.
    """
    refused = np.zeros(sent.shape, dtype=np.bool_)
    for tile in tiles(layout, len(updates)):
        finite = np.isfinite(updates[:, tile.columns])
        if not finite.all():
            refused[:, tile.blocks] |= tile.any(~finite)
    for row, index in np.argwhere(refused):
        block = layout.blocks[index]
        updates[row, block.offset : block.stop] = 0.0
    return refused & sent

"""The initial weights, which are the same for every backend."""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from hpcps.numerics.layout import Layout, Vector

DRAWN = 1 << 20
"""Values that are drawn at a time, because they are drawn as float64."""


def draw_weights(layout: Layout, gammas: Set[str], generator: np.random.Generator) -> Vector:
    """Draw the initial weights `[d]`, tensor by tensor in order, like Gluon's default Xavier initializer.

    Weights are uniform within ±sqrt(3 / ((fan in + fan out) / 2)), where the fans of a convolution count its
    kernel's area; biases are 0, gammas 1 and betas 0. (Glorot, Bengio, "Understanding the difficulty of training
    deep feedforward neural networks", 2010, with Gluon's magnitude 3.)

    Args:
        layout: the trainable tensors; those of two dimensions or more have outputs first, inputs second.
        gammas: the names of the scales of normalisation layers.
        generator: draws them.
    """
    flat = np.zeros(layout.size, dtype=np.float32)
    for block in layout.blocks:
        if block.name in gammas:
            flat[block.offset : block.stop] = 1
        elif len(block.shape) > 1:
            area = math.prod(block.shape[2:])
            bound = math.sqrt(3 / ((block.shape[0] + block.shape[1]) * area / 2))
            for start in range(block.offset, block.stop, DRAWN):
                here = flat[start : min(start + DRAWN, block.stop)]
                here[:] = generator.uniform(-bound, bound, len(here))
    return flat

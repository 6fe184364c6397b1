"""Synthetic images that can be learnt: ten classes, each a mixture of three patterns with strong noise.

They have CIFAR-10's shape, so that every network can be tried without files. The small convolutional network reaches a
test accuracy of 97 % after two passes with batch size 32, Nesterov momentum 0.9 and learning rate 0.03.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hpcps import seeds
from hpcps.data.base import Data, Facts
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.numerics.layout import Vector

FACTS = Facts(shape=(3, 32, 32), train=8_000, test=2_000, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
MODES = 3
CONTRAST, NOISE = 12.0, 64.0
"""The standard deviations of the patterns and of the noise, in levels of 255."""
BLOCK = 500
"""Samples that one random generator draws: a role draws only the blocks that it needs."""


def patterns() -> Vector:
    """Draw the patterns, `[classes, modes, c, h, w]`: 4x4 patches of constant colour."""
    channels, height, width = FACTS.shape
    generator = seeds.generator(0, "experiment", 0, "synthetic patterns")
    coarse = generator.standard_normal((FACTS.classes, MODES, channels, height // 4, width // 4), np.float32)
    return CONTRAST * coarse.repeat(4, axis=3).repeat(4, axis=4)


def make_block(part: str, number: int) -> tuple[Labels, np.random.Generator]:
    """Draw the labels of a block; return them and the random generator that draws its images."""
    generator = seeds.generator(0, "experiment", number, f"synthetic {part}")
    return generator.integers(0, FACTS.classes, BLOCK), generator


@dataclass(frozen=True)
class SyntheticPart:
    """The training or the test part; samples are drawn again at each read."""

    name: str
    size: int

    def labels(self) -> Labels:
        """Draw all labels."""
        return np.concatenate([make_block(self.name, number)[0] for number in range(self.size // BLOCK)])

    def read(self, indices: Indices) -> Samples:
        """Draw the samples at `indices`."""
        shapes = patterns()
        images = np.empty((len(indices), *FACTS.shape), dtype=np.uint8)
        labels = np.empty(len(indices), dtype=np.int64)
        for number in np.unique(indices // BLOCK):
            block_labels, generator = make_block(self.name, int(number))
            values = shapes[block_labels, generator.integers(0, MODES, BLOCK)]
            values += NOISE * generator.standard_normal(values.shape, dtype=np.float32) + 128
            here = indices // BLOCK == number
            rows = indices[here] % BLOCK
            images[here] = np.clip(values[rows], 0, 255).astype(np.uint8)
            labels[here] = block_labels[rows]
        return Samples(images, labels)


class Synthetic(Data):
    """Synthetic images that can be learnt, of CIFAR-10's shape, so that every network can be tried without files."""

    facts: ClassVar[Facts] = FACTS

    name: Literal["synthetic"] = "synthetic"

    def open(self) -> tuple[Part, Part]:
        return SyntheticPart("train", FACTS.train), SyntheticPart("test", FACTS.test)

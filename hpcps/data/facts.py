"""The facts about a data set that are known before any of its files is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about a data set that are known before its files are read.

    Attributes:
        shape: the shape of one sample, such as channels, height, width of an image.
        classes: the number of labels.
        train: the number of training samples.
        test: the number of test samples.
        levels: the byte value that means 1.0, such as white; samples of bytes are divided by it.
        mean: the mean of each channel (index of the first dimension), or one for all; it is subtracted after the
            division.
        std: the standard deviation of each channel, or one for all; it is the last divisor.
        augment: whether training samples are images that may be cropped and flipped; a mirrored digit is invalid.
    """

    shape: tuple[int, ...]
    classes: int = 10
    train: int
    test: int
    levels: int = 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: bool = False

    def faults(self) -> list[str]:
        """Return what is wrong with them; nothing if all is right."""
        found = [
            f"{name} is {value!r}: it must be a whole number ≥ 1"
            for name in ("classes", "train", "test", "levels")
            if not _is_count(value := getattr(self, name))
        ]
        if not isinstance(self.shape, tuple) or not self.shape or not all(map(_is_count, self.shape)):
            return [*found, f"shape is {self.shape!r}: it must be a tuple of whole numbers ≥ 1, such as (20,)"]
        for name, least in (("mean", -math.inf), ("std", 0)):
            value = getattr(self, name)
            numbers = isinstance(value, tuple) and all(
                isinstance(each, int | float) and least < each < math.inf for each in value
            )
            if not numbers or len(value) not in (1, self.shape[0]):
                above = " above 0" if least == 0 else ""
                found.append(f"{name} is {value!r}: it must be a tuple of 1 or {self.shape[0]} numbers{above}")
        if self.augment and len(self.shape) != 3:
            found.append(f"augment is for images (channels, height, width), and shape is {self.shape}")
        return found


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1

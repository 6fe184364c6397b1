"""The two parts of a data set, opened, and held to what its facts say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcps.data.base import Data
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.registry.failures import described, errors_of, fault


def open_parts(data: Data) -> tuple[CheckedPart, CheckedPart]:
    """Open a data set: the training part and the test part.

    Raises:
        DataError: a file is missing, truncated or corrupt.
        SpecError: the code of the data set failed, or returned something else than two parts. What the parts return
            raises it, too, where it is not what the facts say.
    """
    with errors_of(data, "its open() failed"):
        parts: Any = data.open()
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not all(map(_is_part, parts)):
        raise fault(
            data,
            f"its open() returned {described(parts)}: it must return two parts, the training part and the test part, "
            "each with labels() and read(indices), such as hpcps.data.InMemory(samples)",
        )
    train, test = parts
    return CheckedPart(data, "training", train, data.facts.train), CheckedPart(data, "test", test, data.facts.test)


@dataclass(frozen=True)
class CheckedPart:
    """A part of a data set; what it returns is what the facts say, or an error for people."""

    data: Data
    name: str
    part: Part
    size: int

    def labels(self) -> Labels:
        """Read all labels, and check them."""
        with errors_of(self.data, f"the labels() of its {self.name} part failed"):
            labels = self.part.labels()
        return self._checked_labels(labels, (self.size,), self.data.facts.split_classes)

    def read(self, indices: Indices) -> Samples:
        """Read the samples at these indices, and check them."""
        with errors_of(self.data, f"the read() of its {self.name} part failed"):
            samples = self.part.read(indices)
        if not isinstance(samples, Samples):
            raise self._fault(f"its read() returned {described(samples)}: it must return hpcps.data.Samples")
        images, shape = samples.images, [len(indices), *self.data.facts.shape]
        if not isinstance(images, np.ndarray) or images.dtype not in (np.uint8, np.float32):
            raise self._fault(f"its samples are {described(images)}: they must be an array of uint8 or float32")
        if list(images.shape) != shape:
            raise self._fault(
                f"{len(indices)} of its samples are an array {list(images.shape)}, and by the facts it should be "
                f"{shape}: correct facts.shape, or what read() returns"
            )
        facts = self.data.facts
        wanted = (len(indices),) if facts.targets == 1 else (len(indices), facts.targets)
        return Samples(images, self._checked_labels(samples.labels, wanted, facts.classes))

    def _checked_labels(self, labels: Any, shape: tuple[int, ...], classes: int) -> Labels:
        if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.ndim != len(shape):
            several = "" if len(shape) == 1 else f", {shape[1]}"
            raise self._fault(f"its labels are {described(labels)}: they must be an array [n{several}] of int64")
        if labels.shape != shape:
            has = len(labels) if len(shape) == 1 else list(labels.shape)
            raise self._fault(f"it has {has} labels for {shape[0]} samples: correct the facts or the labels")
        if shape[0] and not 0 <= labels.min() <= labels.max() < classes:
            raise self._fault(
                f"its labels go from {labels.min()} to {labels.max()}, and by the facts there are {classes} classes: "
                f"they must be from 0 to {classes - 1}"
            )
        return np.ascontiguousarray(labels, np.int64)

    def _fault(self, what: str) -> Exception:
        return fault(self.data, f"{self.name} part: {what}")


def _is_part(part: object) -> bool:
    return callable(getattr(part, "labels", None)) and callable(getattr(part, "read", None))

"""The base class of data sets: their keys in the experiment file, their facts, and a method that opens their files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from hpcps.data.files.source import Source
from hpcps.data.samples import Part, Samples
from hpcps.data.splits import Iid, Split
from hpcps.errors import DataError
from hpcps.registry import Config, OneOf
from hpcps.registry.config import MOST
from hpcps.registry.failures import errors_of, fault


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
            division. None: 0, or without a std that of the training samples in use.
        std: the standard deviation of each channel, or one for all; it is the last divisor. None: 1, or without a mean
            that of the training samples in use (see `hpcps.data.statistics`).
        augment: whether training samples are images that may be cropped and flipped; a mirrored digit is invalid.
        targets: the number of labels of one sample: 1, or for example one for each character of a text.
        groups: the number of labels that `Part.labels()` states, one for each sample, by which splits assign samples to
            shards; None: they are the classes.
    """

    shape: tuple[int, ...]
    classes: int = 10
    train: int
    test: int
    levels: int = 255
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: bool = False
    targets: int = 1
    groups: int | None = None

    @property
    def measured(self) -> bool:
        """Whether mean and std are those of the training samples: neither is given, and samples are no sequences."""
        return self.mean is None and self.std is None and self.targets == 1

    @property
    def split_classes(self) -> int:
        """The number of classes by which splits assign samples to shards."""
        return self.classes if self.groups is None else self.groups

    def faults(self) -> list[str]:
        """Return what is wrong with them; nothing if all is right."""
        found = [
            f"{name} is {value!r}: it must be a whole number ≥ 1"
            for name in ("classes", "train", "test", "levels", "targets", "split_classes")
            if not _is_count(value := getattr(self, name))
        ]
        if not isinstance(self.shape, tuple) or not self.shape or not all(map(_is_count, self.shape)):
            return [*found, f"shape is {self.shape!r}: it must be a tuple of whole numbers ≥ 1, such as (20,)"]
        for name, least in (("mean", -math.inf), ("std", 0)):
            if (value := getattr(self, name)) is None:
                continue
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


MOST_SAMPLES = 10**9
MOST_PIXELS = 4096
"""The largest height and width of an image."""


class Data(Config, ABC):
    """The data set and its division into shards; a subclass adds `name`, `facts` and its own keys."""

    facts: ClassVar[Facts]
    """The facts that are known before any file is read; a property if they depend on keys."""

    source: ClassVar[Source | None] = None
    """The source of the official files; None: there is nothing to download."""

    name: str
    dir: str | None = Field(None, description="Folder with the official files; default: $HPCPS_DATA, else ./data.")
    split: Annotated[Split, OneOf("splits")] = Field(
        Iid(),
        description="How samples are assigned to shards: in file order, sorted by class, or with uneven class "
        "distributions.",
    )
    validation_split: Literal["iid", "as_workers"] = Field(
        "iid",
        description="How the last shard, which the validators use, is drawn if `split` is not iid: `iid`: a uniform "
        "sample, held out before the workers' shards are drawn; `as_workers`: by `split`, like the workers' shards.",
    )
    alpha: float = Field(0.5, gt=0, le=MOST, description="Concentration of the dirichlet split; small is uneven.")
    shards: PositiveInt | None = Field(
        None, le=MOST, description="Number of equal shards; default: workers + 1; required if there are no workers."
    )
    limit: PositiveInt | None = Field(
        None, le=MOST_SAMPLES, description="Number of training samples in use, from the first; default: all."
    )
    test_limit: PositiveInt | None = Field(
        None, le=MOST_SAMPLES, description="Number of test samples in use, from the first; default: all."
    )
    holdout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the training samples that no role trains on: a uniform sample by the seed. Evaluations "
        "then use it in place of the test set, as the runs of a search do.",
    )
    augment: bool | None = Field(
        None,
        description="Random crop (pad 4) and horizontal flip; only for cifar10 and cifar100, where the default is "
        "true.",
    )
    normalise: bool = Field(
        True,
        description="Whether the mean of each channel is subtracted and its standard deviation divides the rest; those "
        "of an own data set are computed from the training samples, unless its facts state them.",
    )
    resize: PositiveInt | None = Field(
        None,
        le=MOST_PIXELS,
        description="Height and width to which images are enlarged, batch by batch, with bilinear interpolation; "
        "default: those of the files.",
    )

    @abstractmethod
    def open(self) -> tuple[Part, Part]:
        """Find the files and return the training part and the test part, without reading much data.

        Raises:
            DataError: a file is missing; the message names it and says what to do.
        """

    def broken(self, path: Path, what: str) -> DataError:
        """Return the error for an official file that is incomplete, corrupt or not of this data set."""
        assert self.source is not None, f"{self.name} has no official files"
        return self.source.broken(self.name, path, what)

    @model_validator(mode="after")
    def _check_facts(self) -> Data:
        with errors_of(self, "its facts are not known"):
            facts = self.facts
        if not isinstance(facts, Facts):
            raise fault(self, f"its facts are {facts!r}: they must be hpcps.data.Facts(...)")
        if wrong := facts.faults():
            raise fault(self, f"its facts are wrong: {'; '.join(wrong)}")
        return self

    @property
    def input_facts(self) -> Facts:
        """The facts about the samples as the network gets them: resized, and normalised with this mean and std."""
        facts = self.facts
        changes: dict[str, Any] = {}
        if not self.normalise:
            changes = {"mean": (0.0,), "std": (1.0,)}
        if self.resize is not None:
            changes["shape"] = (facts.shape[0], self.resize, self.resize)
        return replace(facts, **changes)

    @property
    def limited_size(self) -> int:
        """The number of training samples in use, with those that are held out."""
        return min(self.facts.train, self.limit or self.facts.train)

    @property
    def held_out_size(self) -> int:
        """The number of training samples that are held out for evaluations."""
        return round(self.holdout * self.limited_size)

    @property
    def training_size(self) -> int:
        """The number of training samples that the shards have in total, before the remainder is left out."""
        return self.limited_size - self.held_out_size

    def read_test(self, test: Part) -> Samples:
        """Read the samples of the test part that are in use."""
        return test.read(np.arange(self.facts.test, dtype=np.int64)[: self.test_limit])

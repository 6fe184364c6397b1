"""Splits: how the training samples are assigned to shards, by the names that `data.split` accepts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.data.samples import Indices, Labels
from hpcps.registry import Config
from hpcps.registry.config import MOST, MOST_ROLES


@dataclass(frozen=True)
class Dealing:
    """The arguments of a split.

    Attributes:
        labels: the labels of the samples, `[n]`.
        shards: the number of shards.
        size: the number of samples in each; `shards * size` is at most n.
        random: the random generator of the split, in the same state in every process.
        alpha: `data.alpha`.
        least: the number of samples that every shard needs: those of a batch.
    """

    labels: Labels
    shards: int
    size: int
    random: np.random.Generator
    alpha: float
    least: int = 1


class Split(Config, ABC):
    """How samples are assigned to shards; a subclass adds `kind` and its own keys."""

    alike: ClassVar[bool] = False
    """Whether all shards have the distribution of the whole set, so that the validators' shard is not held out."""

    kind: str

    @property
    def equal(self) -> bool:
        """Whether all shards have the same size; if not, `deal` may return one array of indices for each shard."""
        return True

    @abstractmethod
    def deal(self, dealing: Dealing) -> Indices | Sequence[Indices]:
        """Return the indices of the samples of each shard, `[shards, size]`; no index occurs twice."""


class Iid(Split):
    """Samples are assigned shard after shard in the order of the file, which is random in the official data sets."""

    alike: ClassVar[bool] = True

    kind: Literal["iid"] = "iid"

    def deal(self, dealing: Dealing) -> Indices:
        return np.arange(dealing.shards * dealing.size, dtype=np.int64).reshape(dealing.shards, dealing.size)


class ByClass(Split):
    """Samples are sorted by class and assigned shard after shard, so that a shard has few classes."""

    kind: Literal["by_class"] = "by_class"

    def deal(self, dealing: Dealing) -> Indices:
        order: Indices = np.argsort(dealing.labels, kind="stable")
        return order[: dealing.shards * dealing.size].reshape(dealing.shards, dealing.size)


class GammaSimilarity(Split):
    """A share gamma of each shard is a uniform sample; the rest is sorted by class and assigned shard after shard.

    1 gives shards with the distribution of the whole set, 0 shards with few classes. After Karimireddy, Kale, Mohri,
    Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, section 7,
    which calls it the similarity.
    """

    kind: Literal["gamma_similarity"] = "gamma_similarity"
    gamma: float = Field(0.5, ge=0, le=1, description="Share of the samples of a shard that are a uniform sample.")

    def deal(self, dealing: Dealing) -> Indices:
        shards, size = dealing.shards, dealing.size
        uniform = int(Decimal(repr(self.gamma)) * size)  # in binary floating point 0.29 * 100 is less than 29
        order = dealing.random.permutation(len(dealing.labels))[: shards * size].astype(np.int64, copy=False)
        mixed, rest = np.split(order, [shards * uniform])
        rest = np.sort(rest)
        rest = rest[np.argsort(dealing.labels[rest], kind="stable")]
        return np.hstack([mixed.reshape(shards, uniform), rest.reshape(shards, size - uniform)])


class Pathological(Split):
    """Samples are sorted by class and cut into s equal pieces for each shard; a shard gets s random pieces.

    A piece has samples of one class, or of several neighbouring ones where a class ends inside it. After McMahan,
    Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017, section 3, where s is 2.
    """

    kind: Literal["pathological"] = "pathological"
    classes: int = Field(2, ge=1, le=MOST_ROLES, description="s, the number of pieces of each shard.")

    def deal(self, dealing: Dealing) -> Indices:
        s, shards, size = self.classes, dealing.shards, dealing.size
        order = np.argsort(dealing.labels, kind="stable")[: shards * size]
        owners = dealing.random.permutation(np.repeat(np.arange(shards), s))
        number = np.empty_like(owners)  # which of its owner's pieces a piece is
        number[np.argsort(owners, kind="stable")] = np.tile(np.arange(s), shards)
        pieces = np.repeat(owners, (size + number) // s)  # sizes that differ by one sample at most
        return order[np.argsort(pieces, kind="stable")].reshape(shards, size).astype(np.int64, copy=False)


class LogNormal(Split):
    """Uniform samples of different sizes: the sizes are proportional to draws from a log-normal distribution.

    After Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated learning based on dynamic
    regularization", ICLR 2021, section 4, where sigma is 0.3.
    """

    kind: Literal["log_normal"] = "log_normal"
    sigma: float = Field(
        0.3, ge=0, le=10, description="Standard deviation of the logarithms of the sizes; 0: equal shards."
    )

    @property
    def equal(self) -> bool:
        return False

    def deal(self, dealing: Dealing) -> Sequence[Indices]:
        shards, total = dealing.shards, dealing.shards * dealing.size
        drawn = dealing.random.lognormal(0.0, self.sigma, shards)
        ends = np.rint(np.cumsum(drawn) / drawn.sum() * total).astype(np.int64)[:-1]
        order = dealing.random.permutation(len(dealing.labels))[:total].astype(np.int64, copy=False)
        return [np.sort(places) for places in np.split(order, ends)]


_DRAWS = 1000
"""The largest number of draws until every shard has enough samples."""


class Dirichlet(Split):
    """Uneven class distributions, drawn from a Dirichlet distribution with concentration alpha.

    `draws = "per_worker"`: each shard draws its class probabilities around those of the whole set, and then its samples
    by these probabilities without replacement; a class that has no samples left is excluded from later draws. All
    shards have the same size. After Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
    federated visual classification", 2019, section 3.

    `draws = "per_class"`: each class draws the shares of its samples that the shards get, so that shards differ in
    size, too. The draw is repeated until every shard fills a batch. After Li, Diao, Chen and He, "Federated learning on
    non-IID data silos: an experimental study", ICDE 2022, section IV-B.

    For alpha towards 0 a shard has one class, or a class is in one shard; towards infinity all shards have the
    distribution of the whole set.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    draws: Literal["per_worker", "per_class"] = Field(
        "per_worker",
        description="What is drawn: `per_worker`, the class probabilities of each shard; `per_class`, the shares of "
        "each class that the shards get.",
    )
    alpha: float | None = Field(None, gt=0, le=MOST, description="Concentration; small is uneven; default: data.alpha.")

    @property
    def equal(self) -> bool:
        return self.draws == "per_worker"

    def deal(self, dealing: Dealing) -> Indices | Sequence[Indices]:
        alpha = dealing.alpha if self.alpha is None else self.alpha
        return _per_shard(dealing, alpha) if self.draws == "per_worker" else _per_class(dealing, alpha)


def _per_shard(dealing: Dealing, alpha: float) -> Indices:
    labels, random, size = dealing.labels, dealing.random, dealing.size
    classes, counts = np.unique(labels, return_counts=True)
    waiting = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
    left = counts.copy()
    result = np.empty((dealing.shards, size), dtype=np.int64)
    for shard in range(dealing.shards):
        # For a very small alpha all probabilities but one underflow to 0, and that class may have too few samples.
        mixture = np.maximum(random.dirichlet(alpha * counts / len(labels) * len(classes)), 1e-12)
        taken = np.zeros_like(left)
        while (missing := size - int(taken.sum())) > 0:
            open_classes = mixture * (left > taken)
            taken += random.multinomial(missing, open_classes / open_classes.sum())
            np.minimum(taken, left, out=taken)
        drawn = [waiting[c][left[c] - taken[c] : left[c]] for c in range(len(classes))]
        result[shard] = np.sort(np.concatenate(drawn))
        left -= taken
    return result


def _per_class(dealing: Dealing, alpha: float) -> list[Indices]:
    labels, random, shards = dealing.labels, dealing.random, dealing.shards
    members = [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    for _ in range(_DRAWS):
        shares = random.dirichlet(np.full(shards, alpha), len(members))
        ends = (np.cumsum(shares, axis=1)[:, :-1] * [[len(places)] for places in members]).astype(np.int64)
        sizes = np.diff(ends, axis=1, prepend=0, append=[[len(places)] for places in members]).sum(axis=0)
        if sizes.min() >= dealing.least:
            break
    parts = [np.split(places, end) for places, end in zip(members, ends, strict=True)]
    return [np.sort(np.concatenate(of_shard)) for of_shard in zip(*parts, strict=True)]

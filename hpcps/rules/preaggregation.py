"""What is done with the updates before a rule combines them: each resulting row is a weighted sum of updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.definitions import SLIVER
from hpcps.numerics.mixture import Mixture, combined, mixed_products
from hpcps.numerics.operations import (
    factors_to_bound,
    finite_products,
    gram,
    mean_of_ranks,
    norms_gram,
    over_blocks,
    reference_gram,
    screen,
    squared_distances,
)
from hpcps.numerics.updates import Destination, NotFiniteError, Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST_ROLES
from hpcps.registry.failures import described, errors_of, returned
from hpcps.registry.kinds import not_among, not_one_of
from hpcps.rules.context import DEFAULT, Tolerance, count
from hpcps.rules.stage import CombiningStage, prior_weights, too_few

Need = Literal["random"]
"""A value that a pre-aggregator may need in addition to the inner products: the combiner's random generator."""

Compares = Literal["pairs", "norms", "extremes", "nothing"]


class PreAggregator(CombiningStage, ABC):
    """Replaces the updates by weighted sums of them; the subclass's fields are its keys, `kind` is its name."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What it needs besides the inner products. The partitions of a round draw random numbers independently."""

    compares: ClassVar[Compares] = "pairs"
    """The inner products that `weights` uses: those of all pairs, or none but the squared norms; others may be zero.
    One that uses only norms scales the rows: its weights are a diagonal matrix. With `extremes` the inner products are
    `[n + 2, n + 2]`: those of each row with the smallest and with the largest value of each coordinate, which are the
    last two rows, and the squared norms; others are zero."""

    @property
    def scope(self) -> Literal["block", "vector"]:
        """What one decision is about: all of an update by default."""
        return "vector"

    def byzantine(self, n: int, rule: int | None) -> int:
        """Return f, the number of Byzantine updates to expect among n.

        Args:
            n: the number of updates that the combiner received, before any pre-aggregator.
            rule: the number that the rule after it tolerates; None if it has none.
        """
        return count(DEFAULT, n) if rule is None else rule

    def remaining(self, n: int) -> int:
        """Return the number of rows that result from n rows."""
        return n

    def unable(self, n: int, f: int) -> str:
        """Return why n rows, up to f of them Byzantine, cannot be pre-aggregated; empty if they can.

        By default, why they are fewer than `fewest`. The result of a round that returns a reason is zero.
        """
        return too_few(self, n, f)

    @abstractmethod
    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        """Return the weight of each row in each resulting row: `[m, n]`, finite.

        One that is `weighted` gets a further argument, `prior`: how much each row counts, `[n]`, with the sum n. Its
        rows are as many as before, and each counts as the row in its place did.

        Args:
            products: the inner products of all pairs of rows, `[n, n]`, as far as it `compares`, which see.
            f: the number of Byzantine rows to expect.
            random: the combiner's random generator, if it needs one.
        """

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"needs": sorted(cls.needs), "weighted": cls.weighted}

    @classmethod
    def faults(cls) -> list[str]:
        return not_among(cls, "needs", get_args(Need)) + not_one_of(cls, "compares", get_args(Compares))


class TolerantPreAggregator(PreAggregator, ABC):
    """A pre-aggregator that depends on the number of Byzantine updates."""

    bound: ClassVar[tuple[int, int]] = (2, 1)

    f: Tolerance | None = Field(
        None,
        description="Number of Byzantine updates among those of a combiner, a whole number; or their share, below 0.5, "
        "which is rounded down. Default: that of the rule, or 0.2 if the rule has none.",
    )

    def byzantine(self, n: int, rule: int | None) -> int:
        return super().byzantine(n, rule) if self.f is None else count(self.f, n)

    def fewest(self, f: int) -> int:
        return f + 1


class DecidingPreAggregator(PreAggregator, ABC):
    """A pre-aggregator that can decide on whole updates or on each block apart from the others."""

    per: Literal["vector", "block"] = Field(
        "vector", description="What one decision is about: the whole update, or each block apart from the others."
    )

    @property
    def scope(self) -> Literal["block", "vector"]:
        return self.per


class Clipping(DecidingPreAggregator):
    """Scales the updates with a larger norm than the radius down to it.

    After Sun, Kairouz, Suresh and McMahan, "Can you really backdoor federated learning?", arXiv 1911.07963.
    """

    compares: ClassVar[Compares] = "norms"
    weighted: ClassVar[bool] = True

    kind: Literal["clipping"] = "clipping"
    radius: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="The largest norm of an update.")

    def weights(
        self, products: Float64, f: int, random: np.random.Generator | None, prior: Float64 | None = None
    ) -> Float64:
        norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
        return np.diag(self.radius / np.maximum(norms, self.radius))


class Arc(DecidingPreAggregator, TolerantPreAggregator):
    """Adaptive robust clipping: scales the k updates with the largest norms down to the next largest norm.

    k is 2 f (n - f) / n, rounded down. After Allouah, Guerraoui, Gupta, Jellouli, Rizk and Stephan, "Adaptive gradient
    clipping for robust federated learning", ICLR 2025.
    """

    compares: ClassVar[Compares] = "norms"

    unweighted: ClassVar[str] = "it scales a number of updates, and no weighted form of that is standard"

    kind: Literal["arc"] = "arc"

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        n = len(products)
        norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
        largest = np.sort(norms)[n - 1 - 2 * f * (n - f) // n]
        return np.diag(factors_to_bound(norms, largest))


class Nnm(DecidingPreAggregator, TolerantPreAggregator):
    """Nearest-neighbour mixing: each update becomes the mean of the n - f updates nearest to it, itself among them.

    Of updates at the same distance, the first are taken. With weights it is the weighted mean of the nearest updates
    that have the share (n - f) / n of the sum of weights; an update that is taken in part counts with that part of its
    weight. After Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by mixing: a recipe for optimal
    Byzantine ML under heterogeneity", AISTATS 2023.
    """

    weighted: ClassVar[bool] = True

    kind: Literal["nnm"] = "nnm"

    def weights(
        self, products: Float64, f: int, random: np.random.Generator | None, prior: Float64 | None = None
    ) -> Float64:
        n = len(products)
        distances = squared_distances(products)
        np.fill_diagonal(distances, -1.0)  # an update is its own nearest, also among equal ones
        found, order = np.zeros((n, n)), np.argsort(distances, axis=1, kind="stable")
        taken = np.minimum(np.cumsum(prior_weights(prior, n)[order], axis=1), n - f)
        parts = np.diff(taken, axis=1, prepend=0.0)
        parts[parts <= SLIVER * n] = 0.0  # else rounding lets a part of a huge update in
        np.put_along_axis(found, order, parts / parts.sum(axis=1, keepdims=True), axis=1)
        return found


class Bucketing(TolerantPreAggregator):
    """Puts the updates into buckets in random order, and replaces each bucket by its mean; the last one may be smaller.

    The number of Byzantine updates that the rule expects stays the same, so there must be more than 2 f buckets. After
    Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"random"})
    compares: ClassVar[Compares] = "nothing"

    unweighted: ClassVar[str] = "its buckets hold a number of updates, and would not count alike"

    kind: Literal["bucketing"] = "bucketing"
    size: int = Field(2, ge=1, le=MOST_ROLES, description="Number of updates in a bucket.")

    def remaining(self, n: int) -> int:
        return -(-n // self.size)

    def fewest(self, f: int) -> int:
        return 2 * f * self.size + 1

    def unable(self, n: int, f: int) -> str:
        if n >= self.fewest(f):
            return ""
        buckets = self.remaining(n)
        return f"bucketing needs more than 2 f buckets, and f = {f} with {buckets} buckets of {n}"

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        assert random is not None, "bucketing needs random numbers"
        n = len(products)
        buckets = np.arange(n) // self.size
        found = np.zeros((self.remaining(n), n))
        found[buckets, random.permutation(n)] = 1 / np.bincount(buckets)[buckets]
        return found


class Foundation(DecidingPreAggregator):
    """Adds copies of the update that is farthest from both extremes.

    With the smallest and the largest value of each coordinate, the score of an update is the smaller one of its
    distances to these two vectors; the update with the largest score is copied, of equal ones the first. The number of
    Byzantine updates that the rule expects stays the same, so if the copied update is Byzantine, the rule meets more.
    After Fang, Nabavirazavi, Liu, Sun, Iyengar and Yang, "Do we really need to design new Byzantine-robust aggregation
    rules?", NDSS 2025, where trimmed mean and median follow.
    """

    unweighted: ClassVar[str] = "it adds copies, and would have to choose how much these count"
    compares: ClassVar[Compares] = "extremes"

    kind: Literal["foundation"] = "foundation"
    copies: int | None = Field(
        None, ge=0, le=MOST_ROLES, description="Number of copies; by default n / 2, rounded down, of n updates."
    )

    def remaining(self, n: int) -> int:
        return n + (n // 2 if self.copies is None else self.copies)

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        n = len(products) - 2
        copied = int(np.argmax(squared_distances(products)[n:, :n].min(axis=0)))
        found = np.zeros((self.remaining(n), n))
        found[:n], found[n:, copied] = np.eye(n), 1.0
        return found


def mixture(
    stages: Sequence[tuple[PreAggregator, int]], updates: Updates, random: np.random.Generator | None
) -> Mixture:
    """Return the rows that pre-aggregators make of updates, one pre-aggregator after the other.

    Args:
        stages: the pre-aggregators, with the number of Byzantine updates that each expects.
        updates: n > 0 updates of one or more blocks.
        random: the combiner's random generator, if one of them needs it.

    Raises:
        NotFiniteError: the updates are not finite.
        SpecError: a plugin's `weights` failed or returned something else; the message names it, its file and the line.
    """
    n, products = len(updates), None
    match _compares([stage for stage, _ in stages]):
        case "pairs":
            current = products = finite_products(gram(updates), updates)
        case "norms":
            current = finite_products(norms_gram(updates), updates)
        case _:
            if not updates.finite and screen(updates).any():
                raise NotFiniteError
            current = np.zeros((1, n, n))
    if all(stage.scope == "vector" for stage, _ in stages):
        current = over_blocks(current)[None]
    weights = np.eye(n)[None]
    for place, (stage, f) in enumerate(stages):
        used = current
        if stage.compares == "extremes":
            used = _extremes(Mixture(updates, weights, products) if place else updates)
        whole = [over_blocks(used)] if stage.scope == "vector" else [*used]
        here = np.stack([_weights(stage, each, f, random, updates) for each in whole])
        weights, current = combined(here, weights), mixed_products(here, current)
    return Mixture(updates, weights, products)


def _extremes(rows: Updates) -> Float64:
    """Return the inner products of finite rows with the least and with the greatest value of each coordinate.

    Returns:
        For each block, those that `PreAggregator.compares` names: `[B, n + 2, n + 2]`.
    """
    n, size = len(rows), rows.layout.size
    found = np.zeros((len(rows.layout.blocks), n + 2, n + 2))
    for place, rank in ((n, 0), (n + 1, n - 1)):
        apart = rows.onto(Destination(out=rows.empty(size), threads=rows.to.threads))
        edge = mean_of_ranks(apart, rank, rank + 1).update
        products = gram(rows, edge) if rows.lazy else reference_gram(rows, edge)
        each = np.arange(n)
        found[:, each, each] = products[:, each, each]
        found[:, place, :n] = found[:, :n, place] = products[:, n, :n]
        found[:, place, place] = products[:, n, n]
    return found


def _compares(stages: Sequence[PreAggregator]) -> Compares:
    """Return the inner products of the updates that all pre-aggregators together use."""
    used = [stage.compares for stage in stages]
    scaled = len([*takewhile(lambda each: each == "norms", used)])  # the norms of scaled rows follow from the norms
    if "pairs" in used or "norms" in used[scaled:]:
        return "pairs"
    return "norms" if scaled else "nothing"


def _weights(
    stage: PreAggregator, products: Float64, f: int, random: np.random.Generator | None, updates: Updates
) -> Float64:
    """Call `PreAggregator.weights`, and check what it returns."""
    n = len(products) - 2 * (stage.compares == "extremes")
    with errors_of(stage, "its weights() failed", foreign=True):
        weigh: Callable[..., object] = stage.weights
        # Stages that change the number of rows take no weights, so that all rows count alike after them.
        rows = updates.relative_weights if n == len(updates) else np.ones(n)
        found = weigh(products, f, random if "random" in stage.needs else None, *([rows] if stage.weighted else []))
    shape = (n if stage.weighted else stage.remaining(n), n)
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind not in "fiub":
        raise returned(stage, "weights", f"{described(found)}: it must be an array {list(shape)}")
    if not np.isfinite(found).all():
        raise returned(stage, "weights", "weights that are not finite")
    return found.astype(np.float64)

"""The base class of attacks that know the honest updates of a round; means, deviations and distances of the updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.attacks.base import ByzantineAttack, Need
from hpcps.numerics.arrays import as_numpy, like
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.operations import gram, screen
from hpcps.numerics.updates import Updates
from hpcps.registry.failures import described, errors_of, returned
from hpcps.rules.context import Arrays

_STRIP = 1 << 20
"""Elements of a strip, over all rows: 8 MiB in float64."""
_COLUMNS = 1 << 11
"""The minimum number of columns of a strip."""


@dataclass(frozen=True)
class Moments:
    """The mean and the standard deviation of rows, per coordinate.

    Attributes:
        mean: `[d]`.
        deviation: `[d]`, from the sum of squares divided by h - 1; zero for one row. It is exactly zero where all rows
            have the same value.
    """

    mean: Float64
    deviation: Float64

    @classmethod
    def of(cls, rows: Vector) -> Moments:
        """Return the moments of rows `[h, d]`, h > 0. No copy of all rows is made."""
        h, d = rows.shape
        mean, deviation = np.empty(d), np.zeros(d)
        for columns in strips(h, d):
            values = rows[:, columns].astype(np.float64)
            mean[columns] = values.sum(axis=0) / h
            if h > 1:
                values -= mean[columns]
                np.multiply(values, values, out=values)
                deviation[columns] = np.sqrt(values.sum(axis=0) / (h - 1))
        return cls(mean, deviation)


def strips(rows: int, size: int) -> Iterator[slice]:
    """Divide `size` coordinates into ranges of which `rows` rows take a few megabytes."""
    step = max(_COLUMNS, _STRIP // max(rows, 1))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def centred_products(rows: Vector, mean: Float64, unit: float, extra: Vector | None = None) -> Float64:
    """Return the inner products of the rows' differences to their mean: `[h, h]`, or `[h + 1, h + 1]` with one more.

    The differences are rounded to float32 after the mean is subtracted. So the distances of rows that are close to each
    other have a relative error of 1e-7, however far the rows are from zero.

    Args:
        rows: `[h, d]` float32, all finite.
        mean: their mean `[d]`.
        unit: a power of 2 by which the differences are divided, near the largest of them, so that all fit float32.
        extra: one more vector `[d]`, which becomes the last row and column; it is not centred.
    """
    h, d = rows.shape
    m = h if extra is None else h + 1
    total = np.zeros((m, m))
    for columns in strips(h, d):
        differences = ((rows[:, columns] - mean[columns]) / unit).astype(np.float32)
        layout = Layout.of([("", (columns.stop - columns.start,))])
        total += gram(Updates.of(differences, layout), None if extra is None else extra[columns])[0]
    return total


def power_of_two(size: float) -> float:
    """Return the smallest power of 2 above a size; 1 for the size 0."""
    return float(np.ldexp(1.0, int(np.frexp(size)[1]))) if size > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class AdversaryContext:
    """The arguments of an omniscient attack that accompany the updates of one round of one combiner.

    Attributes:
        n: the number of participants, h + b.
        f: the number of Byzantine participants, b.
        layout: the blocks of the d elements.
        random: the adversary's random generator for this combiner, which checkpoints save.
        round: the round; in asynchronous training, the cycle of the worker whose update is replaced.
        state: arrays by name that the attack keeps from one round of this combiner to the next, and which checkpoints
            save. Values are copied when they are set; the copies may be changed in place.
        workers: the indices of the workers of the honest rows, `[h]`.
        byzantine: the indices of the workers of the own rows, `[b]`.
        rule: if the attack needs `rule`, a function of updates `[n, d]` float32: the update `[d]` that the run's rule
            makes of them; a new array. Its rows are the honest participants and the Byzantine ones, in any order and
            number; blocks that are not finite count as zero. It does not change the state of the rule. In a run with
            weights, as many rows as there are participants count as those do, in the order of their indices.
    """

    n: int
    f: int
    layout: Layout
    random: np.random.Generator
    round: int = 0
    state: MutableMapping[str, NDArray[Any]] = field(default_factory=dict)
    workers: tuple[int, ...] = ()
    byzantine: tuple[int, ...] = ()
    rule: Callable[[Vector], Vector] | None = None


class Omniscient(ByzantineAttack, ABC):
    """An attack that knows all honest updates of a combiner. The adversary, a process of its own, computes it.

    The adversary replaces the updates that Byzantine workers send; these workers train as honest ones do.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"honest"})
    may_need: ClassVar[tuple[Need, ...]] = ("honest", "own", "rule")

    rate: float = Field(0.2, ge=0, le=1, description="Share of workers that are Byzantine, 0 to 1.")
    scope: Literal["worker"] = Field(
        "worker", description="floor(rate * workers) fixed attackers send what the adversary computes."
    )

    @abstractmethod
    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        """Compute what the Byzantine participants of one round of one combiner send.

        Args:
            honest: the updates of the h > 0 honest participants, in worker order, `[h, d]` float32, read-only. A block
                that is skipped or not finite is zero, as for the rule. In asynchronous training: the last update of
                every honest worker that has sent one.
            own: what the b > 0 Byzantine participants would send, in worker order, `[b, d]` float32, as `honest`;
                zeros if the attack does not need `own`.
            context: what the attack may use in addition to them.

        Returns:
            The update of all Byzantine participants `[d]`, or one for each of them `[b, d]`; in float32 or in another
            type, which is rounded to it. A Byzantine worker skips the blocks that it would skip without the attack.
        """

    def replacements(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        """Call `craft`, and check what it returns.

        Returns:
            The update of each Byzantine participant, `[b, d]` float32; it may be read-only.

        Raises:
            SpecError: a plugin's or package's `craft` failed, or it returned something else; the message names the
                attack, its file and the line.
        """
        with errors_of(self, "its craft() failed", foreign=True), np.errstate(over="ignore", invalid="ignore"):
            found: object = self.craft(_read_only(honest), self._known_own(own), context)
        shapes = (own.shape, own.shape[1:])
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu" or found.shape not in shapes:
            what = f"{described(found)}: it must return an array {list(shapes[1])} or {list(shapes[0])}"
            raise returned(self, "craft", what)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.broadcast_to(found.astype(np.float32, copy=False), own.shape)

    def _known_own(self, own: Vector) -> Vector:
        """Return what the Byzantine workers would send, read-only; zeros if the attack does not need it."""
        return _read_only(own) if "own" in self.needs else np.broadcast_to(np.float32(0), own.shape)

    @classmethod
    def faults(cls) -> list[str]:
        found = super().faults()
        if not found and not cls.needs & {"honest", "rule"}:
            found.append('its needs must contain "honest" or "rule": an attack without both derives from Attack')
        return found

    def __call__(
        self,
        honest: Any,
        *,
        own: Any = None,
        f: int = 1,
        blocks: Sequence[int] | None = None,
        random: np.random.Generator | None = None,
        rule: Callable[[Vector], Any] | None = None,
        state: MutableMapping[str, NDArray[Any]] | None = None,
    ) -> Any:
        """Compute the attack outside of a run, such as in a notebook: `Ipm(epsilon=0.5)(honest, f=2)`.

        Args:
            honest: the honest updates `[h, d]`, h > 0, a numpy array or a torch tensor of any floating type and device;
                blocks that are not finite count as zero.
            own: what the Byzantine workers would send, `[f, d]`; zeros by default.
            f: the number of Byzantine workers, from 1.
            blocks: the sizes of the blocks of the d elements; by default they are one block.
            random: the adversary's random generator; by default a new one with a new seed.
            rule: for attacks that need it, a function of updates `[n, d]` that returns their combination `[d]`, such as
                `hpcps.rules.Krum(f=2)`.
            state: for attacks that keep arrays from one round to the next, the same dict in each call; by default this
                is the first round.

        Returns:
            What `craft` returns, `[d]` or `[f, d]`, of the same type and on the same device as `honest`.

        Raises:
            ValueError: an array has the wrong shape, or something that the attack needs is missing.
        """
        if not isinstance(random, np.random.Generator | None):
            raise ValueError(f"random must be a random generator, such as numpy.random.default_rng(1), not {random!r}")
        if "rule" in self.needs and rule is None:
            raise ValueError(f"{self.kind} needs rule: give it, such as rule=hpcps.rules.Median()")
        if isinstance(f, bool) or not isinstance(f, int | np.integer) or f < 1:
            raise ValueError(f"f must be a whole number from 1, not {f!r}")
        rows = as_numpy(honest, 2, "honest")
        if not len(rows):
            raise ValueError("honest must have one update or more")
        size = rows.shape[1]
        mine = np.zeros((f, size), np.float32) if own is None else as_numpy(own, 2, "own")
        if mine.shape != (f, size):
            raise ValueError(f"own must have the shape {[f, size]}, not {list(mine.shape)}")
        layout = Layout.of_sizes((size,) if blocks is None else blocks, size)
        h = len(rows)
        context = AdversaryContext(
            n=h + int(f),
            f=int(f),
            layout=layout,
            random=random or np.random.default_rng(),
            workers=tuple(range(h)),
            byzantine=tuple(range(h, h + f)),
            rule=rule,
            state=Arrays() if state is None else state,
        )
        with np.errstate(over="ignore", invalid="ignore"):
            crafted = self.craft(_usable(rows, layout), self._known_own(_usable(mine, layout)), context)
            return like(honest, np.asarray(crafted, np.float32))


def _usable(rows: Vector, layout: Layout) -> Vector:
    """Return the updates `[n, d]` of a caller outside of a run as `craft` gets those of a run.

    Blocks that are not finite are zero. The array is read-only: it may be the caller's.
    """
    updates = Updates.of(rows, layout)
    refused = screen(updates)
    if refused.any():
        rows = updates.without(refused).tile(slice(0, layout.size))
    return _read_only(rows)


def _read_only(rows: Vector) -> Vector:
    """Return a view of updates that cannot be written to: they may be those of the next round or of the caller."""
    view = rows.view()
    view.flags.writeable = False
    return view

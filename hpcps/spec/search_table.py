"""The keys of the `[search]` table of an experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from hpcps.registry import Config
from hpcps.registry.config import MOST
from hpcps.spec.keys import Table, keys_of


class _Search(Config):
    epochs: PositiveInt = Field(
        ..., le=MOST, description="Epochs of each run of the search; with `halving`, of the first rung."
    )
    holdout: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of the training samples that the runs of the search do not train on, and are evaluated on.",
    )
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, le=2**63 - 1)], ...], Field(strict=False, max_length=1000)] = (
        Field((), description="Seeds of the runs of each configuration; default: the first seed of the file.")
    )
    per: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Swept keys: values are chosen separately for each combination of their values."
    )
    score: Literal["accuracy", "loss"] = Field(
        "accuracy", description="The configuration with the highest accuracy, or the lowest loss, is chosen."
    )
    over: Literal["worst", "mean"] = Field(
        "worst",
        description="The score of a configuration that several points of the sweep share: the worst of theirs, or the "
        "mean.",
    )
    values: dict[str, Any] = Field(
        ...,
        description="The keys to search: a list of values for each; with `random` and `halving` also a range, such as "
        "`{ low = 0.001, high = 1.0, log = true }`.",
    )


class GridSearch(_Search):
    """All combinations of the values."""

    kind: Literal["grid"] = "grid"


class _Drawn(_Search):
    seed: int = Field(1, ge=0, le=2**63 - 1, description="Seed of the drawn values.")


class RandomSearch(_Drawn):
    """Values that are drawn independently and uniformly (with `log`, their logarithms) from lists and ranges."""

    kind: Literal["random"] = "random"
    samples: PositiveInt = Field(..., le=MOST, description="Number of configurations to draw; equal ones run once.")


class HalvingSearch(_Drawn):
    """Successive halving: the best configurations of each rung get more epochs, until one is left.

    The runs of each rung begin anew, with `factor` times the epochs of the rung before.
    """

    kind: Literal["halving"] = "halving"
    samples: PositiveInt | None = Field(
        None, le=MOST, description="Number of configurations to draw; default: all combinations of the lists."
    )
    factor: int = Field(
        3, ge=2, le=MOST, description="A rung keeps one of this many configurations, rounded up, with more epochs."
    )

    def sizes(self, configurations: int) -> tuple[int, ...]:
        """Return the number of configurations of each rung."""
        found = [configurations]
        while found[-1] > self.factor:
            found.append(-(-found[-1] // self.factor))
        return tuple(found)


Search = GridSearch | RandomSearch | HalvingSearch


class SearchTable(Config):
    """The place of the table in an experiment file."""

    search: Annotated[Search, Field(discriminator="kind")] = Field(
        ..., description="How values of keys are chosen by short runs."
    )


def search_table() -> Table:
    """Return the table that has the key `search`, for messages and the reference."""
    return Table("", "", keys_of(SearchTable))

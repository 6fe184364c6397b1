"""The `[search]` table of an experiment file: its keys, and the runs of the search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from hpcps import seeds
from hpcps.errors import text_of
from hpcps.registry import Config
from hpcps.registry.config import MOST
from hpcps.registry.similarity import nearest
from hpcps.spec.draft import MOST_POINTS, Draft
from hpcps.spec.keys import Table, conditions, keys_of
from hpcps.spec.locate import Path
from hpcps.spec.overrides import Override
from hpcps.spec.problems import Problem, dotted, quote, translate
from hpcps.spec.sweep import Assignment, KeyPath, assignments, value_of
from hpcps.spec.tree import Tree, get


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
        description="The keys to search: a list of values for each; except with `grid` also a range, such as "
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


class TpeSearch(_Drawn):
    """Values that a tree-structured Parzen estimator (TPE) proposes from the scores of the configurations before.

    The estimator is that of Optuna, which is installed with the extra `search`.
    """

    kind: Literal["tpe"] = "tpe"
    samples: PositiveInt = Field(
        ..., le=MOST, description="Number of configurations, drawn and proposed; equal ones run once."
    )
    startup: PositiveInt = Field(
        10, le=MOST, description="Number of configurations that are drawn as with `random`, before the first proposal."
    )
    batch: PositiveInt = Field(
        1, le=MOST, description="Number of configurations that are proposed at a time; their runs can be parallel."
    )

    @property
    def proposals(self) -> int:
        """The number of configurations to propose."""
        return self.samples - self.startup


Search = GridSearch | RandomSearch | HalvingSearch | TpeSearch


def missing_optuna() -> str:
    """Say that Optuna is not installed here, or cannot be imported; empty if it can."""
    needs = '[search] kind = "tpe" needs the package optuna, which'
    if not find_spec("optuna"):
        return f"{needs} is not installed: pip install 'hpcps[search]'"
    try:
        import_module("optuna")
    except Exception as error:
        return f"{needs} cannot be imported here ({text_of(error)}): pip install --force-reinstall 'hpcps[search]'"
    return ""


class SearchTable(Config):
    """The place of the table in an experiment file."""

    search: Annotated[Search, Field(discriminator="kind")] = Field(
        ..., description="How values of keys are chosen by short runs."
    )


def search_table() -> Table:
    """Return the table that has the key `search`, for messages and the reference."""
    return Table("", "", keys_of(SearchTable))


SEARCHED = ".search"
"""The ending of the name of the experiment to which the runs of a search belong."""

_OWN: Mapping[KeyPath, str] = {
    ("name",): "all runs of a search belong to one experiment",
    ("plugins",): "all runs of a search belong to one experiment",
    ("seed",): "`seeds` of [search] sets it",
    ("train", "epochs"): "`epochs` of [search] sets it",
    ("data", "holdout"): "`holdout` of [search] sets it",
}
"""Keys that cannot be searched, and why."""

_RANGE = {"low", "high", "log"}


@dataclass(frozen=True)
class DraftedGroup:
    """The points for which values are chosen together, before they are validated.

    Attributes:
        per: the values of the keys of `per` that they share.
        members: their places among the drafts of the file.
        keys: the searched keys, each with its list or range, and its place in the file.
        configurations: the values to try, and the runs of each rung that try them.
    """

    per: Mapping[str, Any]
    members: tuple[int, ...]
    keys: tuple[tuple[KeyPath, Any, Path], ...]
    configurations: tuple[tuple[tuple[Assignment, ...], tuple[tuple[Draft, ...], ...]], ...]

    @property
    def runs(self) -> list[Draft]:
        """All runs, in order."""
        return [run for _, rungs in self.configurations for runs in rungs for run in runs]


def read_search(
    table: object, drafts: Sequence[Draft], over: Sequence[Override]
) -> tuple[Search | None, list[DraftedGroup], list[Problem]]:
    """Read the `search` of an experiment file.

    Args:
        table: its value in the file.
        drafts: the points of the file.
        over: the values of `--set`; a searched key that they set is not searched.

    Returns:
        The table, the groups of points with the runs that choose their values, and the problems.
    """
    try:
        search = SearchTable.model_validate({"search": table}).search
    except ValidationError as error:
        found = (translate(detail, search_table()) for detail in error.errors(include_url=False))
        return None, [], [problem for problems in found for problem in problems]
    place: Path = ("search", "values")
    keys = list(assignments(search.values, place, lambda value: isinstance(value, dict) and bool(_RANGE & {*value})))
    problems = [problem for key, values, where in keys for problem in _misuse(search, key, values, where, drafts)]
    problems += _misused_per(search, drafts)
    for name, listed in (("seeds", search.seeds), ("per", search.per)):
        problems += [
            Problem(("search", name, place), f"{quote(value)} is listed twice")
            for place, value in enumerate(listed)
            if value in listed[:place]
        ]
    if not keys:
        problems.append(Problem(place, 'no values: give it keys, such as "train.optimizer.lr" = [0.01, 0.1]'))
    if isinstance(search, TpeSearch) and search.startup >= search.samples:
        what = f"startup must be less than samples, and {search.startup} is not less than {search.samples}"
        problems.append(Problem(("search", "startup"), f"{what}: nothing is left to propose"))
    if problems:
        return search, [], problems
    keys = [each for each in keys if not any(each[0][: len(one.key)] == one.key for one in over)]
    configurations = _configurations(search, keys)
    groups = [_group(search, members, drafts, keys, configurations) for members in _members(search, keys, drafts)]
    later = search.proposals / len(configurations) if isinstance(search, TpeSearch) and groups else 0
    if sum(len(group.runs) for group in groups) * (1 + later) > MOST_POINTS:
        return search, [], [Problem(("search",), f"it makes more than {MOST_POINTS:,} runs: search fewer values")]
    return search, groups, []


def with_further(
    search: Search, group: DraftedGroup, drafts: Sequence[Draft], values: Iterable[Mapping[str, Any]]
) -> DraftedGroup:
    """Return a group with further configurations, given by their values by dotted key; those it has are left out."""
    found = [made for made, _ in group.configurations]
    found += [tuple(Assignment(key, each[dotted(key)], place) for key, _, place in group.keys) for each in values]
    return _group(search, group.members, drafts, group.keys, _once(found))


def extremes(group: DraftedGroup) -> Iterator[dict[str, Any]]:
    """Yield the first configuration with each value of each list, and the ends of each range, in turn."""
    first = {dotted(made.key): made.value for made in group.configurations[0][0]}
    for key, values, _ in group.keys:
        for value in values if isinstance(values, list) else (values["low"], values["high"]):
            yield first | {dotted(key): value}


def _misuse(search: Search, key: KeyPath, values: Any, where: Path, drafts: Sequence[Draft]) -> Iterator[Problem]:
    name = dotted(key)
    if name not in (known := conditions()):
        guess = nearest(name, known)
        yield Problem(where, f"unknown key {name}" + (f": did you mean {guess}?" if guess else ""))
        return
    if why := next((why for own, why in _OWN.items() if own[: len(key)] == key), ""):
        yield Problem(where, f"{name} cannot be searched: {why}")
    if any(_sets(made, key) for draft in drafts if draft.included is None for made in draft.made):
        yield Problem(where, f"{name} is swept too: search it, or sweep it")
    if isinstance(values, dict):
        yield from _misused_range(search, values, where)
    elif not isinstance(values, list) or not values:
        yield Problem(where, f"expects a list of values to try, got {quote(values)}")
    elif twice := next((value for place, value in enumerate(values) if value in values[:place]), None):
        yield Problem(where, f"{quote(twice)} is listed twice")


def _misused_range(search: Search, values: Mapping[str, Any], where: Path) -> Iterator[Problem]:
    low, high, log = (values.get(name, otherwise) for name, otherwise in (("low", ""), ("high", ""), ("log", False)))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (low, high))
    if isinstance(search, GridSearch):
        yield Problem(where, 'a grid has lists of values; a range is for kind = "random", "halving" or "tpe"')
    elif isinstance(search, HalvingSearch) and search.samples is None:
        yield Problem(where, "a range needs `samples`: how many configurations are drawn")
    elif not numbers or not {*values} <= _RANGE or not isinstance(log, bool):
        yield Problem(where, f"expects {{ low = 0.001, high = 1.0, log = true }}, got {quote(dict(values))}")
    elif not (math.isfinite(low) and math.isfinite(high)):
        yield Problem(where, f"low and high must be finite, got {quote(dict(values))}")
    elif not low < high:
        yield Problem(where, f"low must be less than high, and {quote(low)} is not less than {quote(high)}")
    elif log and low <= 0:
        yield Problem(where, f"log = true needs a range of positive numbers, and low is {quote(low)}")


def _misused_per(search: Search, drafts: Sequence[Draft]) -> Iterator[Problem]:
    swept = dict.fromkeys(made.key for draft in drafts for made in draft.made)
    for number, name in enumerate(search.per):
        key = tuple(name.split("."))
        if not any(key[: len(other)] == other or other[: len(key)] == key for other in swept):
            there = ", ".join(map(dotted, swept)) or "none"
            yield Problem(("search", "per", number), f"{name} is not swept; the swept keys are: {there}")
        elif key == ("seed",):
            yield Problem(("search", "per", number), "`seeds` of [search] sets the seeds of its runs: remove it")


def _sets(made: Assignment, key: KeyPath) -> bool:
    """Tell whether a change sets a key or a key inside it; a table sets only what it contains."""
    if made.key[: len(key)] == key:
        return True
    rest = key[len(made.key) :]
    return key[: len(made.key)] == made.key and isinstance(made.value, dict) and get(made.value, rest) is not None


def _configurations(search: Search, keys: Sequence[tuple[KeyPath, Any, Path]]) -> list[tuple[Assignment, ...]]:
    """Return the values to try, each combination once."""
    if not keys:
        return []
    if not isinstance(search, GridSearch) and search.samples is not None:
        count = search.startup if isinstance(search, TpeSearch) else search.samples
        found = list(zip(*(list(_drawn(search, count, *each)) for each in keys), strict=True))
    else:
        found = list(product(*([Assignment(key, v, (*at, i)) for i, v in enumerate(vs)] for key, vs, at in keys)))
    return _once(found)


def _once(configurations: Iterable[tuple[Assignment, ...]]) -> list[tuple[Assignment, ...]]:
    """Return configurations with different values, each at its first place."""
    return list({repr([each.value for each in made]): made for made in configurations}.values())


def _drawn(search: _Drawn, count: int, key: KeyPath, values: Any, place: Path) -> Iterator[Assignment]:
    """Yield drawn values of a key; they do not depend on the other searched keys."""
    random = seeds.generator(search.seed, "experiment", 0, f"search/{dotted(key)}")
    for draw in random.random(count):
        if isinstance(values, list):
            place_of_value = int(draw * len(values))
            yield Assignment(key, values[place_of_value], (*place, place_of_value))
            continue
        low, high, log = values["low"], values["high"], values.get("log", False)
        whole = isinstance(low, int) and isinstance(high, int)
        # Whole numbers are equally probable, also the first and the last.
        start, stop = (low - 0.5, high + 0.5) if whole and not log else (low, high)
        number = start * (stop / start) ** draw if log else start + draw * (stop - start)
        yield Assignment(key, min(max(round(number), low), high) if whole else to_four_digits(number), place)


def to_four_digits(number: float) -> float:
    """Round a drawn or proposed number to four digits, which are enough for a search."""
    return float(f"{number:.4g}")


def _members(
    search: Search, keys: Sequence[tuple[KeyPath, Any, Path]], drafts: Sequence[Draft]
) -> list[tuple[int, ...]]:
    """Return the places of the points of each group; an `[[include]]` that sets a searched key itself is in none."""
    groups: dict[str, list[int]] = {}
    for place, draft in enumerate(drafts):
        if keys and not any(_sets(made, key) for made in draft.made for key, _, _ in keys):
            groups.setdefault(repr(_per(search, draft.tree)), []).append(place)
    return [tuple(places) for places in groups.values()]


def _per(search: Search, tree: Tree) -> dict[str, Any]:
    return {name: value_of(tree, tuple(name.split("."))) for name in search.per}


def _group(
    search: Search,
    members: tuple[int, ...],
    drafts: Sequence[Draft],
    keys: Sequence[tuple[KeyPath, Any, Path]],
    configurations: Sequence[tuple[Assignment, ...]],
) -> DraftedGroup:
    first = drafts[members[0]].tree
    seed = get(first, ("seed",))
    name = Assignment(("name",), f"{first.get('name')}{SEARCHED}", ("name",))
    holdout = Assignment(("data", "holdout"), search.holdout, ("search", "holdout"))
    repeated = [
        Assignment(("seed",), each, ("search", "seeds", number))
        for number, each in enumerate(search.seeds or (1 if seed is None else seed,))
    ]
    sizes = search.sizes(len(configurations)) if isinstance(search, HalvingSearch) else (1,)
    factor = search.factor if isinstance(search, HalvingSearch) else 1
    epochs = [
        Assignment(("train", "epochs"), search.epochs * factor**rung, ("search", "epochs"))
        for rung in range(len(sizes))
    ]
    tries = []
    for values in configurations:
        rungs = []
        for length in epochs:
            runs = []
            for place, of_seed in product(members, repeated):
                kept = [made for made in drafts[place].made if made.key not in _OWN]
                several = [each for each, among in ((length, epochs), (of_seed, repeated)) if len(among) > 1]
                changes = (name, holdout, length, of_seed, *values)
                runs.append(drafts[place].changed(changes, (*kept, *values, *several)))
            rungs.append(tuple(runs))
        tries.append((values, tuple(rungs)))
    return DraftedGroup(_per(search, first), members, tuple(keys), tuple(tries))

"""A sweep of many points: what each of them costs does not grow with their number, and there is a most."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcps.errors import SpecError
from hpcps.registry import Config
from hpcps.rules import TrimmedMean
from hpcps.spec import identity
from hpcps.spec.label import labels
from hpcps.spec.load import load_experiment

Write = Callable[..., Path]
SEEDS = "[[sweep]]\nseed = [{}]\n"


class Compared(float):
    """A number that counts how often it is compared."""

    times = 0

    def __ne__(self, other: object) -> bool:
        Compared.times += 1
        return float(self) != other

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return float(self) == other

    __hash__ = float.__hash__


def comparisons(count: int) -> int:
    """Label points of which few differ in the swept table, and return what that took."""
    Compared.times = 0
    points = [{"rule": {"kind": "zeno", "rho": Compared(n == 0), "epsilon": Compared(1)}} for n in range(count)]
    found = labels(points, [("rule",)], "alike")
    assert found == ["zeno rho 1", *["zeno rho 0"] * (count - 1)]
    return Compared.times


def test_a_kind_beside_tables_is_its_name_and_empty_lists_are_left_out() -> None:
    splits = ["iid", {"kind": "dirichlet", "alpha": 0.1}, {"kind": "dirichlet", "alpha": 0.3}]
    points = [{"data": {"split": split}} for split in splits]
    assert labels(points, [("data", "split")], "x") == ["iid", "dirichlet alpha 0.1", "dirichlet alpha 0.3"]
    rules = [{"rule": {"kind": "krum", "before": before}} for before in ([], [{"kind": "nnm"}])]
    assert labels(rules, [("rule",)], "x") == ["krum", "krum before [nnm]"]


def test_labels_take_a_few_comparisons_of_each_point() -> None:
    assert comparisons(200) <= 2.5 * comparisons(100)


def test_included_points_are_named_as_if_alone(write: Write) -> None:
    included = "".join(
        f"[[include]]\nseed = {n}\nattack = {{ kind = 'negative', scale = {n + 2} }}\n" for n in range(9)
    )
    points = load_experiment(write(included)).points
    assert [point.label for point in points[1:]] == [f"seed {n} · negative {n + 2}" for n in range(9)]


def test_a_sweep_of_too_many_points_is_refused_before_they_are_made(write: Write) -> None:
    numbers = ", ".join(map(str, range(100)))
    path = write("".join(SEEDS.format(numbers).replace("seed", f'"a{n}"') for n in range(40)))
    with pytest.raises(SpecError, match=":11: sweep: it makes more than 100,000 points: sweep fewer"):
        load_experiment(path)


def test_set_makes_a_large_sweep_small_also_where_points_are_excluded(write: Write) -> None:
    numbers = ", ".join(map(str, range(400)))
    sweeps = SEEDS.format(numbers) + SEEDS.format(numbers).replace("seed", '"data.limit"')
    excluded = "[[exclude]]\nseed = 1\n"
    with pytest.raises(SpecError, match="it makes more than 100,000 points"):
        load_experiment(write(sweeps + excluded))
    assert len(load_experiment(write(sweeps.replace("[0,", "[1000,") + excluded), ["data.limit=800"]).points) == 399


def test_tables_that_points_share_are_validated_and_hashed_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[object] = []
    hashed: list[type[Config]] = []
    validate, changes = TrimmedMean.model_validate, identity._changes

    def counted_validate(table: object) -> TrimmedMean:
        validated.append(table)
        return validate(table)

    def counted_changes(table: Config, *others: Any) -> dict[str, Any]:
        hashed.append(type(table))
        return changes(table, *others)

    monkeypatch.setattr(TrimmedMean, "model_validate", counted_validate)
    monkeypatch.setattr(identity, "_changes", counted_changes)
    rules = "validation.rule = [{ kind = 'trimmed_mean', trim = 0.1 }, { kind = 'trimmed_mean', trim = 0.2 }]\n"
    points = load_experiment(write(SEEDS.format(", ".join(map(str, range(50)))) + "[[sweep]]\n" + rules)).points
    assert len({point.run_id for point in points}) == 100
    assert [table["trim"] for table in validated] == [0.1, 0.2]
    assert hashed.count(type(points[0].run)) == 100
    assert hashed.count(TrimmedMean) == 2
    assert len(hashed) < 100 + 20

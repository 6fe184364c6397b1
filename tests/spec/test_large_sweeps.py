"""A sweep of many points: what each of them costs does not grow with their number, and there is a most."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcps.errors import SpecError
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

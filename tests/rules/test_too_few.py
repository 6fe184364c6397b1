"""How many updates a rule needs: fewer are refused beforehand, and the result of a round with fewer is zero."""

from typing import ClassVar, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Combined, Destination, Updates
from hpcps.registry import active
from hpcps.rules import Arc, Average, Bucketing, Krum, Median, MultiKrum, Nnm, PreAggregator, Rule, TrimmedMean
from hpcps.rules.base import Tolerant, combine_finite
from hpcps.rules.context import Arrays, Context

LAYOUT = Layout.of_sizes((3, 2), 5)
SYNC = [kind for kind, rule in active().of("rules").items() if rule.mode == "sync"]
TOLERANT = [kind for kind in SYNC if "f" in active().of("rules")[kind].model_fields]


def rows(n: int) -> NDArray[np.float32]:
    return np.arange(1, 5 * n + 1, dtype=np.float32).reshape(n, 5)


def combined(rule: Rule, n: int, bad: bool = False) -> Combined:
    """Return the result of a round in which n updates came, added to ones."""
    values = rows(n)
    if bad:
        values[0, 0] = np.nan
    context = Context(np.ones(5, np.float32), lambda vector: float(vector.sum()), np.random.default_rng(0), Arrays())
    updates = Updates.of(values, LAYOUT).onto(Destination(np.ones(5, np.float32)))
    return combine_finite(rule, updates, context)[0]


def is_zero(found: Combined) -> bool:
    return found.finite and not found.accepted.any() and found.update.tolist() == [1.0] * 5


@pytest.mark.parametrize("kind", TOLERANT)
@pytest.mark.parametrize("f", [0, 1, 2])
def test_a_rule_states_one_number_below_which_the_result_is_zero(kind: str, f: int) -> None:
    rule: Rule = active().of("rules")[kind](f=f)
    fewest = rule.fewest(f)
    assert fewest > f
    for n in range(fewest + 2):
        for bad in (False, True)[: 1 + (n > 0)]:
            found = combined(rule, n, bad)
            assert is_zero(found) if n < fewest else found.accepted.any()
        assert bool(rule.unable(n)) == (n < fewest)
        assert not rule.unable(n) or rule.refusal(n)
        if n < fewest:
            with pytest.raises(ValueError, match=f"f = {f} of {n}"):
                rule(rows(n), reference=np.ones(5), context=Context(None, lambda vector: 0.0, np.random.default_rng(0)))


@pytest.mark.parametrize("kind", sorted({*SYNC} - {*TOLERANT}))
def test_a_rule_without_f_takes_any_number(kind: str) -> None:
    rule: Rule = active().of("rules")[kind]()
    assert is_zero(combined(rule, 0))
    assert not any(rule.refusal(n) for n in range(4))


def test_the_bound_refuses_what_a_round_combines() -> None:
    """Of 6 updates Krum can choose one if f = 2, but its guarantee needs 7."""
    rule = Krum(f=2)
    assert rule.refusal(6) == "krum needs at least 2 f + 3 updates, and f = 2 of 6"
    assert rule.refusal(6, bounds=False) == rule.refusal(7) == ""
    assert combined(rule, 6).accepted.sum() == 2
    assert MultiKrum(f=0, m=5).refusal(4) == "multi_krum takes m = 5 updates, and there are 4"
    assert is_zero(combined(MultiKrum(f=0, m=5), 4))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_trim_leaves_no_value_of_two_updates(n: int) -> None:
    """It states no f, so nobody refuses them, and `hpcps check` warns."""
    rule = TrimmedMean(trim=0.2)
    assert rule.refusal(n) == ""
    assert is_zero(combined(rule, n)) == (n <= 2)


@pytest.mark.parametrize("stage", [Nnm(f=2), Arc(f=2), Bucketing(f=2)])
def test_a_pre_aggregator_states_it_too(stage: PreAggregator) -> None:
    fewest = stage.fewest(2)
    rule = Average(before=[stage])
    assert [is_zero(combined(rule, n)) for n in range(fewest + 2)] == [True] * fewest + [False] * 2
    assert all(rule.refusal(n) for n in range(1, fewest))


def test_the_rows_that_are_left_must_suffice() -> None:
    rule = TrimmedMean(f=1, before=[Bucketing(size=2)])
    assert rule.refusal(4) == "bucketing needs more than 2 f buckets, and f = 1 with 2 buckets of 4"
    assert is_zero(combined(rule, 4))
    assert not is_zero(combined(rule, 5))
    assert "3 rows that are left of 5 updates" in Krum(f=1, before=[Bucketing(size=2)]).refusal(5)


class Third(Tolerant):
    """The third update; it states that number alone."""

    kind: Literal["third"] = "third"
    bound: ClassVar[tuple[int, int] | None] = None  # type: ignore[assignment]

    def fewest(self, f: int) -> int:
        return 3

    def aggregate(self, updates, context):
        return updates[2]


class Even(Median):
    """Another reason than too few updates."""

    kind: Literal["even"] = "even"  # type: ignore[assignment]

    def unable(self, n: int) -> str:
        return f"{n} is odd" if n % 2 else ""


def test_a_rule_of_ones_own_is_not_called_with_too_few() -> None:
    assert is_zero(combined(Third(), 2))
    assert combined(Third(), 3).update.tolist() == (1 + rows(3)[2]).tolist()
    assert Third(f=0).refusal(2) == "third needs at least 3 updates, and f = 0 of 2"
    assert [is_zero(combined(Even(), n)) for n in range(5)] == [True, True, False, True, False]
    with pytest.raises(ValueError, match="3 is odd"):
        Even()(rows(3))

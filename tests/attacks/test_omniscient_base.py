"""What every omniscient attack does: outside of a run, and what it checks of `craft`."""

from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from hpcps.attacks import AdversaryContext, Ipm, Omniscient
from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout

HONEST = np.array([[1.0, 2.0, -4.0], [3.0, 2.0, 0.0]], np.float32)


def test_an_omniscient_attack_takes_whole_workers() -> None:
    assert Ipm(rate=0.5).scope == "worker"
    assert Ipm().omniscient
    with pytest.raises(ValidationError):
        Ipm.model_validate({"scope": "block"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"honest": HONEST[0]}, "honest must have the shape"),
        ({"honest": HONEST[:0]}, "one update or more"),
        ({"honest": HONEST, "f": 0}, "f must be a whole number from 1"),
        ({"honest": HONEST, "own": HONEST, "f": 1}, "own must have the shape"),
        ({"honest": HONEST, "blocks": [1, 1]}, "blocks add up to 2 elements"),
        ({"honest": HONEST, "random": 3}, "random must be a random generator"),
    ],
)
def test_says_what_is_wrong_with_its_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Ipm()(**arguments)


class _Returning(Omniscient):
    """Returns something."""

    kind: Literal["returning"] = "returning"

    def craft(self, honest: Any, own: Any, context: AdversaryContext) -> Any:
        return _Returning.value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "None: it must return an array"),
        (np.zeros(2), r"an array \[2\] of float64"),
        (np.zeros((3, 3)), r"an array \[3, 3\]"),
        (np.array(["a", "b", "c"]), "an array"),
    ],
)
def test_refuses_what_craft_must_not_return(value: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Returning, "value", value, raising=False)
    context = AdversaryContext(
        n=4, f=2, layout=Layout.of([("a", (3,))]), random=np.random.default_rng(0), workers=(0, 1), byzantine=(2, 3)
    )
    with pytest.raises(SpecError, match=says):
        _Returning().replacements(HONEST, np.zeros((2, 3), np.float32), context)


def test_own_updates_are_zero_for_an_attack_that_does_not_need_them() -> None:
    own = np.full((1, 3), 7, np.float32)
    for needs, expected in (({"honest"}, 0), ({"honest", "own"}, 7)):

        class Echo(_Returning):
            """Sends its own update."""

            kind: Literal["echo"] = "echo"  # type: ignore[assignment]

            def craft(self, honest: Any, own: Any, context: AdversaryContext) -> Any:
                return own

        Echo.needs = frozenset(needs)
        context = AdversaryContext(n=3, f=1, layout=Layout.of([("a", (3,))]), random=np.random.default_rng(0))
        assert (Echo().replacements(HONEST, own, context) == expected).all()
        assert (Echo()(HONEST, own=own) == expected).all()


def test_one_update_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    context = AdversaryContext(n=4, f=2, layout=Layout.of([("a", (3,))]), random=np.random.default_rng(0))
    monkeypatch.setattr(_Returning, "value", np.array([1, 2, 3]), raising=False)
    found = _Returning().replacements(HONEST, np.zeros((2, 3), np.float32), context)
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2, 3], [1, 2, 3]]

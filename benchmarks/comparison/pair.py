"""One line of the comparison: a component of hpcps with some keys, and what a library offers for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np

from comparison.inputs import Input

Values = Mapping[str, object]

SEED = 1
"""The seed of what our components draw."""

FORMS = {
    "rows": "every update is a row",
    "reference": "the first row is the validator's own update, which the library counts among the n",
    "twice": "the same object combines two rounds, and the second result counts",
    "honest": "the rows are the h honest updates; the b attackers' own updates are the first of them",
    "searched": "as before, and the rule that the attack tries is the trimmed mean that drops b values at each end",
    "moments": "the mean, the standard deviation and the share beyond two of them, of 20,000 random numbers",
    "round": "the rows go into a pre-aggregator, which returns rows",
}
"""How the rows of an input are used."""


QUANTITIES = (
    "f",
    "trim",
    "radius",
    "iterations",
    "threshold",
    "m",
    "smoothing",
    "size",
    "scale",
    "epsilon",
    "z",
    "worker",
)
"""Keys that say what is to be computed, and not how."""


@dataclass(frozen=True)
class Pair:
    """A component with some keys, beside a function of a library with some arguments.

    A value that begins with `=` is an expression: `=n-f`. Its names are n and f; and for attacks h, the number of
    honest updates, and b, the number of Byzantine workers, which is f or 1 if that is 0; for `bucketing` the order.

    Attributes:
        component: the component's name.
        library: the library's name.
        call: the library's function or class: `module:name`.
        theirs: its arguments.
        ours: our keys.
        form: one of `FORMS`.
        note: what a reader should know, in a sentence.
    """

    component: str
    library: str
    call: str
    theirs: Values = field(default_factory=dict)
    ours: Values = field(default_factory=dict)
    form: str = "rows"
    note: str = ""

    @property
    def id(self) -> str:
        """The name of this pair in the data file."""
        return f"{self.component} {written(self.ours)} {self.form} | {self.library} {self.call} {written(self.theirs)}"

    @property
    def default(self) -> Values:
        """Our keys without those that are there to compute what the library does.

        Those stay that say what is to be computed: f, and the other `QUANTITIES` whose value, or the opposite of it,
        the library gets, too.
        """
        given = [*self.theirs.values(), *(-value for value in self.theirs.values() if isinstance(value, float))]
        return {
            name: value for name, value in self.ours.items() if name == "f" or (name in QUANTITIES and value in given)
        }


def values(given: Values, each: Input) -> dict[str, Any]:
    """Return arguments or keys for an input."""
    names: dict[str, Any] = {"n": each.n, "f": each.f, "h": each.n, "b": each.attackers, "ceil": ceil, "max": max}
    names["order"] = np.random.default_rng(SEED).permutation(each.n).tolist()
    names["quantile"] = NormalDist().inv_cdf
    return {
        name: eval(value[1:], {"__builtins__": {}}, names) if isinstance(value, str) and value[:1] == "=" else value
        for name, value in given.items()
    }


def written(given: Values) -> str:
    """Return arguments or keys as text: `f = f, q = n-f`."""
    return ", ".join(
        f"{name} = {value[1:] if isinstance(value, str) and value[:1] == '=' else quoted(value)}"
        for name, value in given.items()
    )


def quoted(value: object) -> str:
    """Return a value as in an experiment file."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value}"


def of(library: str, prefix: str = "") -> Any:
    """Return what makes pairs with a library: `of("byzfl", "aggregators.")(component, call, theirs, ours, …)`."""

    def pair(component: str, call: str, theirs: Values = {}, ours: Values = {}, **more: str) -> Pair:  # noqa: B006
        return Pair(component, library, f"{prefix}{call}", theirs, ours, **more)

    return pair


F: Values = SimpleNamespace(f="=f").__dict__
"""The argument or key f of those that call it so."""

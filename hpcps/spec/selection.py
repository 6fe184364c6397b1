"""`--only SELECTOR`: selects some of an experiment's points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcps.errors import SpecError
from hpcps.inputs import whole_number
from hpcps.registry.config import MOST
from hpcps.registry.similarity import nearest
from hpcps.spec.keys import dotted_keys
from hpcps.spec.overrides import parse_value
from hpcps.spec.tree import get, matches

if TYPE_CHECKING:
    from hpcps.spec.load import Point

SELECTOR_HELP = "select points: indices (3, 0-3), run ids, parts of labels or key=value conditions, comma-separated"
"""For the command line; docs/reference/experiment-file.md has the details."""

_TERMS = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])+""")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_PAIR = re.compile(r"([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*=(.*)", re.DOTALL)
_ID = re.compile(r"[0-9a-f]{4,10}")


def select(points: Sequence[Point], selector: str | None) -> tuple[Point, ...]:
    """Return the points that a selector matches, in the order of the file; all points without a selector.

    A selector is a list of terms, separated by commas. `3` is the point of that index and `0-3` a range of indices. The
    first four or more characters of a run id select that run. Any other text is part of a label; case does not matter.
    A point must match one of these terms. A term `key=value` is a condition, and a point must satisfy all conditions; a
    table matches its kind.

    Raises:
        SpecError: a term matches no point, or no point matches the whole selector.
    """
    if selector is None:
        return tuple(points)
    terms = [term.strip() for term in _TERMS.findall(selector) if term.strip()]
    if not terms:
        raise SpecError(f'--only "{selector}" has no terms\n{_listing(points)}')
    chosen: set[int] = set()
    conditions: list[set[int]] = []
    for term in terms:
        pair = _PAIR.fullmatch(term)
        found = _fits(points, pair[1], pair[2].strip()) if pair else _named(points, term)
        if not found:
            raise SpecError(f'--only "{selector}": no point matches "{term}"\n{_listing(points)}')
        if pair:
            conditions.append(found)
        else:
            chosen |= found
    if len(conditions) < len(terms):
        conditions.append(chosen)
    left = set.intersection(*conditions)
    if not left:
        raise SpecError(f'--only "{selector}": no point matches all terms\n{_listing(points)}')
    return tuple(point for point in points if point.index in left)


def _named(points: Sequence[Point], term: str) -> set[int]:
    indices = {point.index for point in points}
    if (number := whole_number(term, 0, MOST)) is not None and number in indices:
        return {number}
    if span := _RANGE.fullmatch(term):
        return {index for index in indices if int(span[1]) <= index <= int(span[2])}
    if _ID.fullmatch(term) and (found := {point.index for point in points if point.run_id.startswith(term)}):
        return found
    return {point.index for point in points if term.lower() in point.label.lower()}


def _fits(points: Sequence[Point], key: str, text: str) -> set[int]:
    known = {name for name, _ in dotted_keys()} | {f"{name}.kind" for name, inner in dotted_keys() if inner.tagged}
    if key not in known:
        guess = nearest(key, sorted(known))
        raise SpecError(f"--only {key}={text}: unknown key" + (f": did you mean {guess}?" if guess else ""))
    try:
        wanted = parse_value(text)
    except ValueError as error:
        raise SpecError(f"--only {key}={text}: {error}") from error
    return {point.index for point in points if matches(get(point.run.model_dump(mode="json"), key.split(".")), wanted)}


def _listing(points: Sequence[Point]) -> str:
    lines = "\n".join(f"  {point.index:>3}  {point.run_id}  {point.label}" for point in points)
    return f"the points are:\n{lines}"

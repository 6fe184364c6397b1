"""Two options: `--set key=value` overrides the base and every point of the sweep; `--only SELECTOR` selects points."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcps.errors import InputError, SpecError
from hpcps.inputs import parse_toml, whole_number
from hpcps.registry.config import MOST
from hpcps.registry.similarity import nearest
from hpcps.spec.keys import conditions, dotted_keys
from hpcps.spec.sweep import KeyPath
from hpcps.spec.tree import get, matches

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_MOST_PARTS = 16


@dataclass(frozen=True)
class Override:
    """One `--set`.

    Attributes:
        key: the key that it sets.
        value: the value.
        text: the argument as written, shortened if it is long.
        kind: whether it was written as the `kind` of the table; other overrides of keys of that table then apply to it.
    """

    key: KeyPath
    value: Any
    text: str
    kind: bool = False


def parse_override(text: str) -> Override:
    """Read `key=value`: a dotted key and a value as in TOML, or a text without its quotes.

    If the kind determines the keys of a table, `table.kind=value` means `table={ kind = value }`, because the other
    keys of the base's table belong to another kind.

    Raises:
        ValueError: the text is not valid; the message says why.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not _KEY.fullmatch(name) or name.count(".") > _MOST_PARTS:
        raise ValueError("expects key=value, such as train.epochs=20")
    if (first := name.partition(".")[0]) in ("sweep", "exclude", "include", "search"):
        kind = "search" if first == "search" else "sweep"
        does = {"sweep": "swept key itself, which replaces its sweep", "search": "searched key itself, which ends it"}
        raise ValueError(f"a {kind} cannot be set; set the {does[kind]}")
    table, _, last = name.rpartition(".")
    if last == "kind" and any(known == table and key.tagged for known, key in dotted_keys()):
        return Override(tuple(table.split(".")), {"kind": parse_value(value.strip())}, shortened(text), kind=True)
    return Override(tuple(name.split(".")), parse_value(value.strip()), shortened(text))


def parse_value(text: str) -> Any:
    """Read a value as in TOML, or a text without its quotes.

    Raises:
        ValueError: it starts like a quoted text, a list or a table, but is not valid.
    """
    try:
        document = parse_toml("value", f"value = {text}")
        if document.keys() == {"value"}:
            return document["value"]
    except InputError as error:
        if not error.reason.startswith("not valid TOML"):
            raise ValueError(f"{shortened(text)}: {error.reason}") from error
        if text[:1] in ('"', "'", "[", "{"):
            raise ValueError(f"{shortened(text)} is not a TOML value: is a quote or bracket missing?") from error
    if not text or "\n" in text:
        raise ValueError("the value is missing" if not text else "a value takes one line")
    return text


def shortened(text: str, limit: int = 200) -> str:
    """Shorten a text that is too long for a message."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def last_of_each(overrides: Iterable[Override]) -> list[Override]:
    """Drop overrides that a later override of the same key, or of a table around it, replaces."""
    kept: list[Override] = []
    for override in overrides:
        inside = [earlier for earlier in kept if earlier.key[: len(override.key)] == override.key]
        kept = [earlier for earlier in kept if earlier not in inside]
        kept.append(override)
        if override.kind:
            kept += [earlier for earlier in inside if earlier.key != override.key]
    return kept


_TERMS = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])+""")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_PAIR = re.compile(r"([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*=(.*)", re.DOTALL)
_ID = re.compile(r"[0-9a-f]{4,10}")


@dataclass(frozen=True)
class Candidate:
    """A point to select from.

    Attributes:
        index: its position in the file's sweep, from 0.
        run_id: its id; empty if it has none because of mistakes.
        label: its label.
        values: returns the values of its keys, as nested tables.
    """

    index: int
    run_id: str
    label: str
    values: Callable[[], Mapping[str, Any]]


def selected(candidates: Sequence[Candidate], selectors: Sequence[str]) -> frozenset[int]:
    """Return the indices of the points that all selectors match; those of all points without a selector.

    A selector is a list of terms, separated by commas; a point must match at least one of them. `3` is the point of
    that index and `0-3` a range of indices, which may end behind the last point. The first four or more characters of
    a run id select that run. A term `key=value` is a condition; a table matches its kind. Any other text is part of a
    label; case does not matter.

    Raises:
        SpecError: a term matches no point, or no point matches all selectors.
    """
    left = {candidate.index for candidate in candidates}
    for selector in selectors:
        terms = [term.strip() for term in _TERMS.findall(selector) if term.strip()]
        if not terms:
            raise SpecError(f'--only "{selector}" has no terms\n{_listing(candidates)}')
        chosen: set[int] = set()
        for term in terms:
            pair = _PAIR.fullmatch(term)
            found = _fits(candidates, pair[1], pair[2].strip()) if pair else _named(candidates, term)
            if not found:
                raise SpecError(f'--only "{selector}": no point matches "{term}"\n{_listing(candidates)}')
            chosen |= found
        left &= chosen
    if not left:
        given = " ".join(f'--only "{selector}"' for selector in selectors)
        raise SpecError(f"{given}: no point matches all of these\n{_listing(candidates)}")
    return frozenset(left)


def _named(candidates: Sequence[Candidate], term: str) -> set[int]:
    indices = {point.index for point in candidates}
    if (number := whole_number(term, 0, MOST)) is not None and number in indices:
        return {number}
    if span := _RANGE.fullmatch(term):
        first, last = int(span[1]), int(span[2])
        if first > last:
            listing = _listing(candidates)
            raise SpecError(f"--only {term}: a range begins with its smaller index: use {last}-{first}\n{listing}")
        return {index for index in indices if first <= index <= last}
    if _ID.fullmatch(term) and (found := {point.index for point in candidates if point.run_id.startswith(term)}):
        return found
    return {point.index for point in candidates if term.lower() in point.label.lower()}


def _fits(candidates: Sequence[Candidate], key: str, text: str) -> set[int]:
    if key not in (known := conditions()):
        guess = nearest(key, known)
        raise SpecError(f"--only {key}={text}: unknown key" + (f": did you mean {guess}?" if guess else ""))
    try:
        wanted = parse_value(text)
    except ValueError as error:
        raise SpecError(f"--only {key}={text}: {error}") from error
    path = key.split(".")
    return {point.index for point in candidates if matches(get(dict(point.values()), path), wanted)}


def _listing(candidates: Sequence[Candidate]) -> str:
    lines = "\n".join(f"  {point.index:>3}  {point.run_id:<10}  {point.label}" for point in candidates)
    return f"the points are:\n{lines}"

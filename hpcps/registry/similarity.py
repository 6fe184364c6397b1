"""The valid name that a person probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that is most similar to this one; for keys also one whose last part is the same or similar.

    Of several equally similar names, return the first: callers list the more probable names first.
    """
    return _nearest(name, tuple(valid))


@lru_cache(1024)  # many points of a sweep share a mistake
def _nearest(name: str, valid: tuple[str, ...]) -> str | None:
    table, _, ending = name.rpartition(".")
    # As a whole, all keys of a table are similar to each other and to the table: compare the last parts.
    beside = {choice.rpartition(".")[2]: choice for choice in valid if table and choice.rpartition(".")[0] == table}
    if own := _most_like(ending, beside, 0.6):
        return beside[own]
    if same := [choice for choice in valid if choice.rpartition(".")[2] == ending]:
        return _most_like(name, same, 0.0)  # a key in the wrong table
    if not beside and (whole := _most_like(name, valid, 0.6)):
        return whole
    last = {choice.rpartition(".")[2]: choice for choice in reversed(valid)}
    close = _most_like(ending, reversed(last), 0.75)
    return None if close is None else last[close]


def _most_like(name: str, choices: Iterable[str], enough: float) -> str | None:
    # Of equally similar names, difflib.get_close_matches returns the alphabetically last.
    matcher = difflib.SequenceMatcher(b=name)
    best, found = enough, None
    for choice in choices:
        matcher.set_seq1(choice)
        ratio = matcher.ratio()
        if ratio > best or (found is None and ratio == best):
            best, found = ratio, choice
    return found

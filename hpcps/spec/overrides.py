"""`--set key=value`: values given on the command line, over the base and over every point of the sweep."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hpcps.spec.sweep import KeyPath

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Override:
    """One `--set`, and how it was written."""

    key: KeyPath
    value: Any
    text: str


def parse_override(text: str) -> Override:
    """Read `key=value`: a dotted key and a value as in TOML, or a text without its quotes.

    Raises:
        ValueError: it is neither; the message says what is wrong.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not _KEY.fullmatch(name):
        raise ValueError("expects key=value, such as train.epochs=20")
    if name.partition(".")[0] in ("sweep", "exclude", "include"):
        raise ValueError("a sweep cannot be set; set the swept key itself, which replaces its sweep")
    return Override(tuple(name.split(".")), parse_value(value.strip()), text)


def parse_value(text: str) -> Any:
    """Read a value as in TOML, or a text without its quotes.

    Raises:
        ValueError: it begins like a quoted text, a list or a table, and is none.
    """
    try:
        document = tomllib.loads(f"value = {text}")
        if document.keys() == {"value"}:
            return document["value"]
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ('"', "'", "[", "{"):
            raise ValueError(f"{text} is no TOML value: is a quote or bracket missing?") from error
    if not text or "\n" in text:
        raise ValueError("the value is missing" if not text else "a value takes one line")
    return text


def last_of_each(overrides: Iterable[Override]) -> list[Override]:
    """Drop overrides that a later one of the same key, or of a table around it, makes void."""
    kept: list[Override] = []
    for override in overrides:
        kept = [earlier for earlier in kept if earlier.key[: len(override.key)] != override.key]
        kept.append(override)
    return kept

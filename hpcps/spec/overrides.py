"""`--set key=value`: values from the command line that override the base and every point of the sweep."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hpcps.errors import InputError
from hpcps.inputs import parse_toml
from hpcps.spec.keys import dotted_keys
from hpcps.spec.sweep import KeyPath

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

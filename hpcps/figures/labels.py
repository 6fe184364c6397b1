"""Names of lines and panels for people, made from the texts of a table: `random, scale 1, by worker`."""

from __future__ import annotations

import re
from collections.abc import Sequence

SEPARATOR = " · "

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"(?:\[[^\]]*\]|\{[^}]*\}|[^\s\[{])+")
_KIND = re.compile(r"[\[,]\s*(\w+)")


def parse(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the kind in the text of a table, and its keys and values; what is done before a rule is of its kind."""
    kind, *rest = _PART.findall(text) or [text]
    if len(rest) % 2:
        rest.insert(0, "scale")
    pairs = tuple(zip(rest[::2], rest[1::2], strict=True))
    before = [name for key, value in pairs if key == "before" for name in _KIND.findall(value)]
    return " + ".join([*before, kind]), tuple(pair for pair in pairs if pair[0] != "before")


def of_value(text: str) -> str:
    """Return a swept value for people: `random 1 scope worker` gives `random, scale 1, by worker`.

    The text is that of a plain value, or that of a table: its kind, its scale, and pairs of a key and a value.
    """
    if " before [" in text:
        kind, pairs = parse(text)
        return ", ".join([_plain(kind), *(f"{_plain(key)} {value}" for key, value in pairs)])
    kind, *rest = text.split(" ")
    said = [kind if _NUMBER.fullmatch(kind) else _plain(kind)]
    if len(rest) % 2:
        if not _NUMBER.fullmatch(rest[0]):
            return _plain(text)
        said.append(f"scale {rest.pop(0)}")
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        if not all(_WORD.fullmatch(part) for part in name.split(".")):
            return _plain(text)  # a value with blanks, such as a list
        said.append(f"by {value}" if name == "scope" else f"{_plain(name.replace('.', ' '))} {value}")
    return ", ".join(said)


def of_key(key: str) -> str:
    """Return a swept column for people: `data.split` gives `split`, `communication.skip_rate` gives `skip rate`."""
    *tables, last = key.split(".")
    return _plain(tables[-1] if tables and last in ("kind", "name") else last)


def of_panel(keys: Sequence[str], panel: str) -> str:
    """Return the title of a panel: `attack: random, scale 1 · skip rate: 0.2`."""
    values = panel.split(SEPARATOR)
    if not panel or len(values) != len(keys):
        return _plain(panel)
    return SEPARATOR.join(f"{of_key(key)}: {of_value(value)}" for key, value in zip(keys, values, strict=True))


def _plain(text: str) -> str:
    return text.replace("_", " ")

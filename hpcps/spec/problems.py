"""Mistakes in a run's values, in words for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcps.spec.keys import Key, Table, dotted_keys, expects, nearest, plain, root
from hpcps.spec.locate import Path


@dataclass(frozen=True)
class Problem:
    """One mistake.

    Attributes:
        path: the key it is about.
        message: what is wrong and what would be right.
        involves: other keys whose values the mistake depends on.
        missing: whether a required key is absent (so that it has no place of its own).
        stands_for: keys that were probably meant here, and so are not missing elsewhere.
    """

    path: Path
    message: str
    involves: tuple[Path, ...] = ()
    missing: bool = False
    stands_for: tuple[Path, ...] = ()


def dotted(path: Path) -> str:
    """Write a path as in messages: `train.lr_decay.epochs[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def quote(value: object, limit: int = 60) -> str:
    """Write a value as the file would, cut where it is long."""
    text = plain(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def translate(error: Mapping[str, Any]) -> list[Problem]:
    """Turn one of pydantic's error details into problems; a missing table gives one for each key it must have."""
    path, key, table = _follow(error["loc"])
    kind, value = error["type"], error["input"]
    if kind == "missing" and key is not None and isinstance(path[-1], str):
        return missing(path, key)
    if kind == "extra_forbidden" or key is None:
        return [_unknown(path, table)]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return [_kind(path, key, value)]
    if kind == "value_error":
        return [Problem(path, str(error["ctx"]["error"]))]
    return [Problem(path, _unexpected(path, key, value))]


def _unknown(path: Path, table: Table) -> Problem:
    """Say that a table has no such key, which keys it has, and which of them may have been meant."""
    names = [*table.keys, "sweep", "exclude", "include"] if len(path) == 1 else [*table.keys]
    close = nearest(str(path[-1]), names)
    guess = close or nearest(str(path[-1]), [name for name, _ in dotted_keys()])
    owner = f"[{dotted(path[:-1])}]" if len(path) > 1 else "the top level"
    if table.kind:
        owner += f' of kind "{table.kind}"'
    if guess == dotted(path):
        guess = None  # it is a key, but of another kind
    message = f"unknown key{_meant(guess)}\n{owner} takes {_takes(table, names)}"
    return Problem(path, message, stands_for=((*path[:-1], close),) if close else ())


def _takes(table: Table, names: list[str]) -> str:
    plain_keys = [name for name in names if name in table.keys and not table.keys[name].tables]
    tables = [name for name in names if name not in plain_keys]
    said = [", ".join(name + _default(table.keys[name]) for name in plain_keys)] if plain_keys else []
    if tables:
        said.append(f"the table{'s' * (len(tables) > 1)} {', '.join(tables)}")
    return "; ".join(said) or "no keys but kind"


def _meant(guess: str | None) -> str:
    return f": did you mean {guess}?" if guess else ""


def _default(key: Key) -> str:
    if key.required:
        return " (required)"
    return "" if key.default in (None, "") else f" = {plain(key.default)}"


def _follow(loc: tuple[str | int, ...]) -> tuple[Path, Key | None, Table]:
    """Follow pydantic's location through the schema, dropping the tags it puts after tables of several kinds.

    Returns:
        The path in the file, the last key that the schema knows (None if the path's last part is unknown) and the
        table that the last part belongs to.
    """
    table = root()
    path: Path = ()
    key: Key | None = None
    chosen = False
    for part in loc:
        if key is not None and key.tagged and not chosen and (of_kind := key.table(str(part))) is not None:
            table, chosen = of_kind, True
            continue
        path += (part,)
        if isinstance(part, str):
            if key is not None and key.tables and not key.tagged:
                table = key.tables[0]
            key, chosen = table.keys.get(part), False
    return path, key, table


def missing(path: Path, key: Key) -> list[Problem]:
    """Say that a required key is absent, or the required keys of an absent table."""
    if not key.tables or key.tagged:
        message = f"required but missing: {expects(key)}. {key.description}"
        return [Problem(path, message, missing=True)]
    needed = [(name, inner) for name, inner in key.tables[0].keys.items() if inner.required]
    return [problem for name, inner in needed for problem in missing((*path, name), inner)]


def _kind(path: Path, key: Key, value: object) -> Problem:
    noun = path[-1]
    choices = ", ".join(table.kind for table in key.tables)
    if not isinstance(value, Mapping) or "kind" not in value:
        return Problem((*path, "kind"), f"missing: which {noun}? choices: {choices}", missing=True)
    kind = value["kind"]
    guess = nearest(kind, (table.kind for table in key.tables)) if isinstance(kind, str) else None
    did_you_mean = f": did you mean {plain(guess)}?" if guess else ";"
    return Problem((*path, "kind"), f"unknown {noun} {quote(kind)}{did_you_mean} choices: {choices}")


def _unexpected(path: Path, key: Key, value: object) -> str:
    if isinstance(path[-1], int):
        if isinstance(value, list):  # pydantic calls a list that is too short an item that is missing
            return f"expects {expects(key)}, got {quote(value)}"
        return f"expects {expects(key, key.value['items'])}, got {quote(value)}"
    guess = None
    if isinstance(value, str) and key.tagged:
        kind = nearest(value, (table.kind for table in key.tables))
        guess = plain({"kind": kind}) if kind else None
    elif isinstance(value, str) and "enum" in key.value:
        choice = nearest(value, key.value["enum"])
        guess = plain(choice) if choice else None
    default = "" if key.default is None or key.required else f" (default {plain(key.default)})"
    return f"expects {expects(key)}{default}, got {quote(value)}{_meant(guess)}"

"""Nested tables as dictionaries, by path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Tree = dict[str, Any]


def get(tree: Tree, path: Sequence[str]) -> Any:
    """Return the value at a path; None if there is none."""
    value: Any = tree
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def flatten(table: Mapping[str, Any], prefix: str = "") -> Tree:
    """Return the leaves of nested tables by dotted key."""
    flat: Tree = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def copied(tree: Tree) -> Tree:
    """Copy the tables of a tree, but not the values in them."""
    return {name: copied(value) if isinstance(value, dict) else value for name, value in tree.items()}


def put(tree: Tree, path: Sequence[str], value: object) -> Tree:
    """Return a tree with another value at a path, which shares all other tables with the given tree.

    It creates the tables of the path, and replaces a value on the path that is not a table.
    """
    first, *rest = path
    if rest:
        inner = tree.get(first)
        value = put(inner if isinstance(inner, dict) else {}, rest, value)
    return {**tree, first: value}


def remove(tree: Tree, path: Sequence[str]) -> None:
    """Delete the value at a path, if there is one."""
    table = get(tree, path[:-1])
    if isinstance(table, dict):
        table.pop(path[-1], None)


def kind_of(value: object) -> object:
    """Return the `kind` or the `name` of a table."""
    return (value.get("kind") or value.get("name")) if isinstance(value, dict) else None


def matches(value: Any, wanted: Any) -> bool:
    """Tell whether a value matches: a table matches its kind or name, and a table with some of its keys."""
    if isinstance(value, dict) and isinstance(wanted, str):
        return bool(kind_of(value) == wanted)
    if isinstance(value, dict) and isinstance(wanted, dict):
        return all(matches(value.get(name), inner) for name, inner in wanted.items())
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)

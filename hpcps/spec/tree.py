"""Nested tables as dictionaries, by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Tree = dict[str, Any]


def get(tree: Tree, path: Sequence[str]) -> Any:
    """Return the value at a path; None if there is none."""
    value: Any = tree
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def put(tree: Tree, path: Sequence[str], value: object) -> None:
    """Set the value at a path, making the tables on the way; one in the way that is no table is replaced."""
    *tables, last = path
    for part in tables:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    tree[last] = value


def remove(tree: Tree, path: Sequence[str]) -> None:
    """Delete the value at a path, if there is one."""
    table = get(tree, path[:-1])
    if isinstance(table, dict):
        table.pop(path[-1], None)

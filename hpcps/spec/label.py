"""Short names for people: what sets a point apart from the others of its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hpcps.spec.problems import quote
from hpcps.spec.sweep import KeyPath
from hpcps.spec.tree import Tree, get, kind_of

SEPARATOR = " · "


def labels(points: Sequence[Tree], swept: Sequence[KeyPath], name: str) -> list[str]:
    """Return a label for each point, such as `zeno · negative 6`.

    Args:
        points: the resolved values of each point.
        swept: the keys that the file sweeps, in its order.
        name: the label if nothing is swept.
    """
    # A table's own label tells what differs inside it.
    heads = [key for key in swept if not any(key[: len(other)] == other for other in swept if other != key)]
    columns = [_column(key, [get(point, key) for point in points], heads) for key in heads]
    if not columns:
        return [name for _ in points]
    return [SEPARATOR.join(filter(None, parts)) for parts in zip(*columns, strict=True)]


def _column(key: KeyPath, values: list[Any], heads: Sequence[KeyPath]) -> list[str]:
    if any(isinstance(value, dict) for value in values):
        alike: dict[object, list[Any]] = {}
        for value in values:
            alike.setdefault(kind_of(value), []).append(value)
        return [_table(key, value, alike[kind_of(value)]) for value in values]
    if key[-1] in ("kind", "name"):
        return [_short(value) for value in values]
    same_ending = Counter(other[-1] for other in heads)[key[-1]] > 1
    title = ".".join(key) if same_ending else key[-1]
    # A key inside a table that a point does not have, such as attack.scale without an attack, does not label it.
    return ["" if value is None else f"{title} {_short(value)}" for value in values]


def _table(key: KeyPath, value: Any, alike: list[Any]) -> str:
    """Name a table by its kind, an attack's scale, and whatever else differs among tables of that kind."""
    parts = [str(kind_of(value) or key[-1])]
    leaves = [(name, inner) for name, inner in _leaves(value, "") if name not in ("kind", "name")]
    for name, inner in sorted(leaves, key=lambda leaf: leaf[0] != "scale"):
        varies = any(get(other, name.split(".")) != inner for other in alike)
        if name == "scale":
            parts.append(_short(inner))
        elif varies:
            parts.append(f"{name} {_short(inner)}")
    return " ".join(parts)


def _leaves(table: Any, prefix: str) -> list[tuple[str, Any]]:
    if not isinstance(table, dict):
        return []
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def _short(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else quote(value)

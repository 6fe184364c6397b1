"""Labels: short names of points, made from the values in which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hpcps.registry import Registry, active
from hpcps.spec.heterogeneity import WorkerClass
from hpcps.spec.keys import Key, Table, root
from hpcps.spec.problems import quote
from hpcps.spec.sweep import KeyPath
from hpcps.spec.tree import Tree, get, kind_of

SEPARATOR = " · "


_EXACT = 2**53
"""Whole numbers below it are exact as floating-point numbers, so their digits are those of the file."""

Defaults = Mapping[tuple[str, str], Mapping[str, object]]
"""The defaults of components that may not be loaded, by the last part of their key and their name."""


def labels(points: Sequence[Tree], swept: Sequence[KeyPath], name: str, defaults: Defaults | None = None) -> list[str]:
    """Return a label for each point by the same keys; see `Labels`."""
    named = Labels(points, name, defaults)
    return [named.of(place, swept) for place in range(len(points))]


class Labels:
    """The labels of a file's points; caches the parts that several labels share."""

    def __init__(self, points: Sequence[Tree], name: str, defaults: Defaults | None = None) -> None:
        """Label these points.

        Args:
            points: the resolved values of each point.
            name: the label of points without swept keys.
            defaults: those of components that are not in the active registry.
        """
        self._points = points
        self._defaults = defaults or {}
        self._name = name
        self._columns: dict[tuple[KeyPath, str], list[str]] = {}

    def of(self, place: int, swept: Sequence[KeyPath]) -> str:
        """Return the label of the point at `place`, such as `zeno · negative 6`; `swept`: keys, in the file's order."""
        # The label of a swept table includes the differences inside it.
        heads = [key for key in swept if not any(key[: len(other)] == other for other in swept if other != key)]
        endings = Counter(key[-1] for key in heads)
        parts = [self._column(key, ".".join(key) if endings[key[-1]] > 1 else key[-1])[place] for key in heads]
        return SEPARATOR.join(filter(None, parts)) if heads else self._name

    def _column(self, key: KeyPath, title: str) -> list[str]:
        if (key, title) not in self._columns:
            self._columns[key, title] = _column(key, title, [get(point, key) for point in self._points], self._defaults)
        return self._columns[key, title]


def _column(key: KeyPath, title: str, values: list[Any], defaults: Defaults) -> list[str]:
    if any(isinstance(value, dict) for value in values):
        distinct = {id(value): value for value in values}  # points share the tables of a sweep
        alike: dict[str, _Alike] = {}
        for value in distinct.values():
            alike.setdefault(str(kind_of(value)), _Alike()).append(value)
        names = {place: _table(key, value, alike[str(kind_of(value))], defaults) for place, value in distinct.items()}
        return [names[id(value)] for value in values]
    if key[-1] in ("kind", "name"):
        return [_short(value) for value in values]
    # A key that a point does not have, such as attack.scale without an attack, is not part of its label.
    return ["" if value is None else f"{title} {_short(value)}" for value in values]


class _Alike(list[Any]):
    """The tables of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self._varies: dict[str, bool] = {}

    def varies(self, name: str) -> bool:
        """Tell whether they differ in a key."""
        if name not in self._varies:
            path = name.split(".")
            first = get(self[0], path)
            self._varies[name] = any(get(other, path) != first for other in self)
        return self._varies[name]


def _table(key: KeyPath, value: Any, alike: _Alike, defaults: Defaults) -> str:
    """Name a table by its kind, its scale, values that are not defaults, and values that vary.

    Those of an attack are named if they are not defaults, and the keys that most components of a kind have, such as
    `before` of rules and `memory` of compressors; other keys only if they vary. An empty list is left out.
    """
    if not isinstance(value, dict):  # only the kind, or a plain value, beside tables
        return value if isinstance(value, str) else f"{key[-1]} {_short(value)}"
    said = _said(key, value, alike, defaults)
    words = [f"{name} {_short(inner, defaults)}".removeprefix("scale ") for name, inner in said.items()]
    return " ".join([str(kind_of(value) or key[-1]), *words])


def _said(key: KeyPath, value: Tree, alike: _Alike, defaults: Defaults) -> dict[str, Any]:
    """Return the values of a table that its name states, by key, the scale first."""
    said = {}
    leaves = [(name, inner) for name, inner in _leaves(value, "") if name not in ("kind", "name")]
    common = _common_keys(active(), key)
    for name, inner in sorted(leaves, key=lambda leaf: leaf[0] != "scale"):
        always = key[-1] == "attack" or name in common
        usual = default_of(key, str(value.get("kind")), name, defaults) if always else inner
        filled = inner is not None and inner != []
        if name == "scale" or inner != usual or (filled and alike.varies(name)):
            said[name] = inner
    return said


@lru_cache(maxsize=256)
def _common_keys(registry: Registry, key: KeyPath) -> frozenset[str]:
    """Return the keys that most components of a kind have, such as `before` of rules and `memory` of compressors."""
    assert registry is active()
    found = _key_at(key)
    if found is None or not found.tagged:
        return frozenset()
    counts = Counter(name for table in found.tables for name in table.keys)
    return frozenset(name for name, count in counts.items() if 2 * count > len(found.tables))


def said_by_labels(
    points: Sequence[Tree], swept: Sequence[Sequence[KeyPath]], defaults: Defaults | None = None
) -> list[frozenset[str]]:
    """Return the dotted keys whose values the label of each point states; see `Labels`.

    Args:
        points: the resolved values of each point.
        swept: the keys of the label of each point.
        defaults: those of components that are not in the active registry.
    """
    found: list[set[str]] = [set() for _ in points]
    for key in dict.fromkeys(key for keys in swept for key in keys):
        values = [get(point, key) for point in points]
        alike: dict[str, _Alike] = {}
        for value in {id(value): value for value in values if isinstance(value, dict)}.values():
            alike.setdefault(str(kind_of(value)), _Alike()).append(value)
        name = ".".join(key)
        for said, value, keys in zip(found, values, swept, strict=True):
            if key in keys and isinstance(value, dict):
                leaves = _said(key, value, alike[str(kind_of(value))], defaults or {})
                said.update(f"{name}.{leaf}" for leaf in ("kind", "name", *leaves))
            elif key in keys:
                said.add(name)
    return [frozenset(said) for said in found]


def default_of(path: Sequence[str], kind: str, name: str, defaults: Defaults) -> object:
    """Return the default of a key of a component; None if there is none.

    Args:
        path: where the component is, such as `validation`, `rule`.
        kind: its kind.
        name: the key.
        defaults: those of components that are not in the active registry.
    """
    key = _key_at(path)
    component = key.table(kind) if key is not None else None
    if component is None:
        return defaults.get((path[-1], kind), {}).get(name)
    return component.keys[name].default if name in component.keys else None


def _key_at(path: Sequence[str]) -> Key | None:
    table: Table | None = root()
    for part in path[:-1]:
        tables = table.keys[part].tables if table is not None and part in table.keys else ()
        table = tables[0] if tables else None
    return table.keys.get(path[-1]) if table is not None else None


def value_words(value: object, defaults: Defaults | None = None) -> str:
    """Return a value for people: a list of components by their kinds and the values that are not defaults."""
    return _short(value, defaults)


def _leaves(table: Any, prefix: str) -> list[tuple[str, Any]]:
    if not isinstance(table, dict):
        return []
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def _short(value: object, defaults: Defaults | None = None) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return f"[{', '.join(_listed(item, defaults or {}) for item in value)}]"
    if value == []:
        return "nothing"
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return value if isinstance(value, str) else quote(value)


def _listed(table: Tree, defaults: Defaults) -> str:
    """Name a pre-aggregator or a class of workers by its kind or name, and by the values that are not defaults."""
    components, kind = active().of("preaggregators"), str(kind_of(table))
    usual = defaults.get(("before", kind))
    if usual is None or kind in components:
        fields = components.get(kind, WorkerClass).model_fields
        usual = {name: field.default for name, field in fields.items()}
    said = {
        name: value
        for name, value in table.items()
        if name in usual and name not in ("kind", "name") and value != usual[name] and value != []
    }
    return " ".join([kind, *(f"{name} {_short(value)}" for name, value in said.items())])

"""What tells the runs of an experiment apart: the swept values, in words, and deviations from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcps.spec.label import labels
from hpcps.spec.tree import Tree, get

_NO_EFFECT = {"name", "description", "seed", "data.dir", "transport.timeout"} | {
    f"checkpoint.{key}" for key in ("every", "keep", "margin", "successors")
}
"""Keys that make no other curve or, as the seed, only a replicate of it."""


def in_words(runs: Sequence[Tree], key: str) -> list[object]:
    """Return what a dotted key is in each resolved run: tables as in the runs' labels, the rest as it is."""
    path = tuple(key.split("."))
    values = [get(run, path) for run in runs]
    if any(isinstance(value, Mapping) for value in values):
        return list(labels(runs, [path], key))
    return [value if value is None or isinstance(value, (int, float, str)) else _text(value) for value in values]


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Return the leaves of nested tables by dotted key."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def variants(specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Say of each run what it has that is not in its experiment file, such as `"data.limit=5000 train.epochs=4"`.

    Runs of different variants must not be drawn as one curve. Swept keys and the seed make no variant.

    Args:
        specs: what `spec.json` holds of each run (`swept`, `run`).
        points: the same of the points of the experiment file, where there is one. A run with no such point is compared
            with the other runs instead: it shows the values that not all of them have.
    """
    keys = tuple(dict.fromkeys(key for spec in [*points, *specs] for key in (spec.get("swept") or {})))
    known = {_place(point, keys): _settings(point, keys) for point in points}
    settings = [_settings(spec, keys) for spec in specs]
    references = [known.get(_place(spec, keys)) for spec in specs]
    strays = [flat for flat, reference in zip(settings, references, strict=True) if reference is None]
    first = strays[0] if strays else {}
    everywhere = {key: value for key, value in first.items() if all(_same(stray, key, value) for stray in strays)}
    texts = []
    for flat, reference in zip(settings, references, strict=True):
        base = everywhere if reference is None else reference
        texts.append(" ".join(f"{key}={_text(value)}" for key, value in flat.items() if not _same(base, key, value)))
    return texts


def _same(settings: Mapping[str, object], key: str, value: object) -> bool:
    return key in settings and settings[key] == value


def _place(spec: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return what identifies a run's point in the sweep, whatever its seed."""
    return repr([get(spec.get("run") or {}, key.split(".")) for key in keys if key != "seed"])


def _settings(spec: Mapping[str, Any], swept: Sequence[str]) -> dict[str, object]:
    """Return everything else that is set in a run and can change its curve."""
    return {
        key: value
        for key, value in flatten(spec.get("run") or {}).items()
        if key not in _NO_EFFECT and not any(key == name or key.startswith(f"{name}.") for name in swept)
    }


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return str(value)

"""What tells the runs of an experiment apart: the swept values, in words, and deviations from its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpcps.spec.label import labels
from hpcps.spec.tree import Tree, get

_NO_EFFECT = {"name", "description", "seed", "data.dir"} | {
    *(f"checkpoint.{key}" for key in ("every", "keep", "margin", "successors")),
    *(f"transport.{key}" for key in ("timeout", "interface", "port", "heartbeat_timeout", "resend")),
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


def product_keys(specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]] = ()) -> tuple[str, ...]:
    """Return the keys, in order, whose product the sweep is: those that most points of the file (or runs) sweep.

    A point that sets other keys instead, such as Figure 7's "validation only", is outside of it. Runs of an earlier
    file that sweep fewer keys, or further ones, are not.
    """
    swept = [_swept(spec) for spec in (*points, *specs)]
    if not swept:
        return ()
    main = max(Counter([_swept(spec) for spec in (points or specs)]).items(), key=lambda item: item[1])[0]
    further = [keys for keys in swept if main and set(main) <= set(keys)]
    return tuple(dict.fromkeys(key for keys in (main, *further) for key in keys))


def outside(spec: Mapping[str, Any], product: Sequence[str]) -> str:
    """Return the label of a run that is outside the product of the sweep; empty for one that is inside."""
    inside = set(_swept(spec)) <= set(product)
    return "" if inside else str(spec.get("label") or " ".join(_swept(spec)))


def variants(specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Say of each run what it has that is not in its experiment file, such as `"data.limit=5000 train.epochs=4"`.

    Runs of different variants must not be drawn as one curve. Swept keys and the seed make no variant.

    Args:
        specs: what `spec.json` holds of each run (`swept`, `run`).
        points: the same of the points of the experiment file, where there is one. A run with no such point is compared
            with the other runs instead: it shows the values that not all of them have.
    """
    product = product_keys(specs, points)
    texts = [""] * len(specs)
    # What a point outside the product sets would otherwise count as swept in all of them.
    for keys in dict.fromkeys(_keys(spec, product) for spec in specs):
        mine = [place for place, spec in enumerate(specs) if _keys(spec, product) == keys]
        theirs = [point for point in points if _keys(point, product) == keys]
        for place, text in zip(mine, _variants([specs[place] for place in mine], theirs, keys), strict=True):
            texts[place] = text
    return texts


def _swept(spec: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(key for key in (spec.get("swept") or {}) if key != "seed")


def _keys(spec: Mapping[str, Any], product: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that tell a run from others like it: those of the product, or its own if it is outside."""
    return _swept(spec) if outside(spec, product) else product


def _variants(
    specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> list[str]:
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
    return repr([get(spec.get("run") or {}, key.split(".")) for key in keys])


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

"""The differences between the runs of an experiment: swept values as text, and deviations from its file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hpcps.inputs import printable
from hpcps.spec.identity import affects_results, revisions
from hpcps.spec.label import Defaults, default_of, labels
from hpcps.spec.schema import Run
from hpcps.spec.settings import of_headings
from hpcps.spec.tree import flatten, get


def in_words(specs: Sequence[Mapping[str, Any]], key: str) -> list[object]:
    """Return the value of a dotted key in each run; tables become text as in the runs' labels.

    Args:
        specs: the content of `spec.json` of each run.
        key: the key.
    """
    path = tuple(key.split("."))
    runs = [spec.get("run") or {} for spec in specs]
    values = [get(run, path) for run in runs]
    if any(isinstance(value, Mapping) for value in values):
        # A key may have a number or a table: labels are for tables.
        words = labels(runs, [path], key, recorded_defaults(specs))
        return [v if isinstance(v, (int, float)) else word for v, word in zip(values, words, strict=True)]
    # Figures would name the values of booleans 0 and 1.
    values = [str(value).lower() if isinstance(value, bool) else value for value in values]
    plain = [value if value is None or isinstance(value, (int, float, str)) else _text(value) for value in values]
    return [printable(value) if isinstance(value, str) else value for value in plain]


def heading_settings(specs: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return for each run the settings that a heading names, because no label states them; see `of_headings`.

    Args:
        specs: the content of `spec.json` of each run.
    """
    runs = [spec.get("run") or {} for spec in specs]
    swept = [[tuple(key.split(".")) for key in spec.get("swept") or {}] for spec in specs]
    return of_headings(runs, swept, recorded_defaults(specs))


def recorded_defaults(specs: Sequence[Mapping[str, Any]]) -> Defaults:
    """Return the defaults of the plugins' and packages' components, which are not loaded to read records."""
    found: dict[tuple[str, str], Mapping[str, object]] = {}
    for spec in specs:
        components = spec.get("components")
        for key, facts in components.items() if isinstance(components, dict) else ():
            if isinstance(defaults := get(facts, ("defaults",)), dict):
                found[key.rpartition(".")[2].partition("[")[0], str(facts.get("name"))] = defaults
    return found


def product_keys(specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]] = ()) -> tuple[str, ...]:
    """Return the keys, in order, whose product is the sweep: those that most points of the file (or runs) sweep.

    A point that sets other keys instead, such as an included "validation only", is outside of it. Runs of an earlier
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
    """Return the differences of each run from its experiment file, such as `"data.limit=5000 train.epochs=4"`.

    Runs of different variants must not be drawn as one curve. Swept keys and the seed make no variant. A revision of
    the code that changes results makes one, for runs from before it (`before=first-step`).

    Args:
        specs: the content of `spec.json` of each run (`swept`, `run`).
        points: the same for the points of the experiment file, if there is one. A run without such a point is compared
            with the other runs: its variant has the values that not all of them share.
    """
    product = product_keys(specs, points)
    texts = [""] * len(specs)
    # Otherwise the keys of a point outside the product would count as swept in all runs.
    for keys in dict.fromkeys(_keys(spec, product) for spec in specs):
        mine = [place for place, spec in enumerate(specs) if _keys(spec, product) == keys]
        theirs = [point for point in points if _keys(point, product) == keys]
        for place, text in zip(mine, _variants([specs[place] for place in mine], theirs, keys), strict=True):
            texts[place] = text
    return [
        " ".join([*filter(None, [text]), *(f"before={name}" for name in _missed(spec))])
        for text, spec in zip(texts, specs, strict=True)
    ]


def _missed(spec: Mapping[str, Any]) -> list[str]:
    """Return the revisions that are newer than a run and change its results."""
    try:
        run = Run.model_validate_json(json.dumps(spec.get("run")))
    except ValidationError:
        return []  # a version with other keys, which already distinguish it
    return [name for name in revisions(run) if name not in spec.get("revisions", ())]


def _swept(spec: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(key for key in (spec.get("swept") or {}) if key != "seed")


def _keys(spec: Mapping[str, Any], product: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys that distinguish a run: those of the product, or its own if it is outside."""
    return _swept(spec) if outside(spec, product) else product


def _variants(
    specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> list[str]:
    known = {_place(point, keys): _settings(point, keys) for point in points}
    settings = [_settings(spec, keys) for spec in specs]
    for flat, searched in zip(settings, _searched(specs, keys), strict=True):
        for key in [key for key in flat if _is_part(key, searched)]:
            del flat[key]
    references = [known.get(_place(spec, keys)) for spec in specs]
    dropped = [flat for flat, reference in zip(settings, references, strict=True) if reference is None]
    first = dropped[0] if dropped else {}
    everywhere = {key: value for key, value in first.items() if all(_same(stray, key, value) for stray in dropped)}
    usual = recorded_defaults(specs)
    texts = []
    for flat, reference in zip(settings, references, strict=True):
        base = everywhere if reference is None else reference
        said = {key: value for key, value in flat.items() if not _same(base, key, value)}
        said = {key: value for key, value in said.items() if key in base or not _is_default(flat, key, usual)}
        texts.append(" ".join(f"{key}={_text(value)}" for key, value in said.items()))
    return texts


def _is_default(flat: Mapping[str, object], key: str, recorded: Defaults) -> bool:
    """Return whether a value is the default of a key of a component, so that the name of the component says it."""
    table, _, name = key.rpartition(".")
    kind = flat.get(f"{table}.kind")
    return name != "kind" and isinstance(kind, str) and default_of(table.split("."), kind, name, recorded) == flat[key]


def _searched(specs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[Mapping[str, object]]:
    """Return the values of each run that a search chose and that make no variant.

    Each rule may have a value of its own. But if two searches chose different values for the same point of the sweep,
    the values distinguish their runs.
    """
    chosen: list[dict[str, object]] = [get(dict(spec), ("search", "values")) or {} for spec in specs]
    places = [_place(spec, keys) for spec in specs]
    different = {(place, repr(values)) for place, values in zip(places, chosen, strict=True) if values}
    searches = Counter(place for place, _ in different)
    return [values if searches[place] == 1 else {} for place, values in zip(places, chosen, strict=True)]


def _is_part(key: str, names: Iterable[str]) -> bool:
    """Return whether a key is one of the names, or in one of their tables."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _same(settings: Mapping[str, object], key: str, value: object) -> bool:
    return key in settings and settings[key] == value


def _place(spec: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return a text that identifies a run's point in the sweep, independent of the seed."""
    return repr([get(spec.get("run") or {}, key.split(".")) for key in keys])


def _settings(spec: Mapping[str, Any], swept: Sequence[str]) -> dict[str, object]:
    """Return all other values of a run that can change its curve, without the seed."""
    flat = flatten(spec.get("run") or {})
    simulated = flat.get("simulation.kind", "none") != "none"
    remembers = flat.get("survive.residual") == "checkpoint"
    return {
        key: value
        for key, value in flat.items()
        if key != "seed" and affects_results(key, simulated=simulated, remembers=remembers) and not _is_part(key, swept)
    }


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}={_text(item)}" for key, item in value.items() if item not in (None, [])) + "}"
    return str(value)

"""The plugin files that an experiment names, and the components that a run uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, cast

from hpcps.registry import KINDS, Config, Entry, Registry, active, installed
from hpcps.registry.components import Plugin
from hpcps.registry.plugins import PluginError, clashes, load, read_plugin
from hpcps.spec.mistakes import Mistakes
from hpcps.spec.overrides import Override
from hpcps.spec.problems import Problem
from hpcps.spec.schema import Run
from hpcps.spec.tree import Tree


def plugins_named(tables: Tree, over: Sequence[Override]) -> Any:
    """Return the value of `plugins`: that of a `--set`, or else that of the file."""
    return next((each.value for each in reversed(over) if each.key == ("plugins",)), tables.get("plugins"))


def registry_of(file: Path, tables: Tree, over: Sequence[Override], mistakes: Mistakes) -> Registry:
    """Execute the plugin files of an experiment and return the registry with their components.

    Args:
        file: the experiment file; the names of plugins are relative to its folder.
        tables: its content.
        over: `--set` values; a value of `plugins` replaces that of the file.
        mistakes: receives the mistakes in the plugins.

    Raises:
        SpecError: there are mistakes.
    """
    names = plugins_named(tables, over)
    if not names or not isinstance(names, list | tuple):
        return installed()  # the schema rejects any other value
    plugins: list[Plugin] = []
    problems: list[Problem] = []
    for place, name in enumerate(names):
        if not isinstance(name, str):
            continue
        path = file.parent / name
        try:
            plugins.append(load(read_plugin(path), path, trial=True))
        except PluginError as error:
            problems.append(Problem(("plugins", place), str(error)))
    problems += [Problem(("plugins",), clash) for clash in clashes(plugins)]
    for problem in problems:
        mistakes.add(problem, over)
    if problems:
        mistakes.stop()  # without their components, other keys of the file would look wrong
    return Registry(plugins)


_SELECTED = [kind for kind in KINDS.values() if kind.key]


def used(run: Run) -> Mapping[str, Entry]:
    """Return the components that a run uses, by the key that selects each of them.

    The registry with which the run was validated must be active.
    """
    values = (reduce(_value, kind.key.split("."), cast(object, run)) for kind in _SELECTED)
    return _entries(active(), tuple(map(_types, values)))


def _value(table: object, name: str) -> object:
    return getattr(table, name, ())  # rules of asynchronous training have nothing before them


def _types(value: object) -> type[Config] | tuple[type[Config], ...]:
    """Return the class of a component, or those of a list of components."""
    return type(value) if isinstance(value, Config) else tuple(map(type, value)) if isinstance(value, tuple) else ()


@lru_cache(1024)  # most points of a sweep use the same components
def _entries(
    registry: Registry, components: tuple[type[Config] | tuple[type[Config], ...], ...]
) -> Mapping[str, Entry]:
    found = {}
    for kind, selected in zip(_SELECTED, components, strict=True):
        listed = isinstance(selected, tuple)
        for place, component in enumerate(selected if isinstance(selected, tuple) else (selected,)):
            key = f"{kind.key}[{place}]" if listed else kind.key
            found[key] = registry.of(kind.name).entry(kind.name_of(component))
    return found


def components_of(entries: Mapping[str, Entry]) -> dict[str, dict[str, object]]:
    """Return what records and provenance say of the components that a run uses, as JSON values."""
    return {key: entry.described for key, entry in entries.items()}


def plugins_of(entries: Mapping[str, Entry]) -> list[dict[str, str]]:
    """Return the plugin files that a run uses: `file`, `sha256` and `text` of each."""
    return [
        plugin.described() for plugin in active().plugins if any(entry in plugin.entries for entry in entries.values())
    ]

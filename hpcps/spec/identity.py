"""The identity of a run: a hash of everything that affects its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from hpcps.registry import Config, Entry, OneOf
from hpcps.spec.plugins import used
from hpcps.spec.revisions import revisions
from hpcps.spec.schema import Run
from hpcps.spec.simulation import NoSimulation

SCHEMA_VERSION = 1
"""Raise it when a default or the meaning of a key changes; all runs then get new ids. A new key does not need it. A
change of the results of only some runs goes into `revisions`."""

IRRELEVANT = frozenset(
    {
        *("name", "description", "baseline", "plugins", "fidelity", "data.dir", "train.mps", "checkpoint"),
        *("transport.partition", "transport.timeout", "transport.shared_memory", "transport.interface"),
        *("transport.port", "transport.heartbeat_timeout", "transport.resend"),
    }
)
"""Keys and tables that do not affect results; `fidelity` acts only through the keys that it sets."""

TIMED = frozenset({"transport.partition"})
"""Those of `IRRELEVANT` that affect the simulated time, which is a result of a simulation."""


@cache
def affects_results(key: str, *, simulated: bool) -> bool:
    """Tell whether a dotted key affects the results of a run."""
    if simulated and key in TIMED:
        return True
    return not any(key == name or key.startswith(f"{name}.") for name in IRRELEVANT)


def run_id(run: Run, components: Mapping[str, Entry] | None = None) -> str:
    """Return the run's id: ten hexadecimal digits that equal specs share.

    Only values that differ from their defaults enter, so a key that is added later, with a default that leaves
    everything as it was, does not change the id of any run. Of components that are not built in, the text of the plugin
    or the version of the package enters.

    Args:
        run: the run.
        components: what `used` returns for it; by default it is called, with the registry that is active.
    """
    entries = used(run) if components is None else components
    content = {"schema": SCHEMA_VERSION, "run": _changes(run, "", run)}
    if foreign := {key: entry.origin.identity for key, entry in entries.items() if entry.origin.identity}:
        content["components"] = foreign
    if revised := revisions(run):
        content["revisions"] = revised
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:10]


def _changes(table: Config, prefix: str, run: Run) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    derived, simulated = run.derived(), not isinstance(run.simulation, NoSimulation)
    for name, field in type(table).model_fields.items():
        path = prefix + name
        value = getattr(table, name)
        if not affects_results(path, simulated=simulated) or value == field.default:
            continue
        if prefix == "data." and name in derived and value == derived[name]:
            continue
        if not isinstance(value, Config):
            changes[name] = _canonical(value)
            continue
        inner = _changes(value, f"{path}.", run)
        component = next((each.kind for each in field.metadata if isinstance(each, OneOf)), None)
        tag = component.tag if component else str(field.discriminator or "")
        if tag:
            inner[tag] = getattr(value, tag)
        if inner:
            changes[name] = inner[tag] if component and component.shorthand and len(inner) == 1 else inner
    return changes


def _canonical(value: object) -> Any:
    """Return equal numbers in the same form: 1.0 as 1, and no negative zero."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_canonical(item) for item in value]
    return value

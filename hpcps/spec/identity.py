"""The identity of a run: a hash of what affects its results."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hpcps.config import Config
from hpcps.spec.schema import Run

SCHEMA_VERSION = 1
"""Raise it when a default or the meaning of a key changes: old runs are then other runs. A new key needs nothing."""

IRRELEVANT = frozenset({"name", "description", "fidelity", "data.dir", "train.mps", "checkpoint"}) | {
    f"transport.{key}" for key in ("timeout", "shared_memory", "interface", "port", "heartbeat_timeout", "resend")
}
"""Keys that do not affect results; `fidelity` acts through the keys that it expands to."""


def run_id(run: Run) -> str:
    """Return the run's id: ten hexadecimal digits that equal specs share.

    Only values that differ from their defaults enter, so a key that is added later, with a default that leaves
    everything as it was, does not change the id of any run.
    """
    content = {"schema": SCHEMA_VERSION, "run": _changes(run, "", run.derived())}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:10]


def _changes(table: Config, prefix: str, derived: dict[str, object]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, field in type(table).model_fields.items():
        path = prefix + name
        value = getattr(table, name)
        if path in IRRELEVANT or (not field.is_required() and value == field.get_default()):
            continue
        if prefix == "data." and name in derived and value == derived[name]:
            continue
        if not isinstance(value, Config):
            changes[name] = _canonical(value)
            continue
        inner = _changes(value, f"{path}.", derived)
        if field.discriminator is not None:
            inner["kind"] = value.model_dump(include={"kind"})["kind"]
        if inner:
            changes[name] = inner
    return changes


def _canonical(value: object) -> Any:
    """Write equal numbers alike: 1.0 as 1, and no negative zero."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_canonical(item) for item in value]
    return value

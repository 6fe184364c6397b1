"""Write the reference of the Python interface: what `hpcps` exports, and the classes that users derive from."""

from __future__ import annotations

import inspect
from importlib import import_module

import hpcps
from hpcps.registry import KINDS

BASES = (
    "hpcps.rules.base.Rule",
    "hpcps.rules.asynchronous.AsyncRule",
    "hpcps.attacks.base.Attack",
    "hpcps.attacks.sending.LabelAttack",
)
OTHERS = {
    "PyTorch scripts": ("hpcps.torch",),
    "Scripts without PyTorch": ("hpcps.numpy", "hpcps.jax", "hpcps.tensorflow", "hpcps.keras"),
    "Key-value store": ("hpcps.kvstore.Client", "hpcps.kvstore.Server"),
    "Records": ("hpcps.records.files.read_lines", "hpcps.records.collect.collect"),
    "Errors": ("hpcps.errors",),
}


def reference() -> str:
    """Return the Markdown page part: a block of mkdocstrings for each name."""
    errors = import_module("hpcps.errors")
    exported = [name for name in getattr(hpcps, "__all__", ()) if not hasattr(errors, name)]
    ours = [f"hpcps.{name}" for name in exported if not inspect.ismodule(getattr(hpcps, name))]
    parts = []
    if ours:
        parts.append("## `import hpcps`")
        parts += map(_block, ours)
    parts.append("## Classes to derive from")
    kinds = [kind.base.replace(":", ".") for kind in KINDS.values() if kind.name not in ("rules", "attacks")]
    parts += [_block(name) for name in (*BASES, *kinds)]
    for title, names in OTHERS.items():
        parts += [f"## {title}", *map(_block, names)]
    return "\n\n".join(parts)


def _block(name: str) -> str:
    return f"::: {name}"

"""Write the reference of the components: rules, attacks, data sets, splits, models and launchers."""

from __future__ import annotations

import inspect
import re
from html import escape

from hpcps.registry import KINDS, Entry, installed
from hpcps.spec.keys import keys_of
from hpcps.spec.reference import key_table


def reference() -> str:
    """Return the Markdown page part: a section for each kind, and in it one for each built-in component."""
    parts = []
    for kind in KINDS.values():
        where = f"`[{kind.key}]` of the experiment file selects one by `{kind.tag}`. " if kind.key else ""
        parts.append(f"## {kind.name.capitalize().replace('Datasets', 'Data sets')}")
        parts.append(f"{where}An own {kind.noun} derives from `{kind.base.replace(':', '.')}`.")
        components = installed().of(kind.name)
        parts += [_section(components.entry(name)) for name in components]
    return "\n\n".join(parts)


def _section(entry: Entry) -> str:
    component = entry.component
    title, *rest = inspect.cleandoc(component.__doc__ or "").split("\n\n")
    facts = [
        f"`{name}`: {', '.join(value) or 'nothing' if isinstance(value, list) else value}"
        for name, value in component.declarations().items()
    ]
    keys = {name: key for name, key in keys_of(component).items() if name != entry.kind.tag}
    about = [_plain(part) for part in (title, *rest)]
    parts = [f"### `{entry.name}` {{ #{entry.kind.name}-{_anchor(entry.name)} }}", *about, "; ".join(facts)]
    parts.append(key_table(keys) if keys else f"It has no keys but `{entry.kind.tag}`.")
    return "\n\n".join(part for part in parts if part)


def _anchor(name: str) -> str:
    return name.replace("+", "-plus")


def _plain(paragraph: str) -> str:
    """Escape a paragraph of a docstring outside of its code: formulas have characters that are markup otherwise."""
    code = re.split(r"(`[^`]*`)", " ".join(paragraph.split()))
    return "".join(p if p.startswith("`") else re.sub(r"([*_\\[\]])", r"\\\1", escape(p, quote=False)) for p in code)

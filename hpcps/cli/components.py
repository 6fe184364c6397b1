"""`hpcps components`: lists all kinds of components (rules, attacks, models, transports, …), and their keys."""

from __future__ import annotations

import argparse
import inspect
import textwrap

from hpcps.errors import SpecError
from hpcps.registry import KINDS, ComponentKind, Entry, active
from hpcps.registry.similarity import nearest
from hpcps.spec.keys import expects, keys_of, plain


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("components", help="list the components, or describe one", description=__doc__)
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a component of this kind")
    parser.add_argument("--file", metavar="FILE", help="also list the plugins of this experiment file")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print the list or the page."""
    if args.file:
        from hpcps.spec.load import activate_plugins

        activate_plugins(args.file)
    if args.kind is None:
        print("\n".join(_overview()))
        return 0
    if args.kind not in KINDS:
        raise SpecError(_unknown_kind(args.kind))
    kind = KINDS[args.kind]
    components = active().of(kind.name)
    if args.name is None:
        print("\n".join(line for name in components for line in _line(components.entry(name))))
        return 0
    print("\n".join(_page(components.entry(args.name))))
    return 0


def _unknown_kind(name: str) -> str:
    of_kind = next((f"`hpcps components {kind} {name}`" for kind in KINDS if name in active().of(kind)), None)
    near = nearest(name, KINDS)
    guess = of_kind or (repr(near) if near else None)
    hint = f": did you mean {guess}?" if guess else "."
    return f"unknown kind of component {name!r}{hint} There are: {', '.join(KINDS)}"


def _overview() -> list[str]:
    lines = []
    for kind in KINDS.values():
        names = ", ".join(active().of(kind.name))
        lines += textwrap.wrap(f"{kind.name:<11} {names}", 110, subsequent_indent=" " * 12)
    return [*lines, "", "`hpcps components KIND` describes each; `hpcps components KIND NAME` lists its keys."]


def _line(entry: Entry) -> list[str]:
    try:
        summary = _paragraphs(entry)[0]
    except SpecError as error:
        summary = f"cannot be used: {error}"
    origin = "" if entry.origin.words == "built in" else f" ({entry.origin.words})"
    return textwrap.wrap(f"{entry.name:<20} {summary}{origin}", 110, subsequent_indent=" " * 21)


def _page(entry: Entry) -> list[str]:
    """Return a component's page: its docstring, its origin, its declarations and its keys."""
    lines = [f"{entry.kind.noun} {entry.name} ({entry.origin.words})", ""]
    for paragraph in _paragraphs(entry):
        lines += [*textwrap.wrap(paragraph, 110), ""]
    for name, value in entry.component.declarations().items():
        lines.append(f"{name}: {', '.join(value) or 'nothing' if isinstance(value, list) else value}")
    keys = {name: key for name, key in keys_of(entry.component).items() if name != entry.kind.tag}
    lines += ["", f"keys of {_table(entry.kind)}:" if keys else f"it has no keys but {entry.kind.tag}"]
    for name, key in keys.items():
        default = "required" if key.required else f"default {plain(key.default)}" if key.default is not None else ""
        what = "; ".join(filter(None, (expects(key), default)))
        lines += textwrap.wrap(f"  {name}: {key.description} ({what})", 110, subsequent_indent="      ")
    return lines


def _table(kind: ComponentKind) -> str:
    return f"[{kind.key}]" if kind.key else f"a {kind.noun}"


def _paragraphs(entry: Entry) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(entry.component.__doc__ or "").split("\n\n")]

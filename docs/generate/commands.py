"""Write the reference of the command line from its parsers."""

from __future__ import annotations

import argparse
from html import escape

from hpcps.cli import configgen
from hpcps.cli.main import parser


def reference() -> str:
    """Return the Markdown page part: a section for each command."""
    top = parser()
    sections = [_section(command, f"hpcps {name}") for name, command in _commands(top).items()]
    sections.append(_section(configgen.parser(), "launcher/configgen.py"))
    return "\n\n".join(sections)


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (actions,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    return dict(actions.choices)


def _section(command: argparse.ArgumentParser, name: str) -> str:
    usage = " ".join(command.format_usage().removeprefix("usage: ").split())
    rows = [_row(action) for action in command._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    lines = [f"## `{name}`", command.description or "", f"```text\n{usage}\n```", "| Argument | Meaning |\n|---|---|"]
    return "\n\n".join(lines) + "\n" + "\n".join(rows)


def _row(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest)
    names = ", ".join(action.option_strings) if action.option_strings else str(value)
    if action.option_strings and action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
        names += f" {value if isinstance(value, str) else ' '.join(value)}"
    text = (action.help or "") % {**vars(action), "prog": "hpcps"}
    return f"| `{names}` | {escape(text).replace('|', chr(92) + '|')} |"

"""`hpcps completion`: prints a script with which a shell completes the command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from hpcps.registry import KINDS, active

_SHELLS = ("bash", "zsh", "fish")
_RESULTS = '"${HPCPS_RESULTS:-results}"'
_EXPERIMENTS = (
    f'find {_RESULTS} experiments -mindepth 1 -maxdepth 1 -type d -o -name "*.toml" 2>/dev/null'
    ' | sed "s|.*/||; s|[.]toml$||" | sort -u'
)
# All run ids would hide the names of the experiments, so a word has to begin like an id.
_RUNS = f'[ -z "$2" ] || find {_RESULTS} -path "*/runs/$2*" -prune 2>/dev/null | sed "s|.*/||"'


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser], top: argparse.ArgumentParser) -> None:
    """Add the command to the command line of the parser `top`, which it completes."""
    parser = commands.add_parser(
        "completion",
        help="print a script for the completion of the command line",
        description="Print a script with which a shell completes commands, options, experiments, runs and components: "
        "source <(hpcps completion bash)",
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.set_defaults(handler=partial(handle, top))


def handle(top: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Print the script of a shell for a command line."""
    import shtab

    values = _values()
    for command, action in _actions(top):
        value = values.get((command, action.dest)) or values.get(("", action.dest))
        if value is not None and action.choices is None:
            action.complete = value  # type: ignore[attr-defined]
    print(shtab.complete(top, args.shell))
    return 0


def _values() -> dict[tuple[str, str], Any]:
    """Return what completes each argument, by command (empty: any command) and name of the argument."""
    import shtab

    names = " ".join(f"{kind}) {_print(active().of(kind))} ;;" for kind in KINDS)
    return {
        # zsh takes `(*.toml)`, the pattern that shtab would write, for glob qualifiers.
        ("", "file"): {**shtab.glob("*.toml"), "zsh": "_files -g '*.toml'"},
        ("", "experiment"): _lines("_hpcps_experiments", _EXPERIMENTS),
        ("", "what"): _lines("_hpcps_runs", f"{_EXPERIMENTS}; {_RUNS}"),
        ("components", "kind"): _lines("_hpcps_kinds", _print(KINDS)),
        ("components", "name"): _lines("_hpcps_components", f'case "$1" in {names} esac'),
        **{("", folder): shtab.DIRECTORY for folder in ("results", "output", "dir")},
        **{("", file): shtab.FILE for file in ("hostfile", "mpirun")},
        ("report", "output"): shtab.FILE,
    }


def _print(names: Iterable[str]) -> str:
    """Return a shell command that prints a name per line."""
    return f"printf '%s\\n' {shlex.join(names)}"


def _lines(name: str, script: str) -> dict[str, Any]:
    """Complete a word with the lines that a POSIX shell script prints.

    Args:
        name: the name of the shell function to define.
        script: the script; `$1` is the word before, `$2` the beginning of the word.
    """
    script = f"sh -c {shlex.quote(script)} hpcps"
    zsh = f'compadd -- ${{(f)"$({script} "${{words[CURRENT-1]}}" "$PREFIX")"}}'
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({name})",
        "preamble": {
            "bash": f'{name}() {{\n  compgen -W "$({script} "${{COMP_WORDS[COMP_CWORD-1]}}" "$1")" -- "$1"\n}}',
            "zsh": f"{name}() {{\n  {zsh}\n}}",
            "fish": f"function {name}\n  {script} (commandline -opc)[-1] (commandline -ct)\nend",
        },
    }


def _actions(top: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield the arguments of every command with the name of the command."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, parser in action.choices.items():
                yield from ((command, each) for each in parser._actions)

"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcps.records.locate import default_results

_BYTE_ORDER_MARK = "\ufeff"
"""Some editors begin a file with it."""


class ArgumentFileParser(argparse.ArgumentParser):
    """A parser for which @FILE stands for the arguments in a file; it reads its lines as a shell does."""

    def __init__(self, *, fromfile_prefix_chars: str | None = "@", **keys: Any) -> None:
        super().__init__(fromfile_prefix_chars=fromfile_prefix_chars, **keys)

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Return the arguments in a line."""
        try:
            return shlex.split(arg_line.removeprefix(_BYTE_ORDER_MARK), comments=True)
        except ValueError as error:
            self.error(f"{str(error).lower()} in the line of an @FILE: {arg_line[:200]}")


def count(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers with a minimum, and with a maximum if one is given."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
            limit = "" if most is None else f" and ≤ {most}"
            raise argparse.ArgumentTypeError(f"expects a whole number ≥ {least}{limit}, got {text!r}")
        return int(text)

    return read


def add_point_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--set` and `--only` to a parser; docs/reference/experiment-file.md has the details."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change the value of a key"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SELECTOR",
        help="select points: indices (3, 0-3), run ids, parts of labels or key=value conditions; commas widen the "
        "selection, and a further --only narrows it",
    )


def add_results_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--results DIR`; see `default_results`."""
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=default_results(),
        help="the folder of all results; default: $HPCPS_RESULTS, else results",
    )


def add_experiment_argument(parser: argparse.ArgumentParser) -> None:
    """Add the experiment whose results a command reads; see `locate`."""
    parser.add_argument("experiment", help="experiment file, results folder, name, or a prefix of the name")


def add_compare_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--compare` to a parser."""
    parser.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        metavar="FILE",
        default=[],
        help="draw curves of others as thin lines: CSV or JSON lines with rule, attack, epoch, accuracy (0 to 1)",
    )

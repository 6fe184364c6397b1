"""The targets of the benchmarks, which the front page lists with the measured values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

FOLDER = "bars"


@dataclass(frozen=True)
class Bar:
    """A target and the measured value.

    Attributes:
        what: the measured quantity, in one line.
        wanted: the target, such as `≤ 0.50`.
        measured: the measured value, such as `0.43`.
        holds: whether the target is reached.
        date: the date of the measurement, such as `2026-11-21`; `write` sets it if it is empty.
    """

    what: str
    wanted: str
    measured: str
    holds: bool
    date: str = ""

    @staticmethod
    def at_most(what: str, measured: float, limit: float) -> Bar:
        """Return the bar of a number with an upper limit; the number counts as it is shown."""
        return Bar(what, f"≤ {limit:.2f}", f"{measured:.2f}", round(measured, 2) <= limit)

    @staticmethod
    def at_least(what: str, measured: float, limit: float) -> Bar:
        """Return the bar of a number with a lower limit; the number counts as it is shown."""
        return Bar(what, f"≥ {limit:.2f}", f"{measured:.2f}", round(measured, 2) >= limit)


def write(results: Path, benchmark: str, bars: Sequence[Bar]) -> None:
    """Write a benchmark's bars, with today's date unless they have one, to the folder of results for the front page."""
    folder = results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    dated = [asdict(replace(bar, date=bar.date or date.today().isoformat())) for bar in bars]
    (folder / f"{benchmark}.json").write_text(json.dumps(dated, indent=1) + "\n")


def read(results: Path, benchmark: str) -> list[Bar]:
    """Return the bars that a benchmark has written; empty if there are none."""
    file = results / FOLDER / f"{benchmark}.json"
    return [Bar(**bar) for bar in json.loads(file.read_text())] if file.exists() else []

"""The bars that measurements are held against, and the front page that lists them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

FOLDER = "bars"


@dataclass(frozen=True)
class Bar:
    """One thing that was to be reached.

    Attributes:
        what: what was measured, in a line.
        wanted: what it should be, such as `≤ 0.50`.
        measured: what it was, such as `0.43`.
        holds: whether that is enough.
        date: when it was measured, such as `2026-11-21`; `write` knows.
    """

    what: str
    wanted: str
    measured: str
    holds: bool
    date: str = ""

    @staticmethod
    def at_most(what: str, measured: float, limit: float) -> Bar:
        """A number that is to be small."""
        return Bar(what, f"≤ {limit:.2f}", f"{measured:.2f}", measured <= limit)

    @staticmethod
    def at_least(what: str, measured: float, limit: float) -> Bar:
        """A number that is to be large."""
        return Bar(what, f"≥ {limit:.2f}", f"{measured:.2f}", measured >= limit)


def write(results: Path, benchmark: str, bars: Sequence[Bar]) -> None:
    """Leave a benchmark's bars in the folder of results, for the front page, as measured today."""
    folder = results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    dated = [asdict(replace(bar, date=date.today().isoformat())) for bar in bars]
    (folder / f"{benchmark}.json").write_text(json.dumps(dated, indent=1) + "\n")


def read(results: Path, benchmark: str) -> list[Bar]:
    """Return the bars that a benchmark has left; none if it has not."""
    file = results / FOLDER / f"{benchmark}.json"
    return [Bar(**bar) for bar in json.loads(file.read_text())] if file.exists() else []

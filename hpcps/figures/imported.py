"""Which figures imported logs have data for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.method_comparison import comparisons_of
from hpcps.figures.speedup import speedups_of
from hpcps.records.imported_logs import imported_system

_MEASURES: Mapping[str, Callable[[pd.DataFrame], Sequence[Any]]] = {
    "": figure_data_of,
    "esync": lambda frame: comparisons_of([(frame, None)]),
    "speedup": speedups_of,
}
"""What the figures of each kind show, see `LoggedSystem.kinds`."""


def require_kind(frame: pd.DataFrame, kind: str) -> None:
    """Raise an error if a table has the logs of a system that has no figures of this kind.

    Raises:
        RunError: it does.
    """
    system, name = imported_system(frame), str(frame.attrs.get("experiment"))
    if system and kind not in system.kinds:
        others = f"{system.draw(name, system.kinds)} what they have"
        raise RunError(f"`hpcps plot {kind}` is not for {name}, which has logs of {system.title}: {others}")


def drawn_by(frame: pd.DataFrame) -> str:
    """Return the commands that draw a table of imported logs, with their verb; empty if it has no data for them."""
    system = imported_system(frame)
    assert system is not None, "the table has imported logs"
    return system.draw(str(frame.attrs.get("experiment")), [kind for kind in system.kinds if _has_data(frame, kind)])


def _has_data(frame: pd.DataFrame, kind: str) -> bool:
    with suppress(RunError):
        return bool(_MEASURES[kind](frame))
    return False

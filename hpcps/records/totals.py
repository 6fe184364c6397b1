"""The totals of each process of a run: its work, the time of each of its activities and its traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcps.records.table import tabulate

EVENT = "totals"
"""The event of these rows; no process writes it."""

COUNTED = ("samples", "bytes_sent", "bytes_received")
SECONDS = ("compute", "evaluate", "combine", "exchange", "wait", "cpu")

_CONSTANT = ("host", "class")
"""What a process states once."""

_ACCOUNTS = ("round", "applied", "published", "end")


def sum_processes(table: Any) -> Any:
    """Sum the counts and times of each process.

    Args:
        table: the Arrow table of a run's records.

    Returns:
        A row per process with lines that have counts and times: `event` ("totals"), `role`, `index`, `host`, `class`
        (if it has one), `rounds` (the number of its `round` lines), the sums of `COUNTED` and `SECONDS` over all its
        lines, and `time`: the seconds from the start of the run to its last round, or to its last line if it has no
        rounds.
    """
    wanted = ("event", "role", "index", "time", *_CONSTANT, *COUNTED, *SECONDS)
    rows = table.select([name for name in wanted if name in table.column_names]).to_pandas()
    constant = rows.groupby(["role", "index"], observed=True)[[name for name in _CONSTANT if name in rows]].first()
    rows = rows[rows["event"].isin(_ACCOUNTS)]
    found = []
    for (role, index), own in rows.groupby(["role", "index"], sort=False, observed=True):
        rounds = own[own["event"] == "round"]
        line = {"event": EVENT, "role": str(role), "index": int(index), "rounds": len(rounds)}
        line |= {name: str(value) for name, value in constant.loc[(role, index)].items() if not pd.isna(value)}
        line |= {name: int(np.nansum(own[name].to_numpy(np.float64))) for name in COUNTED if name in own}
        line |= {name: float(np.nansum(own[name].to_numpy(np.float64))) for name in SECONDS if name in own}
        last = (rounds if len(rounds) else own)["time"].max()
        found.append(line | {"time": float(last)})
    return tabulate(found)

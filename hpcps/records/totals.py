"""The totals of each process of a run: its work, the time of each of its activities and its traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcps.records.table import tabulate

EVENT = "totals"
"""The event of these rows; no process writes it."""

COUNTED = ("samples", "overrun_steps", "bytes_sent", "bytes_received")
SECONDS = ("compute", "evaluate", "combine", "exchange", "wait", "cpu")

_CONSTANT = ("host", "class")
"""What a process states once."""

_NEEDED = {"event", "role", "index", "time"}
_ACCOUNTS = ("round", "applied", "published", "end")


def sum_processes(table: Any) -> Any:
    """Sum the counts and times of each process.

    Args:
        table: the Arrow table of a run's records.

    Returns:
        A row per process with lines that have counts and times: `event` ("totals"), `role`, `index`, `host`, `class`
        (if it has one), `rounds` (the number of its `round` lines), `step_seconds` (the mean seconds of the local steps
        of these rounds, if it trains), the sums of `COUNTED` and `SECONDS` over all its lines, and `time`: the seconds
        from the start of the run to its last round, or to its last line if it has no rounds or did not finish.
    """
    if not set(table.column_names) >= _NEEDED:
        return tabulate([])
    wanted = (*_NEEDED, "reason", "step", *_CONSTANT, *COUNTED, *SECONDS)
    rows = table.select([name for name in wanted if name in table.column_names]).to_pandas()
    sums = [name for name in (*COUNTED, *SECONDS) if name in rows]
    for name in ("index", "time", *(["step"] if "step" in rows else []), *sums):
        # A damaged line may have a text instead of a number.
        rows[name] = pd.to_numeric(rows[name].astype(object), errors="coerce").astype(np.float64)
    found = []
    for (role, index), own in rows.groupby(["role", "index"], sort=False, observed=True):
        lines = own[own["event"].isin(_ACCOUNTS)]
        if lines.empty:
            continue
        rounds = lines[lines["event"] == "round"]
        row = {"event": EVENT, "role": str(role), "index": int(index), "rounds": len(rounds)}
        row |= {name: str(own[name].dropna().iloc[0]) for name in _CONSTANT if name in own and own[name].notna().any()}
        total = lines[sums].sum().to_dict()
        row |= {str(name): round(value) if name in COUNTED else value for name, value in total.items()}
        if "step" in rounds and "compute" in rounds and (steps := rounds["step"].max()) > 0:
            row["step_seconds"] = float(rounds["compute"].sum() / steps)
        last = lines["event"] == "round"
        if "reason" in lines:  # a process that was stopped in a round states in its last line what it did in it
            last |= (lines["event"] == "end") & (lines["reason"] != "finished")
        found.append(row | {"time": float((lines[last] if len(rounds) else lines)["time"].max())})
    return tabulate(found)

"""Sums over the lines of a run: up to each evaluation, of each process, and of applied updates by staleness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from hpcps.records.acceptance import APPLIED, rounds_of, stalled
from hpcps.records.bypass import COUNTS, count_by_round
from hpcps.records.table import stack, tabulate

_PAIRS = ("received_pairs", "sent_pairs", "accepted_pairs", "accepted_sent_pairs", "turned_pairs")
"""Counts of (update, block) pairs, in the rounds of the roles that combine or filter updates."""

_ACCEPTED = ("accepted_pairs", "accepted_sent_pairs")
"""Those of them that are unknown if a synchronous rule does not state which updates it accepts."""

TOTAL_COLUMNS = (
    "wall",
    "bytes_sent_total",
    "cpu_seconds_total",
    "diverged",
    "stalled",
    "rounds_total",
    "empty_rounds_total",
    *(f"{name}_total" for name in (*_PAIRS, *COUNTS)),
)
"""Additional columns of an evaluation's row."""

TOTALS = "totals"
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
        row = {"event": TOTALS, "role": str(role), "index": int(index), "rounds": len(rounds)}
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


UPDATES = "updates"
"""The event of these rows; no process writes it."""


def count_applied(table: Any) -> Any:
    """Count the applied updates of a run by worker and staleness.

    A long run has a hundred thousand `applied` rows on each server, and all servers record the same; the figures need
    only some hundred rows of counts.

    Args:
        table: the Arrow table of a run's records.

    Returns:
        A row per worker and staleness: `event` ("updates"), `role` and `index` (of server 0, which ordered the
        updates), `reader` (the worker), `staleness` and `count`; no rows if the run has applied no updates.
    """
    if not {"reader", "staleness"} <= set(table.column_names):
        return tabulate([])
    rows = table.select(["event", "role", "index", "reader", "staleness"]).to_pandas()
    applied = rows[(rows["event"] == "applied") & (rows["role"] == "server") & (rows["index"] == 0)]
    counts = applied.dropna(subset=["staleness"]).groupby(["reader", "staleness"], observed=True).size()
    return tabulate(
        [
            {"event": UPDATES, "role": "server", "index": 0, "reader": reader, "staleness": int(stale), "count": int(n)}
            for (reader, stale), n in counts.items()
        ]
    )


def with_totals(table: Any, *, workers: int) -> Any:
    """Add to each evaluation the totals of all roles up to its model, and count applied updates.

    Rounds give the order. In an asynchronous run each process counts its own rounds, so there the clocks give the
    order; the processes of a run start their clocks together.

    Args:
        table: the Arrow table of a run's records.
        workers: the number of workers of an asynchronous run; 0 for a synchronous one.
    """
    asynchronous = bool(workers)
    event = column_values(table, "event")
    moments = np.nan_to_num(column_values(table, "time" if asynchronous else "round"), nan=-1.0)
    evaluations, diverged = event == "evaluation", event == "diverged"
    worked = np.isin(event, ["round", "applied", "published"])
    order = np.argsort(moments[worked], kind="stable")
    before = np.searchsorted(moments[worked][order], moments[evaluations], side="left")
    columns: dict[str, tuple[Any, Any]] = {"wall": (column_values(table, "time")[evaluations], pa.float64())}
    sums = [("bytes_sent_total", "bytes_sent", pa.int64()), ("cpu_seconds_total", "cpu", pa.float64())]
    sums += [(f"{name}_total", name, pa.int64()) for name in (*_PAIRS, *COUNTS) if name in table.column_names]
    for name, field, kind in sums:
        spent = _counts(table, field)[worked][order]
        columns[name] = np.concatenate([[0.0], np.cumsum(spent)])[before], kind
    ends, empty = _rounds(table, worked, moments, workers)
    ended = np.searchsorted(np.sort(ends), moments[evaluations], side="left")
    without = np.searchsorted(np.sort(ends[empty]), moments[evaluations], side="left")
    columns |= {"rounds_total": (ended, pa.int64()), "empty_rounds_total": (without, pa.int64())}
    # A server reports the model that its round made; it is the model of the next round.
    late = 0 if asynchronous else column_values(table, "role") == "server"
    broken = (moments + late)[diverged]
    first = broken.min() if diverged.any() else np.inf
    broken_by_then = moments[evaluations] >= first
    columns["diverged"] = broken_by_then, pa.int8()
    columns["stalled"] = stalled(ended, without) & ~broken_by_then, pa.int8()
    for name, (values, kind) in columns.items():
        column = np.zeros(table.num_rows)
        column[evaluations] = values
        unknown = ~evaluations | np.isnan(column)
        table = table.append_column(name, pa.array(column, mask=unknown).cast(kind, safe=False))
    made = (count_applied(table), count_by_round(table), sum_processes(table))
    counts = [rows for rows in made if rows.num_rows]
    return stack([table, *counts]) if counts else table


def _rounds(table: Any, worked: Any, moments: Any, workers: int) -> tuple[Any, Any]:
    """Return when the rounds with updates ended, and which of them were empty; see `rounds_of`."""
    lines = {name: np.nan_to_num(column_values(table, name)[worked]) for name in ("round", "participants")}
    received = np.nan_to_num(column_values(table, "received_pairs")[worked])
    applied = np.sum([_counts(table, name)[worked] for name in APPLIED], axis=0)
    lines |= {"moment": moments[worked], "updates": lines["participants"], "received": received, "applied": applied}
    return rounds_of(lines, workers)


def _counts(table: Any, name: str) -> Any:
    """Return a column with 0 for null; with NaN for null accepted pairs in a line that has received pairs."""
    found = column_values(table, name)
    if name not in _ACCEPTED:
        return np.nan_to_num(found)
    return np.where(column_values(table, "received_pairs") > 0, found, np.nan_to_num(found))


def column_values(table: Any, name: str) -> Any:
    """Return a column as numpy: text as objects, numbers as float64 with NaN for null; missing columns are NaN."""
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    if name in ("event", "role"):
        return table[name].to_pandas().to_numpy(dtype=object)
    column = table[name].to_pandas()
    if pa.types.is_dictionary(table[name].type):  # a line has a text instead of a number
        column = pd.to_numeric(column.astype(object), errors="coerce")
    return column.to_numpy(dtype=np.float64)

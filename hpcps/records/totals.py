"""Sums over the lines of a run: up to each evaluation, of each process, and of applied updates by staleness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcps.records.acceptance import FIELDS, RoundCounts, stalled
from hpcps.records.bypass import COUNTS, count_by_round
from hpcps.records.files import MOST
from hpcps.records.table import numbers, stack, tabulate

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
SECONDS = ("compute", "evaluate", "combine", "exchange", "wait", "cpu", "cpu_evaluate")

_CONSTANT = ("host", "class", "device")
"""What a process states once."""

_ACCOUNTS = ("round", "applied", "published", "end")


def sum_processes(table: pd.DataFrame) -> pd.DataFrame:
    """Sum the counts and times of each process.

    Args:
        table: a run's records.

    Returns:
        A row per process with lines that have counts and times: `event` ("totals"), `role`, `index`, `host`, `class`
        and `device` (if it has one), `rounds` (the number of its `round` lines), `step_seconds` (the mean seconds of
        the local steps of these rounds, if it trains), the sums of `COUNTED` and `SECONDS` over all its lines, and
        `time`: the seconds from the start of the run to its last round, or to its last line if it has no rounds or did
        not finish.
    """
    if not {"event", "role", "index", "time"} <= set(table):
        return tabulate([])
    process, facts = ["role", "index"], [name for name in _CONSTANT if name in table]
    sums = [name for name in (*COUNTED, *SECONDS) if name in table]
    lines = table[table["event"].isin(_ACCOUNTS)]
    lines = lines.assign(**{name: numbers(lines, name) for name in ("step", *sums)}, is_round=lines["event"] == "round")
    found = lines.groupby(process, sort=False).agg({**dict.fromkeys(sums, "sum"), "is_round": "sum", "time": "max"})
    counted = [name for name in COUNTED if name in sums]
    found = found.rename(columns={"is_round": "rounds"})
    found[counted] = found[counted].clip(upper=MOST).astype(np.int64)
    rounds = lines[lines["is_round"]].groupby(process)
    if "compute" in sums:
        steps = rounds["step"].max()
        found["step_seconds"] = rounds["compute"].sum() / steps.where(steps > 0)
    last = lines["is_round"]
    if "reason" in lines:  # a process that was stopped in a round states in its last line what it did in it
        last = last | (lines["event"] == "end") & (lines["reason"] != "finished")
    ends = lines[last].groupby(process)["time"].max()
    found["time"] = ends.where(rounds.size() > 0).combine_first(found["time"])
    found = found.join(table.groupby(process)[facts].first()) if facts else found
    return found.reset_index().assign(event=TOTALS)


UPDATES = "updates"
"""The event of these rows; no process writes it."""


def count_applied(table: pd.DataFrame) -> pd.DataFrame:
    """Count the applied updates of a run by worker and staleness.

    A long run has a hundred thousand `applied` rows on each server, and all servers record the same; the figures need
    only some hundred rows of counts.

    Args:
        table: a run's records.

    Returns:
        A row per worker and staleness: `event` ("updates"), `role` and `index` (of server 0, which ordered the
        updates), `reader` (the worker), `staleness` and `count`; no rows if the run has applied no updates.
    """
    if not {"reader", "staleness"} <= set(table):
        return tabulate([])
    applied = table[is_in(table, "event", "applied") & is_in(table, "role", "server") & is_in(table, "index", 0)]
    counts = applied.groupby(["reader", "staleness"]).size().reset_index(name="count")
    return counts.assign(event=UPDATES, role="server", index=0)


def with_totals(table: pd.DataFrame, *, workers: int) -> pd.DataFrame:
    """Add to each evaluation the totals of all roles up to its model, and count applied updates.

    Rounds give the order. In an asynchronous run each process counts its own rounds, so there the clocks give the
    order; the processes of a run start their clocks together.

    Args:
        table: a run's records.
        workers: the number of workers of an asynchronous run; 0 for a synchronous one.
    """
    asynchronous = bool(workers)
    positions = np.nan_to_num(numbers(table, "time" if asynchronous else "round"), nan=-1.0)
    evaluations, diverged = (is_in(table, "event", event) for event in ("evaluation", "diverged"))
    worked = is_in(table, "event", "round", "applied", "published")
    order = np.argsort(positions[worked], kind="stable")
    before = np.searchsorted(positions[worked][order], positions[evaluations], side="left")
    totals: dict[str, Any] = {"wall": numbers(table, "time")[evaluations]}
    sums = {"bytes_sent_total": "bytes_sent", "cpu_seconds_total": "cpu"}
    sums |= {f"{name}_total": name for name in (*_PAIRS, *COUNTS) if name in table}
    for name, field in sums.items():
        spent = _counts(table, field)[worked][order]
        totals[name] = np.concatenate([[0.0], np.cumsum(spent)])[before]
    rounds = RoundCounts({name: numbers(table, name)[worked] for name in FIELDS}, workers)
    totals["rounds_total"], totals["empty_rounds_total"] = rounds.before(positions[evaluations])
    # A server reports the model that its round made; it is the model of the next round.
    late = 0 if asynchronous else is_in(table, "role", "server")
    first = (positions + late)[diverged].min(initial=np.inf)
    totals["diverged"] = positions[evaluations] >= first
    totals["stalled"] = stalled(totals["rounds_total"], totals["empty_rounds_total"]) & ~totals["diverged"]
    found = pd.DataFrame(totals, index=table.index[evaluations]).astype(np.float64)
    return stack([table.join(found), count_applied(table), count_by_round(table), sum_processes(table)])


def _counts(table: pd.DataFrame, name: str) -> Any:
    """Return a column with 0 for null; with NaN for null accepted pairs in a line that has received pairs."""
    found = numbers(table, name)
    if name not in _ACCEPTED:
        return np.nan_to_num(found)
    return np.where(numbers(table, "received_pairs") > 0, found, np.nan_to_num(found))


def is_in(table: pd.DataFrame, name: str, *values: object) -> NDArray[np.bool_]:
    """Return which rows have one of some values in a column; none if there is no such column."""
    return table[name].isin(values).to_numpy() if name in table else np.zeros(len(table), np.bool_)

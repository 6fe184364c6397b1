"""Counts of the applied updates of an asynchronous run, as a small table for the figures."""

from __future__ import annotations

from typing import Any

from hpcps.records.table import tabulate

EVENT = "updates"
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
            {"event": EVENT, "role": "server", "index": 0, "reader": reader, "staleness": int(stale), "count": int(n)}
            for (reader, stale), n in counts.items()
        ]
    )

"""The records of experiments as tables: `hpcps.results` and `hpcps.summary`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.records.locate import default_results
from hpcps.registry import active, using

if TYPE_CHECKING:
    import pandas as pd


def results(
    name: str | Path, *, results: str | Path | None = None, events: Collection[str] | None = None
) -> pd.DataFrame:
    """Return the records of all runs of an experiment, finished or not, as `hpcps collect` writes them.

    If there are no runs on this machine but a published copy of their table, the copy is returned.

    Args:
        name: an experiment file, a results folder, the name of the experiment, or the beginning of the name.
        results: the folder of all results; by default `$HPCPS_RESULTS`, else `results`.
        events: keep only rows of these events, such as `["evaluation"]`; by default all.

    Raises:
        RunError: there is no such experiment or event, or no record.
    """
    from hpcps.records.collect import table_of
    from hpcps.records.locate import locate

    with using(active()):  # it may load the experiment's file, which activates its plugins
        return table_of(locate(str(name), default_results() if results is None else Path(results)), events)


def summary(
    name: str | Path | pd.DataFrame,
    *,
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    results: str | Path | None = None,
) -> pd.DataFrame:
    """Return statistics over the seeds of an experiment: a row for each rule and attack, or what else is swept.

    The columns are the swept keys, the number of finished runs `n`, `mean` and `std` of the final accuracy in percent,
    its 95 % interval of Student's t from `low` to `high`, how many runs `diverged` and `stalled`, and the means of
    `accepted` (percent of the pairs sent), `bytes` and `wall` (seconds); `unfinished` counts the other runs.

    Args:
        name: what `results` takes, or a table that it or `Experiment.table` returned.
        columns: the columns to return, in this order; all by default.
        rows: chooses rows, such as `["rule=zeno,median", "attack=none"]`.
        results: the folder of all results; by default `$HPCPS_RESULTS`, else `results`.

    Raises:
        RunError: there is no such experiment, column or value, or no evaluation.
    """
    from hpcps.records.export import chosen, summarize

    table = _results(name, results=results) if isinstance(name, (str, Path)) else name
    return chosen(summarize(table), columns, rows)


_results = results  # in `summary`, the name is that of an argument

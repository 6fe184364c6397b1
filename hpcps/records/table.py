"""The long table of an experiment's records: its columns, and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hpcps.errors import RunError
from hpcps.inputs import parse_json, regular
from hpcps.records.evaluation import read_evaluation
from hpcps.records.files import NUMBERS, replacing, writing
from hpcps.spec.tree import flatten

CLASSES = "class_accuracy."
"""The prefix of the columns of a table with the accuracy of each class."""

VALUES, CALLBACKS = "values.", "callback."
"""The prefixes of the columns with the values of callbacks: in their own rows, and in those of evaluations."""

_ROUNDING = 1e-9
_METADATA = b"hpcps"


def tabulate(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Convert record lines to a table: a column per field, NaN if a line does not have the field.

    A nested object becomes `outer.inner` columns, a list the number of its elements, a truth value 0 or 1 (so that its
    mean is a rate). A number of more than 63 bits is unknown, and a text in the place of a number.
    """
    table = pd.DataFrame([{name: _plain(value) for name, value in flatten(row).items()} for row in rows])
    damaged = [name for name in table.select_dtypes(exclude="number") if name in NUMBERS]
    return table.assign(**{name: numbers(table, name) for name in damaged})


def stack(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables; match columns by name."""
    names = dict.fromkeys(name for table in tables for name in table)
    known = [table.dropna(axis="columns", how="all") for table in tables if len(table)]
    return pd.concat(known, ignore_index=True).reindex(columns=[*names]) if known else pd.DataFrame()


def with_settings(tables: Sequence[pd.DataFrame], settings: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Return the rows of several runs with the settings of each in the first columns, and text as categories."""
    runs = _categorized(tabulate(settings))
    rows = _categorized(stack(tables))
    places = np.repeat(np.arange(len(runs)), [len(table) for table in tables])
    return pd.concat([runs.take(places).reset_index(drop=True), rows], axis="columns")


def settings_of(frame: pd.DataFrame) -> list[str]:
    """Return the columns that have the same value in all rows of a run; `collect` puts them before `event`."""
    names = list(frame.columns)
    return names[: names.index("event")]


def with_missing(last: pd.DataFrame, missing: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Add to the last evaluations of runs a row for each point of the sweep without one, in the order of the sweep.

    Args:
        last: a row per run.
        missing: the settings of points, as in the `attrs` of the table of `collect`.
    """
    known = set(last["run_id"].astype(str))
    left = [facts for facts in missing if str(facts["run_id"]) not in known]
    if not left:
        return last
    others = pd.DataFrame(left).reindex(columns=[*last])
    others["status"] = others["status"].where(others["status"] != "done", "failed")  # without any evaluation
    both = pd.concat([last.astype(object), others.astype(object)], ignore_index=True)
    both = both.sort_values("point", kind="stable") if "point" in both else both
    return both.assign(**{str(name): numbers(both, str(name)) for name in last.select_dtypes("number")})


def numbers(table: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """Return a column as float64: NaN for what is missing, also for all rows, and for a text."""
    if name not in table:
        return np.full(len(table), np.nan)
    column = table[name]
    column = column if pd.api.types.is_numeric_dtype(column) else pd.to_numeric(column.astype(object), errors="coerce")
    return column.to_numpy(np.float64)


def with_evaluation(table: pd.DataFrame, run: Path) -> pd.DataFrame:
    """Return the table of a run with `top5` and `class_accuracy` of the file in the row of its last evaluation.

    The table stays as it is if it has them, which an evaluator has recorded, or if there is no such file.
    """
    rows = np.flatnonzero(table["event"] == "evaluation") if "event" in table else np.zeros(0, int)
    if not len(rows) or "top5" in table or (found := read_evaluation(run)) is None:
        return table
    last = rows[np.argmax(np.nan_to_num(numbers(table, "epoch")[rows]))]
    values: dict[str, Any] = {"top5": found.top5}
    values |= {f"{CLASSES}{number}": share for number, share in enumerate(found.by_class)}
    added = {name: np.full(len(table), np.nan) for name in values}
    for name, column in added.items():
        column[last] = np.nan if values[name] is None else values[name]
    return pd.concat([table, pd.DataFrame(added, table.index)], axis="columns")


def with_callbacks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a run with the latest values of callbacks in its evaluations: `callback.<name>`.

    The values of an evaluation are those that were recorded up to its epoch.
    """
    names = [name for name in map(str, table.columns) if name.startswith(VALUES)]
    rows = np.flatnonzero(table["event"] == "evaluation")
    if not names or not len(rows):
        return table
    told, epochs = table[table["event"] == "callback"], numbers(table, "epoch")
    added = {}
    for name in names:
        known = told[np.isfinite(numbers(told, name))]
        values, at = numbers(known, name), numbers(known, "epoch")
        column = np.full(len(table), np.nan)
        for row in rows:
            before = np.flatnonzero(at <= epochs[row] + _ROUNDING)
            column[row] = values[before[-1]] if before.size else np.nan
        added[f"{CALLBACKS}{name.removeprefix(VALUES)}"] = column
    return pd.concat([table, pd.DataFrame(added, table.index)], axis="columns")


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame of `collect` as Parquet, atomically."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    attributes = json.dumps(dict(frame.attrs)).encode()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _METADATA: attributes})
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote, with its `attrs`.

    Raises:
        RunError: there is no such file, or it is no Parquet table of `hpcps collect`.
        InputError: its metadata is no JSON.
    """
    if not path.exists():
        raise RunError(f"no table {path}: make it with `hpcps collect`")
    try:
        table = pq.read_table(regular(path))
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} is not a Parquet table ({error}): make it again with `hpcps collect`") from error
    metadata = (table.schema.metadata or {}).get(_METADATA)
    if metadata is None or "event" not in table.column_names:
        raise RunError(f"{path} is not a table of `hpcps collect`: it has no event column or no hpcps metadata")
    attributes = parse_json(path, metadata)
    if not isinstance(attributes, dict):
        raise RunError(f"{path} is not a table of `hpcps collect`: its hpcps metadata is no JSON object")
    frame: pd.DataFrame = table.to_pandas()
    frame.attrs.update(attributes)
    return frame


def joined(frame: pd.DataFrame, earlier: pd.DataFrame) -> pd.DataFrame:
    """Add to a frame of `collect` the rows of an earlier one of the same experiment, of runs that it does not have.

    A point counts as missing if neither has a result of it. What else the frames say of the sweep is that of the first.
    """
    kept = earlier[~earlier["run_id"].isin(frame["run_id"].astype(str))]
    there = {str(run) for part in (frame, kept) for run in part["run_id"].unique()}
    missing = {run["run_id"]: run for part in (earlier, frame) for run in part.attrs.get("missing", ())}
    left = [run for name, run in missing.items() if name not in there]
    found = _categorized(stack([frame, kept]))
    found.attrs.update(frame.attrs)
    found.attrs["missing"] = left
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # half a pair of surrogates is not valid in UTF-8
    if isinstance(value, list):
        return len(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 63 else None
    return value


def _categorized(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with text as categories, in the order of appearance; a column of text and numbers is text."""
    found: dict[str, Any] = {}
    for name in map(str, table.select_dtypes(exclude="number")):
        column = table[name].astype(object).map(str, na_action="ignore")
        known = column.dropna().unique()
        found[name] = pd.Categorical(column, known) if len(known) else np.nan
    return table.assign(**found)

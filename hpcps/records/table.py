"""The long table of an experiment's records: its columns, and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from hpcps.errors import RunError
from hpcps.inputs import parse_json
from hpcps.records.files import replacing, writing

_TEXT = pa.dictionary(pa.int32(), pa.string())
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("event", "role", "host", "reason", "checksum"), _TEXT),
    **dict.fromkeys(("index", "round", "attempt", "participants", "absent"), pa.int32()),
    **dict.fromkeys(("step", "samples", "bytes_sent", "bytes_received"), pa.int64()),
    **dict.fromkeys(
        ("time", "epoch", "loss", "accuracy", "compute", "exchange", "combine", "wait", "cpu"), pa.float64()
    ),
}
"""Columns whose type does not depend on the values in a file."""

_METADATA = b"hpcps"


def tabulate(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Convert record lines to an Arrow table: a column per field, null if a line does not have the field.

    A nested object becomes `outer.inner` columns, a list the number of its elements, a truth value 0 or 1 (so that its
    mean is a rate, nulls or not), text a dictionary column.
    """
    flat = [_flatten(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return pa.table({name: _column(name, [row.get(name) for row in flat]) for name in names})


def stack(tables: Sequence[Any]) -> Any:
    """Concatenate Arrow tables; match columns by name, and widen types that differ."""
    types: dict[str, Any] = {}
    for table in tables:
        for field in table.schema:
            types[field.name] = _wider(types.get(field.name), field.type)
    schema = pa.schema(list(types.items()))
    aligned = []
    for table in tables:
        columns = [
            _cast(table[name], kind) if name in table.column_names else pa.nulls(table.num_rows, kind)
            for name, kind in types.items()
        ]
        aligned.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(aligned).unify_dictionaries().combine_chunks() if aligned else pa.table({})


def constant(value: object, rows: int) -> Any:
    """Return a column with the same value in every row."""
    if (not isinstance(value, (str, bool, int, float)) and value is not None) or _too_long(value):
        value = str(value)
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([_text(value)]))
    if isinstance(value, bool):
        value = int(value)
    return pa.nulls(rows) if value is None else pa.repeat(pa.scalar(value), rows)


def to_frame(table: Any, attributes: Mapping[str, Any]) -> pd.DataFrame:
    """Convert an Arrow table to a data frame, with text as categories; `attributes` become its `attrs`."""
    frame: pd.DataFrame = table.to_pandas()
    frame.attrs.update(attributes)
    return frame


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
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} is not a Parquet table ({error}): make it again with `hpcps collect`") from error
    metadata = (table.schema.metadata or {}).get(_METADATA)
    if metadata is None or "event" not in table.column_names:
        raise RunError(f"{path} is not a table of `hpcps collect`: it has no event column or no hpcps metadata")
    attributes = parse_json(path, metadata)
    if not isinstance(attributes, dict):
        raise RunError(f"{path} is not a table of `hpcps collect`: its hpcps metadata is no JSON object")
    return to_frame(table, attributes)


def joined(frame: pd.DataFrame, earlier: pd.DataFrame) -> pd.DataFrame:
    """Add to a frame of `collect` the rows of an earlier one of the same experiment, of runs that it does not have.

    A point counts as missing if neither has a result of it. What else the frames say of the sweep is that of the first.
    """
    kept = earlier[~earlier["run_id"].isin(frame["run_id"].astype(str))]
    parts = [pa.Table.from_pandas(part, preserve_index=False).replace_schema_metadata() for part in (frame, kept)]
    there = {str(run) for part in (frame, kept) for run in part["run_id"].unique()}
    missing = {run["run_id"]: run for part in (earlier, frame) for run in part.attrs.get("missing", ())}
    left = [run for name, run in missing.items() if name not in there]
    found = to_frame(stack(parts), {})
    found.attrs.update(frame.attrs)
    found.attrs["missing"] = left
    return found


def _flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[prefix + key] = len(value)
        else:
            flat[prefix + key] = int(value) if isinstance(value, bool) else value
    return flat


def _column(name: str, values: list[Any]) -> Any:
    kind = _TYPES.get(name) or _kind(values)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if _TYPES.get(name, _TEXT) != _TEXT:
            return pa.array([value if _fits(value, kind) else None for value in values], kind)
        return _cast(pa.array([None if value is None else _text(value) for value in values]), _TEXT)


def _text(value: object) -> str:
    """Write a value as a text that is valid in UTF-8, which half a pair of surrogates is not."""
    return str(value).encode(errors="replace").decode()


def _too_long(value: object) -> bool:
    return isinstance(value, int) and value.bit_length() > 63


def _fits(value: object, kind: Any) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _kind(values: Iterable[Any]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.null()
    if kinds <= {int}:
        return pa.int64()
    return pa.float64() if kinds <= {int, float} else _TEXT


def _wider(one: Any, other: Any) -> Any:
    """Return a type for the values of both types."""
    if one is None or one == other or pa.types.is_null(one):
        return other
    if pa.types.is_null(other):
        return one
    numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (one, other)]
    if not all(numbers):
        return _TEXT
    if all(pa.types.is_integer(kind) for kind in (one, other)):
        return max(one, other, key=lambda kind: kind.bit_width)
    return pa.float64()


def _cast(column: Any, kind: Any) -> Any:
    if column.type == kind:
        return column
    if kind == _TEXT and pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if kind == _TEXT:
        return column.cast(pa.string()).dictionary_encode()
    return column.cast(kind)

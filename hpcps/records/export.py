"""Writes results for a paper (statistics over the seeds), or for other programs (CSV files)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import RunError
from hpcps.records.files import write_whole, writing
from hpcps.records.table import numbers, settings_of, with_missing

STATISTICS: Mapping[str, tuple[str, int]] = {
    "n": ("n", 0),
    "mean": ("mean (%)", 2),
    "std": ("std", 2),
    "low": ("95 % from", 2),
    "high": ("to", 2),
    "diverged": ("diverged", 0),
    "stalled": ("stalled", 0),
    "perplexity": ("perplexity", 2),
    "accepted": ("accepted (%)", 1),
    "bytes": ("sent (MB)", 2),
    "wall": ("wall time (s)", 1),
    "unfinished": ("unfinished", 0),
}
"""The columns of statistics: the heading and the number of decimals in a paper."""

NOTES = (
    "n: finished runs; mean, std: final test accuracy and its standard deviation (n - 1) over these runs, in percent; "
    "95 % from .. to: Student's t interval of the mean, within 0 to 100; unfinished: runs without a final result, also "
    "those that have not started; diverged, stalled: the number of these runs, which the mean "
    "includes; accepted: of the (update, block) pairs sent; sent, wall time: means until the last evaluation, over all "
    "processes; where all roles take turns in one process, the wall time is that of all of them."
)

_MEGABYTE = 1e6
_ESCAPES = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "·": r"$\cdot$",
        "→": r"$\rightarrow$",
        "–": "--",
        "…": r"\dots{}",
        "\N{NO-BREAK SPACE}": "~",
    }
)


def has_accuracy(frame: pd.DataFrame) -> bool:
    """Return whether a table of `collect` has evaluations with accuracies; a script may log other numbers only."""
    return "accuracy" in frame and bool((frame["event"] == "evaluation").any())


def no_accuracy(frame: pd.DataFrame) -> RunError:
    """Return the error of a command that needs accuracies."""
    if (frame["event"] == "evaluation").any():
        return RunError("the runs have logged no accuracy, which this command needs, as with log(accuracy=0.9)")
    return RunError("no evaluation in this table yet: wait for the first epoch to end, then collect again")


def summarize(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each point of the sweep without its seed, in the file's order.

    The first columns are the settings that distinguish points: the swept keys, such as `rule` and `attack`, and, if
    there are any, `outside` and `variant` (see `hpcps.records.collect.collect`). The others are statistics of the last
    evaluation of each finished run: `n` (the number of runs), `mean`, `std` (with n - 1) and the 95 % interval of
    Student's t, `low` to `high`, of the test accuracy in percent; how many runs `diverged` and `stalled`, which the
    mean includes; `perplexity` (of runs on text), `accepted` (percent of the pairs sent), `bytes` (sent by all
    processes) and `wall` (seconds) as means; and the number of `unfinished` runs, those that have not started included:
    a point without any result has a row, too. NaN: not known, such as the interval of one run.

    Args:
        frame: the table of `collect`.

    Raises:
        RunError: the table has no evaluations.
    """
    from scipy.stats import t

    evaluations = frame[frame["event"] == "evaluation"]
    if not has_accuracy(frame):
        raise no_accuracy(frame)
    order = [name for name in ("point", "epoch", "time") if name in evaluations]
    last = evaluations.sort_values(order, kind="stable").groupby("run_id", observed=True, sort=False).tail(1)
    last = with_missing(last, frame.attrs.get("missing", ()))
    keys = [str(key) for key in frame.attrs.get("swept", ()) if key != "seed"]
    keys += [name for name in ("outside", "variant") if name in last and (last[name].astype(str) != "").any()]
    settings = last[keys].astype(object).where(last[keys].notna(), "none") if keys else last[[]]
    done = (last["status"].astype(str) == "done").to_numpy()
    values = settings.assign(
        unfinished=np.where(done, 0, 1),
        accuracy=np.where(done, 100 * last["accuracy"].to_numpy(np.float64), np.nan),
        diverged=np.where(done, numbers(last, "diverged") > 0, 0),
        # Tables of earlier versions do not say which runs stalled.
        stalled=np.where(done, numbers(last, "stalled") > 0, 0) if "stalled" in last else np.nan,
        perplexity=np.where(done, numbers(last, "perplexity"), np.nan),
        accepted=np.where(done, 100 * numbers(last, "accepted_sent_pairs_total") / _positive(last), np.nan),
        bytes=np.where(done, numbers(last, "bytes_sent_total"), np.nan),
        # A process to which the simulation gives no time for its steps has no wall time.
        wall=np.where(done & (numbers(last, "wall") > 0), numbers(last, "wall"), np.nan),
    )
    groups = values.groupby(keys or (lambda _: "all"), sort=False, dropna=False)
    accuracy = groups["accuracy"]
    found = pd.DataFrame({"n": accuracy.count(), "mean": accuracy.mean(), "std": accuracy.std(ddof=1)})
    half = t.ppf(0.975, np.maximum(found["n"] - 1, 1)) * found["std"] / np.sqrt(found["n"])
    # A share is never below 0 or above 100 %, which the interval of Student's t does not know.
    found["low"], found["high"] = (found["mean"] - half).clip(lower=0), (found["mean"] + half).clip(upper=100)
    found["diverged"] = groups["diverged"].sum().astype(np.int64)
    found["stalled"] = groups["stalled"].sum().astype(np.int64) if "stalled" in last else np.nan
    if values["perplexity"].notna().any():
        found["perplexity"] = groups["perplexity"].mean()
    found[["accepted", "bytes", "wall"]] = groups[["accepted", "bytes", "wall"]].mean()
    found["unfinished"] = groups["unfinished"].sum()
    return found.reset_index() if keys else found.reset_index(drop=True)


def chosen(summary: pd.DataFrame, columns: Sequence[str] = (), rows: Sequence[str] = ()) -> pd.DataFrame:
    """Return some columns of a summary in their order, and some rows.

    Args:
        summary: what `summarize` returned.
        columns: names; all by default.
        rows: texts `COLUMN=VALUE[,VALUE…]`: the column has one of the values. Each further text narrows the choice.

    Raises:
        RunError: there is no such column or value.
    """
    whole = summary
    for text in rows:
        column, equals, values = text.partition("=")
        if not equals:
            raise RunError(f"--rows {text}: expects COLUMN=VALUE, such as rule=zeno")
        _known("column", column, summary.columns)
        cells = whole[column].map(_cell)
        wanted = [values] if values in {*cells} else values.split(",")  # a value may have commas
        for value in wanted:
            _known(f"value in the column {column}", value, cells.unique())
        summary = summary[cells.loc[summary.index].isin(wanted)]
        if summary.empty:
            raise RunError(f"no row has all of {' and '.join(rows)}")
    for column in columns:
        _known("column", column, summary.columns)
    return summary[[*columns]] if columns else summary


def as_markdown(summary: pd.DataFrame) -> str:
    """Return a summary as a Markdown table, with notes below it."""
    head, *rows = _texts(summary)
    lines = [head, ["---" if name not in STATISTICS else "---:" for name in summary], *rows]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{table}\n\n{NOTES}\n"


def as_latex(summary: pd.DataFrame) -> str:
    """Return a summary as a LaTeX `tabular` with the rules of the package booktabs; notes are comments above it."""
    head, *rows = [[cell.translate(_ESCAPES) for cell in line] for line in _texts(summary)]
    kinds = "".join("r" if name in STATISTICS else "l" for name in summary)
    return _tabular(NOTES, kinds, head, rows)


def _tabular(notes: str, kinds: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"    {' & '.join(line)} \\\\" for line in rows]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            *(f"% {line}" for line in notes.split("; ")),
            f"\\begin{{tabular}}{{{kinds}}}",
            "    \\toprule",
            f"    {' & '.join(head)} \\\\",
            "    \\midrule",
            *lines,
            "    \\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


def renamed(summary: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return a summary with other names in the columns of settings; `names` are by the value in the file."""
    settings = [name for name in summary if name not in STATISTICS]
    cells = {str(name): [names.get(text, text) for text in summary[name].map(_cell)] for name in settings}
    return summary.assign(**cells)


@dataclass(frozen=True)
class Pivot:
    """A table of `mean ± std` for a paper.

    Attributes:
        settings: the columns that distinguish rows.
        columns: the values of the pivoted column.
        rows: for each row its settings, and a cell for each column: its text, and whether it is the best.
    """

    settings: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[tuple[str, bool], ...]], ...]


PIVOT_NOTES = (
    "cells: mean of the final test accuracy in percent ± its standard deviation (n - 1) over the seeds; bold: the "
    "highest mean of its column{among}; *: some runs are unfinished"
)


def pivoted(summary: pd.DataFrame, column: str) -> Pivot:
    """Return a table with a column for each value of one column of a summary, such as `attack`.

    Args:
        summary: what `summarize` returned.
        column: the column of settings that is pivoted.

    Raises:
        RunError: there is no such column of settings, or `renamed` gave the same name to settings of one cell.
    """
    settings = [str(name) for name in summary if name not in STATISTICS]
    _known("column of settings", column, settings)
    others = [name for name in settings if name != column]
    texts = {name: [*map(_cell, summary[name])] for name in settings}
    columns = tuple(dict.fromkeys(texts[column]))
    keys = [*zip(*(texts[name] for name in others), strict=True)] if others else [()] * len(summary)
    at = {(key, value): place for place, (key, value) in enumerate(zip(keys, texts[column], strict=True))}
    if len(at) < len(summary):
        raise RunError("several points have the same cell: give them different names, or choose some with --rows")
    # Rules compete with each other, under the same other settings.
    rule = others.index("rule") if "rule" in others else None
    groups = {key: key if rule is None else (*key[:rule], *key[rule + 1 :]) for key in keys}
    groups = dict.fromkeys(keys, ()) if rule is None else groups
    best: dict[tuple[tuple[str, ...], str], float] = {}
    for (key, value), place in at.items():
        mean, name = float(summary["mean"].iloc[place]), (groups[key], value)
        if not np.isnan(mean):
            best[name] = max(mean, best.get(name, mean))
    rows = []
    for key in dict.fromkeys(keys):
        cells = []
        for value in columns:
            point = summary.iloc[at[key, value]] if (key, value) in at else None
            top = best.get((groups[key], value))
            cells.append((_mean_and_deviation(point), point is not None and float(point["mean"]) == top))
        rows.append((key, tuple(cells)))
    return Pivot(tuple(others), columns, tuple(rows))


def _mean_and_deviation(point: pd.Series[Any] | None) -> str:
    if point is None or not point["n"]:
        return "–"
    deviation = "" if pd.isna(point["std"]) else f" ± {point['std']:.1f}"
    return f"{point['mean']:.1f}{deviation}" + "*" * bool(point["unfinished"])


def pivot_as_markdown(pivot: Pivot) -> str:
    """Return a pivot as a Markdown table, with notes below it."""
    head = [*pivot.settings, *pivot.columns]
    lines = [head, ["---"] * len(pivot.settings) + ["---:"] * len(pivot.columns)]
    lines += [[*key, *(f"**{text}**" if best else text for text, best in cells)] for key, cells in pivot.rows]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{table}\n\n{_pivot_notes(pivot)}\n"


def pivot_as_latex(pivot: Pivot) -> str:
    """Return a pivot as a LaTeX `tabular` with the rules of the package booktabs; notes are comments above it."""
    head = [*pivot.settings, *pivot.columns]
    rows = []
    for key, cells in pivot.rows:
        escaped = [text.translate(_ESCAPES).replace("±", r"$\pm$") for text, _ in cells]
        bold = [rf"\textbf{{{text}}}" if best else text for text, (_, best) in zip(escaped, cells, strict=True)]
        rows.append([*(name.translate(_ESCAPES) for name in key), *bold])
    kinds = "l" * len(pivot.settings) + "r" * len(pivot.columns)
    return _tabular(_pivot_notes(pivot), kinds, [name.translate(_ESCAPES) for name in head], rows)


def _pivot_notes(pivot: Pivot) -> str:
    others = [name for name in pivot.settings if name != "rule"]
    among = f" among rows of the same {', '.join(others)}" if others and "rule" in pivot.settings else ""
    return PIVOT_NOTES.format(among=among)


def write_pivot(pivot: Pivot, folder: Path, form: str) -> Path:
    """Write a pivot as `markdown` or `latex`; return the file.

    Raises:
        RunError: the folder cannot be written.
    """
    ending, written = {"markdown": ("md", pivot_as_markdown), "latex": ("tex", pivot_as_latex)}[form]
    file = folder / f"pivot.{ending}"
    with writing(file, "choose another folder with -o"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, written(pivot))
    return file


def write_summary(summary: pd.DataFrame, folder: Path, form: str) -> Path:
    """Write a summary as `csv` (numbers in full), `markdown` or `latex`; return the file.

    Raises:
        RunError: the folder cannot be written.
    """
    ending, written = {"csv": ("csv", None), "markdown": ("md", as_markdown), "latex": ("tex", as_latex)}[form]
    file = folder / f"summary.{ending}"
    with writing(file, "choose another folder with -o"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, written(summary) if written else summary.to_csv(index=False))
    return file


def _texts(summary: pd.DataFrame) -> Iterator[list[str]]:
    """Yield the head and the rows as text; numbers with the decimals of a paper."""
    yield [STATISTICS[name][0] if name in STATISTICS else name for name in map(str, summary)]
    columns = []
    for name, values in summary.items():
        if str(name) not in STATISTICS:
            columns.append([_cell(value) for value in values])
            continue
        scaled = values / _MEGABYTE if name == "bytes" else values
        decimals = STATISTICS[str(name)][1]
        columns.append(["–" if pd.isna(value) else f"{value:.{decimals}f}" for value in scaled])
    yield from (list(row) for row in zip(*columns, strict=True))


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _known(what: str, name: str, names: Iterable[str]) -> None:
    if name in {*names}:
        return
    near = get_close_matches(name, [*names], 1)
    raise RunError(f"no {what} {name!r}{f': did you mean {near[0]!r}?' if near else '.'} There are {', '.join(names)}")


def _positive(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    sent = numbers(rows, "sent_pairs_total")
    return np.where(sent > 0, sent, np.nan)


def write_csv(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write `runs.csv`, a row per run with its settings, and `<event>.csv` for each event of record lines.

    A file of an event has the column `run_id` and the fields that its lines have; `hpcps.records.collect.collect`
    describes the additional fields of evaluations.

    Raises:
        RunError: the folder cannot be written.
    """
    settings = settings_of(frame)
    tables = {"runs": frame[settings].drop_duplicates("run_id").reset_index(drop=True)}
    for event, rows in frame.groupby("event", sort=False, observed=True):
        fields = [name for name in frame if name not in settings and name != "event" and rows[name].notna().any()]
        tables[str(event)] = rows[["run_id", *fields]]
    files = []
    with writing(f"to {folder}", "choose another folder with -o"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            files.append(folder / f"{name}.csv")
            table.to_csv(files[-1], index=False)
    return files

"""Writes tables and figures to an experiment's results folder, and makes published copies of such folders."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import hpcps
from hpcps.errors import RunError
from hpcps.figures.compared import compare, read_curves
from hpcps.figures.drawing import draw_all
from hpcps.figures.figure_data import FigureData, require_epochs
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.grid_figures import draw_grid
from hpcps.figures.grid_study import is_grid, studies_of
from hpcps.figures.method_comparison import compares_methods, comparisons_of
from hpcps.figures.method_figures import draw_comparisons
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import save
from hpcps.figures.traffic import compares_bytes, draw_traffic, traffic_of
from hpcps.inputs import read_json
from hpcps.records.collect import DRAWN, collect
from hpcps.records.export import has_accuracy, summarize
from hpcps.records.files import write_whole, writing
from hpcps.records.locate import PUBLISHED, ExperimentLocation, results_of
from hpcps.records.provenance import is_complete, packages, source_state, summaries, write_provenance
from hpcps.records.sweep import read_sweep
from hpcps.records.table import joined, read_table, write_table


def write_tables(frame: pd.DataFrame, results: Path) -> str:
    """Write `table.parquet`, `final_accuracy.md` and `.csv`, and `summary.csv`; return the Markdown.

    Before any evaluation with an accuracy, write only the table, and return an empty text.
    """
    write_table(frame, results / "table.parquet")
    if not has_accuracy(frame):
        return ""
    shown = figure_data_of(frame, baseline(frame, results))
    text = markdown(shown)
    with writing(f"to {results}"):
        write_whole(results / "final_accuracy.md", text)
        write_whole(results / "final_accuracy.csv", comma_separated(shown))
        write_whole(results / "summary.csv", summarize(frame).to_csv(index=False))
    return text


def write_figures(shown: list[FigureData], folder: Path, options: PlotOptions | None = None) -> list[Path]:
    """Draw all figures (see `draw_all`) as PNG and PDF; return the files.

    Raises:
        RunError: the folder cannot be written, or the options choose lines or panels that do not exist.
    """
    return write_files(draw_all(shown, options or PlotOptions()), folder)


def write_files(figures: Iterable[tuple[str, Figure]], folder: Path) -> list[Path]:
    """Write figures by their names as PNG and PDF; return the files.

    Raises:
        RunError: the folder cannot be written.
    """
    files = []
    with writing(f"figures to {folder}", "choose another folder with -o"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures:
            files += save(figure, folder / name)
    return files


def baseline(frame: pd.DataFrame, results: Path) -> pd.DataFrame | None:
    """Return the collected table of the experiment that `baseline` names, beside an experiment's results folder."""
    name = frame.attrs.get("baseline")
    table = results_of(str(name), results.parent) / "table.parquet"
    return read_table(table) if name and table.exists() else None


@dataclass(frozen=True)
class Publication:
    """A published copy.

    Attributes:
        folder: its folder.
        runs: the number of runs in each state, such as `{"done": 16}`.
        rows: the number of rows in its table.
        figures: the files of its figures.
        damaged: a message for each run of which files are missing or have changed.
    """

    folder: Path
    runs: dict[str, int]
    rows: int
    figures: list[Path]
    damaged: tuple[str, ...] = ()


def publish(
    place: ExperimentLocation, results: Path, *, add: bool = False, compared: Sequence[Path] = ()
) -> Publication:
    """Make a copy of an experiment's results that can be committed: `results/published/<name>`.

    The copy has a small table (without `round` and `applied` rows), the final accuracies, the figures, a summary of the
    provenance of each run, and `publication.json` with the provenance of the copy. The source is the folder's runs; a
    folder without runs, such as one that an earlier version collected, gives its table and `provenance.json`.

    Args:
        place: the experiment.
        results: the folder of all results, which gets the copy.
        add: whether runs that are only in the earlier copy stay in it.
        compared: files with curves of others, which the figures show; see `read_curves`.

    Raises:
        RunError: the experiment has no results, runs of it have no provenance, or the copy cannot be written.
    """
    given = [curve for file in compared for curve in read_curves(file)]
    name, source = place.results.name, place.results
    folder = results / PUBLISHED / name
    if place.published:
        raise RunError(f"{source} is a published copy: `hpcps publish` takes the runs that it was made from")
    damaged: tuple[str, ...] = ()
    if place.has_runs:
        collected = collect(source, place.points, DRAWN)
        table = collected.table
        damaged = tuple(f"{run.run_id} ({run.label}): {run.damage}" for run in collected.runs if run.damage)
        own = [str(run) for run in table["run_id"].unique()]
        further: dict[str, object] = {}
        if add and (folder / "table.parquet").exists():
            further = read_json(folder / "provenance.json") if (folder / "provenance.json").exists() else {}
            table = joined(table, read_table(folder / "table.parquet"))
        shown = compare(figure_data_of(table, baseline(table, source)), given)
        provenances = further | summaries(source, own)
    else:
        table = read_table(source / "table.parquet")
        require_epochs(table)
        attributes = table.attrs
        table = table[table["event"].isin(DRAWN)]
        table.attrs.update({"baseline": place.baseline} | attributes)
        shown = compare(figure_data_of(table, baseline(table, source)), given)
        provenances = read_json(source / "provenance.json") if (source / "provenance.json").is_file() else {}
    provenances = {str(run): provenances.get(str(run)) for run in table["run_id"].unique()}
    _require_provenance(provenances, table)
    write_tables(table, folder)
    write_provenance(provenances, folder)
    for old in (folder / "figures").glob("*.p[nd][gf]"):
        old.unlink()  # a figure of a variant that is no longer there
    figures = write_figures(shown, folder / "figures")
    if compares_bytes(table):
        figures += write_files(draw_traffic(traffic_of(table, PlotOptions()), PlotOptions()), folder / "figures")
    elif compares_methods(table):
        base = baseline(table, source)
        figures += write_files(draw_comparisons(comparisons_of([(table, base)]), PlotOptions()), folder / "figures")
    if is_grid(table):
        figures += write_files(draw_grid(studies_of(table), PlotOptions()), folder / "figures")
    # Runs without an evaluation may have no rows.
    states = {run["run_id"]: str(run["status"]) for run in table.attrs.get("missing", ())}
    states |= table.drop_duplicates("run_id").set_index("run_id")["status"].astype(str).to_dict()
    runs = Counter(states.values())
    files = [path.name if path.is_absolute() else str(path) for path in compared]
    options = [*(["--add"] if add else []), *(["--compare", *files] if files else [])]
    launches = launch_commands(source, {str(run) for run in table["run_id"].unique()})
    if add and (folder / FILE).exists():
        launches = [*read_json(folder / FILE).get("launched_by", ()), *launches]
    write_publication(folder, launches, shlex.join(["hpcps", "publish", name, *options]), runs)
    return Publication(folder, dict(runs), len(table), figures, damaged)


def _require_provenance(provenances: Mapping[str, object], table: pd.DataFrame) -> None:
    """Refuse results of which nobody can say which code computed them where.

    Raises:
        RunError: runs have no provenance.
    """
    missing = [run for run, facts in provenances.items() if not is_complete(facts)]
    if missing:
        label = table["label"][table["run_id"].astype(str) == missing[0]].iloc[0]
        raise RunError(
            f"{len(missing)} of {len(provenances)} runs have no provenance (commit, machine and packages), such as "
            f"{missing[0]} ({label}), so they cannot be published: execute them again, with `hpcps run FILE "
            f"--no-resume --only {missing[0]}`"
        )


FILE = "publication.json"

_FOLDERS = re.compile(r"(?<![\w.])/(?:[^/\s\"',]+/)+")
"""The folders of an absolute path."""

_PACKAGES = ("numpy", "pandas", "pyarrow", "matplotlib")


def write_publication(folder: Path, launched_by: Iterable[str], command: str, runs: Mapping[str, int]) -> None:
    """Write `publication.json` to the folder of a published copy.

    Args:
        folder: the published copy.
        launched_by: the commands that launched its runs.
        command: the command that made it.
        runs: the number of runs in each state, such as `{"done": 16}`.

    Raises:
        RunError: it cannot be written.
    """
    code, versions = source_state(Path(hpcps.__file__).parent), packages()
    facts = {
        "published": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "runs": dict(runs),
        "launched_by": list(dict.fromkeys(launched_by)),
        "hpcps": hpcps.__version__,
        "git": {"commit": code.commit, "uncommitted": bool(code.uncommitted)},
        "python": sys.version,
        "packages": {name: versions[name] for name in _PACKAGES if name in versions},
    }
    with writing(f"to {folder}"):
        write_whole(folder / FILE, json.dumps(facts, indent=1) + "\n")


def launch_commands(results: Path, runs: Collection[str]) -> list[str]:
    """Return the `hpcps run` commands that repeat the launches of runs, without folders of this machine."""
    commands = []
    for path in sorted((results / "sweeps").glob("*.json")):
        sweep = read_sweep(path)
        if sweep is not None and any(point["run_id"] in runs for point in sweep[2]):
            file, overrides, _ = sweep
            words = ["hpcps", "run", f"{file.parent.name}/{file.name}"]
            words += [f"--set={_FOLDERS.sub('…/', override)}" for override in overrides]
            commands.append(shlex.join(words))
    return commands

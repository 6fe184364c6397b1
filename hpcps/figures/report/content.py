"""The content of a report: status of the runs, figure data and provenance, from run folders or a published table."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from hpcps.errors import InputError, RunError
from hpcps.figures.figure_data import FigureData, require_epochs
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.grid_study import Study, is_grid, studies_of
from hpcps.figures.publish import baseline
from hpcps.inputs import MiB, finite, read_json
from hpcps.records.acceptance import NOTHING, RunAcceptance
from hpcps.records.collect import DRAWN, collect
from hpcps.records.evaluation import read_evaluation
from hpcps.records.experiment_runs import ExperimentRuns, ExperimentStatus
from hpcps.records.inventory import enumerated
from hpcps.records.locate import ExperimentLocation
from hpcps.records.participation import participation
from hpcps.records.provenance import summary
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import RunStatus, State
from hpcps.records.table import read_table
from hpcps.records.variants import recorded_defaults
from hpcps.spec.keys import plain
from hpcps.spec.settings import settings
from hpcps.spec.tree import Tree, get

_MOST_VALUES = 4
_MOST_CLASSES = 100


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix of the latest model of a run that was evaluated by class.

    Attributes:
        run_id: the run.
        label: its label.
        rows: for each class its number, the number of its samples, its accuracy in percent (empty without samples), and
            for each class, and for outputs that are not finite, the number of samples that were taken for it, with the
            share of the samples of the row.
    """

    run_id: str
    label: str
    rows: tuple[tuple[int, int, str, tuple[tuple[int, float], ...]], ...]

    @classmethod
    def of(cls, run: RunStatus) -> Confusion | None:
        """Read it from the folder of a run; None if there is none, or it has more classes than a page can show."""
        evaluation = read_evaluation(run.path)
        if evaluation is None or len(evaluation.confusion) > _MOST_CLASSES:
            return None
        rows = []
        for number, (row, share) in enumerate(zip(evaluation.confusion, evaluation.by_class, strict=True)):
            total = sum(row)
            cells = tuple((count, round(count / max(1, total), 3)) for count in row)
            rows.append((number, total, "" if share is None else f"{100 * share:.1f}", cells))
        return cls(run.run_id, run.label, tuple(rows))


@dataclass(frozen=True)
class Participation:
    """How often each worker of a run with a quorum was in a round.

    Attributes:
        run_id: the run.
        label: its label.
        rows: for each worker the columns of `participation`, as text.
    """

    run_id: str
    label: str
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, run: RunStatus) -> Participation | None:
        """Count it from the records of a run; None if the run has no quorum."""
        counts = participation(RunDirectory(run.path)) if run.quorum else None
        if counts is None:
            return None
        rows = (tuple("" if np.isnan(each) else f"{each:g}" for each in row) for row in counts.round(1).to_numpy())
        return cls(run.run_id, run.label, tuple(rows))


@dataclass(frozen=True)
class SettingRow:
    """A key and its values in the runs of a report.

    Attributes:
        key: the dotted key.
        values: the distinct values, as text.
        default: the value of a file that does not set the key, as text; empty if there is none.
        changed: whether some run has another value than the default.
    """

    key: str
    values: tuple[str, ...]
    default: str
    changed: bool


@dataclass(frozen=True)
class ReportContent:
    """The content of a report.

    Attributes:
        results: the experiment's folder.
        status: its runs, also those that have not started.
        shown: the figure data of each variant; empty before the first evaluation.
        provenance: facts about the runs, each with its values; most facts have one value for all runs.
        studies: the comparison of the rules of each variant, if the experiment is a grid (see `is_grid`).
        confusions: the confusion matrix of each run that has one, by its id and label.
        participations: how often each worker was in a round, of each run with a quorum.
        settings: all keys of the runs, those with values that are not defaults first; empty without run folders.
        published: whether the source is a collected table without run folders, which has no reports of failures.
    """

    results: Path
    status: ExperimentStatus
    shown: tuple[FigureData, ...]
    provenance: Mapping[str, tuple[str, ...]]
    published: bool
    studies: tuple[Study, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    participations: tuple[Participation, ...] = ()
    settings: tuple[SettingRow, ...] = ()


def read_content(place: ExperimentLocation) -> ReportContent:
    """Read the run folders of an experiment, or its table if it has no run folders.

    Raises:
        RunError: it has neither; or the table cannot be read.
    """
    results = place.results
    specs: list[Tree] = []
    if not place.has_runs:
        frame: pd.DataFrame | None = read_table(results / "table.parquet")
        assert frame is not None
        require_epochs(frame)
        frame.attrs.setdefault("baseline", place.baseline)
        status = ExperimentStatus(results.name, _statuses(frame))
        provenances = _published_provenances(results / "provenance.json")
    else:
        runs = ExperimentRuns.of(results, place.points)
        status = runs.poll()
        if not status.runs:
            raise RunError(f"no runs in {results / 'runs'}: run the experiment first, or name another results folder")
        directories = [RunDirectory(path) for path in runs.paths]
        recorded = any(directory.records for directory in directories)
        frame = collect(results, place.points, DRAWN).table if recorded else None
        provenances = [_with_command(facts) for directory in directories if (facts := directory.provenance)]
        specs = [directory.spec for directory in directories]
    evaluated = frame is not None and bool((frame["event"] == "evaluation").any())
    shown = figure_data_of(frame, baseline(frame, results)) if frame is not None and evaluated else []
    studies = studies_of(frame) if frame is not None and evaluated and is_grid(frame) else []
    confusions = tuple(found for run in status.runs if place.has_runs and (found := Confusion.of(run)) is not None)
    quorums = tuple(each for run in status.runs if place.has_runs and (each := Participation.of(run)) is not None)
    facts = _facts(provenances)
    return ReportContent(
        results, status, tuple(shown), facts, not place.has_runs, tuple(studies), confusions, quorums, _settings(specs)
    )


def _settings(specs: Sequence[Tree]) -> tuple[SettingRow, ...]:
    """Return all keys of some runs with their values, those that are not defaults first."""
    values: dict[str, dict[str, None]] = {}
    defaults: dict[str, str] = {}
    changed: set[str] = set()
    usual = recorded_defaults(specs)
    for spec in specs:
        for setting in settings(spec.get("run") or {}, usual):
            said = "" if setting.value is None else plain(setting.value)
            values.setdefault(setting.key, {})[said] = None
            defaults.setdefault(setting.key, "" if setting.default is None else plain(setting.default))
            changed |= {setting.key} if setting.changed else set()
    rows = [SettingRow(key, tuple(said), defaults[key], key in changed) for key, said in values.items()]
    return tuple(sorted(rows, key=lambda row: not row.changed))


def _statuses(frame: pd.DataFrame) -> tuple[RunStatus, ...]:
    """Return the status of each run of a collected table, and of the points that it lists as missing."""
    found = []
    for _, rows in frame.groupby("run_id", sort=False, observed=True):
        evaluations = rows[rows["event"] == "evaluation"].sort_values("epoch")
        last = evaluations.iloc[-1] if len(evaluations) else None
        facts = {str(name): value for name, value in rows.iloc[0].to_dict().items()}
        found.append((finite(facts.get("point")), _status(facts, last)))
    missing = _missing(frame, {run.run_id for _, run in found})
    found += [(finite(facts.get("point")), _status(facts)) for facts in missing]
    return tuple(run for _, run in sorted(found, key=lambda item: item[0]))


def _missing(frame: pd.DataFrame, known: set[str]) -> list[Mapping[str, Any]]:
    missing = frame.attrs.get("missing", [])
    return [facts for facts in missing if isinstance(facts, Mapping) and str(facts.get("run_id")) not in known]


def _status(facts: Mapping[str, Any], last: pd.Series[Any] | None = None) -> RunStatus:
    state = str(facts.get("status"))
    return RunStatus(
        path=Path(),
        run_id=str(facts.get("run_id")),
        label=str(facts.get("label") or ""),
        state=state if state in get_args(State) else "not started",  # type: ignore[arg-type]
        epoch=0.0 if last is None else finite(last["epoch"]),
        epochs=int(finite(facts.get("epochs"))),
        accuracy=None if last is None else finite(last["accuracy"]),
        perplexity=None if last is None or pd.isna(last.get("perplexity")) else finite(last["perplexity"]),
        diverged=last is not None and bool(last["diverged"] > 0),
        acceptance=NOTHING if last is None else RunAcceptance.of_totals(last.to_dict()),
    )


def _published_provenances(path: Path) -> list[Tree]:
    with suppress(InputError):
        facts = read_json(path, 64 * MiB)
        if isinstance(facts, dict):
            return [each for each in facts.values() if isinstance(each, dict)]
    return []


def _with_command(facts: Tree) -> Tree:
    """Return the facts that a report shows: those of a published provenance, and the command."""
    return {**summary(facts), "command": facts.get("command")}


def _commit(facts: Tree) -> str:
    commit, note = get(facts, ("git", "commit")), get(facts, ("git", "note"))
    changed = " with uncommitted changes" if get(facts, ("git", "uncommitted")) else ""
    # Without a commit, the content of the installed files identifies the code.
    content = get(facts, ("installed", "hpcps", "sha256"))
    known = commit or (f"none, installed files with the SHA-256 {content}" if content else "unknown")
    return f"{known}{changed}" + (f" ({note})" if note else "")


def _machine(facts: Tree) -> str:
    machine = facts.get("machine")
    if not isinstance(machine, Mapping):
        return ""
    cores = f"{machine.get('usable_cores', '?')} of {machine.get('cores', '?')} cores"
    return _listed([known for known in (machine.get("cpu"), cores, machine.get("system")) if known])


def _kernels(facts: Tree) -> str:
    found = facts.get("kernels")
    return ", ".join(f"{name} {which}" for name, which in found.items()) if isinstance(found, Mapping) else ""


def _packages(facts: Tree) -> str:
    packages = facts.get("packages")
    return ", ".join(f"{name} {version}" for name, version in packages.items()) if isinstance(packages, Mapping) else ""


def _command(facts: Tree) -> str:
    return shlex.join(map(str, _list(facts.get("command"))))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _listed(value: object) -> str:
    return ", ".join(map(str, _list(value)))


_FACTS: Mapping[str, Callable[[Tree], str]] = {
    "started": lambda facts: str(facts.get("started") or ""),
    "commit": _commit,
    "hpcps": lambda facts: str(facts.get("hpcps") or ""),
    "command": _command,
    "host": lambda facts: str(get(facts, ("machine", "host")) or ""),
    "machine": _machine,
    "kernels": _kernels,
    "GPUs": lambda facts: _listed(facts.get("gpus")) or "none",
    "MPI": lambda facts: str(facts.get("mpi") or ""),
    "Python": lambda facts: str(facts.get("python") or "").split(" (")[0],
    "packages": _packages,
    "seed": lambda facts: "" if facts.get("seed") is None else str(facts["seed"]),
    "plugins": lambda facts: _listed([get(plugin, ["file"]) for plugin in _list(facts.get("plugins"))]),
}


def _facts(provenances: Sequence[Tree]) -> dict[str, tuple[str, ...]]:
    """Return the values of each fact, with the number of runs of each value if there are several values."""
    found: dict[str, tuple[str, ...]] = {}
    for name, of in _FACTS.items():
        counts = Counter(filter(None, map(of, provenances)))
        values = list(counts)
        if name == "started" and len(values) > 1:
            found[name] = (f"{min(values)} to {max(values)}",)
        elif len(values) > 1:
            texts = [f"{value} ({count} run{'s' * (count > 1)})" for value, count in counts.most_common()]
            more = [enumerated(texts[_MOST_VALUES:], 0).strip()] if len(texts) > _MOST_VALUES else []
            found[name] = (*texts[:_MOST_VALUES], *more)
        elif values:
            found[name] = (values[0],)
    return found

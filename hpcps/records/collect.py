"""One long table of all records of an experiment: a row per record line, with the settings of its run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hpcps.errors import RunError
from hpcps.inputs import finite
from hpcps.records.acceptance import NOTHING, RUN_TOTALS, RunAcceptance
from hpcps.records.attempts import STANDBYS
from hpcps.records.bypass import EVENT as BYPASS
from hpcps.records.bypass import JOINED, Bypass
from hpcps.records.files import LEFT, read_lines
from hpcps.records.inventory import UNDAMAGED, Damage
from hpcps.records.locate import ExperimentLocation
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress
from hpcps.records.sweep import belongs, planned
from hpcps.records.table import (
    numbers,
    read_table,
    stack,
    tabulate,
    with_callbacks,
    with_evaluation,
    with_settings,
)
from hpcps.records.totals import TOTAL_COLUMNS, TOTALS, UPDATES, is_in, with_totals
from hpcps.records.variants import heading_settings, in_words, outside, product_keys, variants
from hpcps.registry import BUILT_IN, installed
from hpcps.spec.label import SEPARATOR
from hpcps.spec.transport import runs_in_process
from hpcps.spec.tree import get

EVENTS = (
    *("start", "round", "applied", "published", "evaluation", "evaluated", "not_evaluated", "rejected", "diverged"),
    *("evaluator_died", "waiting", LEFT, "checkpoint", "snapshot", "end", "local_steps", "callback"),
    *("audits", "excluded", "lost", "replaced", "resized", "serves", "served_by", "not_served", "submitted", "closed"),
    *("paused", *STANDBYS),
    *(UPDATES, BYPASS, TOTALS),
)
"""The events of record lines, and the events of the rows that `collect` adds."""

DRAWN = ("evaluation", "excluded", UPDATES, BYPASS, TOTALS, "end")
"""The events that figures and pages need: a table of them is small enough to publish, even for long runs."""


@dataclass(frozen=True)
class CollectedRun:
    """The record files of one run.

    Attributes:
        lines: record lines in the table: those of its last attempt and those before the checkpoint it resumed from.
        superseded: lines of earlier attempts that are no longer valid; they are ignored.
        damaged: lines that are truncated or not a JSON object; they are ignored.
        unreadable: record files that cannot be read.
        acceptance: what its rule did with the updates before the last evaluation.
        stalled: whether the rule accepted nothing in most rounds, though the model had not diverged.
        damage: the files that are missing or have changed.
    """

    run_id: str
    label: str
    status: str
    lines: int
    superseded: int
    damaged: int
    unreadable: tuple[str, ...]
    acceptance: RunAcceptance = NOTHING
    stalled: bool = False
    damage: Damage = UNDAMAGED


@dataclass(frozen=True)
class Collected:
    """The long table of an experiment, and the runs in it.

    `table.attrs` has `experiment`, `swept` (the columns whose product is the sweep, in the file's order), `outside`
    (the columns that each point outside of the product sets, by its label) and, if there are any, `missing` (the
    settings of each point of the sweep without an evaluation). It has `epochs_of_file` if all points of the file have
    the same number of epochs. Rows are in the order of the sweep's points, then role and index, then as written; so
    `unique()` of a swept column gives the file's order.
    """

    table: pd.DataFrame
    runs: tuple[CollectedRun, ...]


def table_of(place: ExperimentLocation, events: Collection[str] | None = None) -> pd.DataFrame:
    """Return the table of an experiment: collected from its run folders, or published if it has none.

    Args:
        place: the experiment.
        events: keep only rows of these events; all by default.

    Raises:
        RunError: it has neither, or there is no such event.
    """
    if place.has_runs or not (place.results / "table.parquet").exists():
        return collect(place.results, place.points, events).table
    _check_events(events)
    table = read_table(place.results / "table.parquet")
    return table if events is None else table[table["event"].isin(events)].reset_index(drop=True)


def _check_events(events: Collection[str] | None) -> None:
    if isinstance(events, str):
        raise RunError(f'events: expects a list such as ["evaluation"], got {events!r}')
    if unknown := sorted({*(events or ())} - {*EVENTS}):
        raise RunError(f"events: no record has the event {', '.join(unknown)}; there are {', '.join(EVENTS)}")


def collect(
    results: Path, points: Sequence[Mapping[str, Any]] = (), events: Collection[str] | None = None
) -> Collected:
    """Collect `results/<experiment>/runs/*`, finished or not, and the missing points of the sweep.

    In addition to the fields of the records, a row has the settings of its run (`run_id`, `label`, `status`,
    `experiment`, `seed`, `rule`, `attack`, `attack_scale`, …, the swept keys, `variant`, `outside`: its label if it is
    outside the sweep's product, `settings`: those that differ from a plain file and that its label does not state).
    An evaluation has also `wall` (seconds since the run's start), `bytes_sent_total`, `cpu_seconds_total` and counts of
    (update, block) pairs, `received_pairs_total` and so on (over all roles, in the rounds before the evaluated model),
    `diverged` (0 or 1: whether the model had diverged by then), and likewise
    `stalled`, with `rounds_total` (rounds in which the rule received updates) and `empty_rounds_total` (those of them
    in which it accepted nothing; see `hpcps.records.acceptance`). The last evaluation of a run has `top5` and the
    columns `class_accuracy.0`, … if `hpcps evaluate` has evaluated it; with an evaluator every evaluation has them.
    Totals of accepted pairs are empty if a rule does not state which updates it accepts. `updates` rows count the
    applied updates of an asynchronous run by worker and staleness. `bypass` rows count the attacked and the honest
    blocks of a synchronous run by round, and those of them that entered the model (`byzantine_sent`,
    `byzantine_entered`, `honest_sent`, `honest_entered`); so do the rounds of workers. `totals` rows have the sums of
    each process (see `sum_processes`).

    Args:
        results: the experiment's folder.
        points: the points of the experiment's file, in the form of `spec.json`, to find the values of a run that differ
            from the file (`variant`).
        events: keep only rows of these events; all by default.

    Raises:
        RunError: there are no runs, or there is no such event.
    """
    _check_events(events)
    specs, lost = _specs(results, points)
    if not specs:
        raise RunError(f"no runs in {results / 'runs'}: run the experiment first, or name another results folder")
    columns, attributes = _run_columns([spec for _, spec in specs], points)
    states = SweepProgress([directory.path for directory, _ in specs], verify=True).poll()
    tables, runs, missing, settings = [], [_left_out(directory) for directory in lost], [], []
    for (directory, _), known, state in zip(specs, columns, states, strict=True):
        facts = known | {"status": state.state}
        table, run = _run_table(directory, facts)
        runs.append(replace(run, damage=state.damage))
        if not is_in(table, "event", "evaluation").any():
            missing.append(facts)
        if len(table):
            tables.append(table if events is None else table[is_in(table, "event", *events)])
            settings.append(facts)
    if not tables:
        raise RunError(f"no run in {results / 'runs'} has any records yet: wait until one has started")
    if missing:
        attributes["missing"] = missing
    frame = with_settings(tables, settings)
    frame.attrs.update(attributes)
    return Collected(frame, tuple(runs))


def settings_of_run(run: RunDirectory) -> dict[str, object]:
    """Return the settings of one run of an experiment, as `collect` does; empty if they are lost."""
    specs, _ = _specs(run.path.parent.parent, ())
    if not specs:
        return {}
    columns, _ = _run_columns([spec for _, spec in specs], ())
    found = {directory.path.name: known for (directory, _), known in zip(specs, columns, strict=True)}
    return found.get(run.path.name, {})


def collect_run(run: RunDirectory, settings: Mapping[str, object]) -> pd.DataFrame:
    """Return the rows of one run, as `collect` does; it may still be executed. Empty: it has no records yet.

    Args:
        run: its folder.
        settings: what `settings_of_run` returned.
    """
    table, _ = _run_table(run, {**settings, "status": "running"})
    return with_settings([table], [settings]) if len(table) else table


def _specs(
    results: Path, points: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[RunDirectory, dict[str, Any]]], list[RunDirectory]]:
    """Return the runs of an experiment with their specs, in the order of the sweep, and those without one."""
    whole = planned(results, points)
    paths = {path.name: path for path in (results / "runs").glob("*") if path.is_dir()}
    directories = [RunDirectory(paths.get(name, results / "runs" / name)) for name in {**paths, **whole}]
    specs = [(d, d.spec or dict(whole.get(d.path.name, {}))) for d in directories if belongs(d, whole)]
    # The records of a run say nothing without its settings.
    lost = [directory for directory, spec in specs if not spec]
    known = [(directory, spec) for directory, spec in specs if spec]
    return sorted(known, key=lambda item: (item[1].get("index", 0), item[0].path.name)), lost


def _run_columns(
    specs: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Return the columns with the settings of each run, and the table's attributes with the swept keys."""
    keys = list(dict.fromkeys(key for spec in specs for key in (spec.get("swept") or {})))
    product = product_keys(specs, points)
    shared = {
        "experiment": "name",
        "seed": "seed",
        "fidelity": "fidelity",
        "rule": "validation.rule",
        "attack": "attack",
        "attack_kind": "attack.kind",
        "attack_scale": "attack.scale",
        "attack_rate": "attack.rate",
        "attack_scope": "attack.scope",
        "servers": "topology.servers",
        "validators": "topology.validators",
        "workers": "topology.workers",
        "model": "model.name",
        "data": "data.name",
        "data_limit": "data.limit",
        "mode": "train.mode",
        "train.local_steps": "train.local_steps",
        "epochs": "train.epochs",
        "participation": "communication.participation",
        "skip_rate": "communication.skip_rate",
        "simulation": "simulation.kind",
    }
    names = {key: name for name, key in shared.items()}
    columns: list[dict[str, object]] = [
        {"run_id": spec.get("run_id"), "label": spec.get("label"), "point": spec.get("index", position)}
        for position, spec in enumerate(specs)
    ]
    for name, key in {**shared, **{key: key for key in keys if key not in names}}.items():
        for column, value in zip(columns, in_words(specs, key), strict=True):
            column[name] = value
    described = zip(columns, specs, variants(specs, points), heading_settings(specs), strict=True)
    for column, spec, variant, settings in described:
        column["scores"] = _scores(spec)
        column["outside"] = outside(spec, product)
        column["variant"] = variant
        column["settings"] = SEPARATOR.join(settings)
        column["one_process"] = runs_in_process(get(spec.get("run") or {}, ("transport", "kind")))
        if spec.get("members"):
            column["resized"] = True
        if chosen := get(dict(spec), ("search", "values")):
            column["searched"] = ", ".join(chosen)
        if holdout := get(spec.get("run") or {}, ("data", "holdout")):
            column["holdout"] = holdout
    baselines = ((spec.get("run") or {}).get("baseline") for spec in (*points, *specs))
    attributes: dict[str, object] = {
        "experiment": str(columns[0]["experiment"]),
        "baseline": next(filter(None, baselines), None),
        "swept": [names.get(key, key) for key in keys if key in product or key == "seed"],
        "outside": {
            column["outside"]: [names.get(key, key) for key in spec["swept"] if key not in product]
            for column, spec in zip(columns, specs, strict=True)
            if column["outside"]
        },
    }
    lengths = {get(point.get("run") or {}, ("train", "epochs")) for point in points}
    if len(lengths) == 1:
        attributes["epochs_of_file"] = lengths.pop()
    return columns, attributes


def _left_out(directory: RunDirectory) -> CollectedRun:
    """Return a run whose settings are lost."""
    damage = directory.damage(contents=True)
    return CollectedRun(directory.path.name, "settings unknown", "damaged", 0, 0, 0, (), damage=damage)


def _scores(spec: Mapping[str, Any]) -> bool:
    """Tell whether a run's rule uses a reference or losses of a validator; do not import plugins or packages."""
    needs = get(dict(spec), ("components", "validation.rule", "needs"))
    if needs is None:  # older records do not name components, which were all built in
        rules, kind = installed().of("rules"), get(spec.get("run") or {}, ("validation", "rule", "kind"))
        known = kind in rules and rules.entry(kind).origin == BUILT_IN
        needs = rules[kind].needs if known else ()
    return not {"reference", "loss"}.isdisjoint(needs)


def _run_table(directory: RunDirectory, facts: Mapping[str, object]) -> tuple[pd.DataFrame, CollectedRun]:
    tables, attempts, damaged, superseded, unreadable = [], [], 0, 0, []
    bypass = Bypass()
    for file in directory.records:
        try:
            read = read_lines(file)
        except OSError as error:
            unreadable.append(f"{file.name}: {error.strerror}")
            continue
        damaged += read.damaged
        lines, attempt = read.valid()
        superseded += len(read.lines) - len(lines)
        attempts.append(attempt)
        bypass.join(lines)  # the combiners' files come before those of the workers
        taken = {"run", *facts, *TOTAL_COLUMNS, *JOINED}
        tables.append(tabulate([{key: value for key, value in line.items() if key not in taken} for line in lines]))
    # A process that has not written since the start of a new attempt has only lines of older attempts. All have if the
    # run is done; in records of earlier versions they may count their attempts differently.
    latest = max(attempts, default=1)
    if (directory.path / "DONE").exists():
        attempts = [latest] * len(attempts)
    superseded += sum(len(t) for t, attempt in zip(tables, attempts, strict=True) if attempt < latest)
    table = stack([t for t, attempt in zip(tables, attempts, strict=True) if attempt == latest])
    run = CollectedRun(
        run_id=str(facts["run_id"]),
        label=str(facts["label"]),
        status=str(facts["status"]),
        lines=len(table),
        superseded=superseded,
        damaged=damaged,
        unreadable=tuple(unreadable),
    )
    if table.empty:
        return table, run
    asynchronous = get(directory.spec, ("run", "train", "mode")) == "async"
    table = with_callbacks(with_evaluation(table, directory.path))
    table = with_totals(table, workers=int(finite(facts["workers"])) if asynchronous else 0)
    evaluations = table[is_in(table, "event", "evaluation")]
    found = RunAcceptance.of_totals({name: float(numbers(evaluations, name).max(initial=0)) for name in RUN_TOTALS})
    diverged = (numbers(evaluations, "diverged") > 0).any()
    return table, replace(run, acceptance=found, stalled=found.stalled and not diverged)

"""The runs of an experiment: the points of its file and its sweeps, and the other runs in its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcps.errors import RunError, SpecError
from hpcps.records.locate import ExperimentLocation
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import RunStatus, SweepProgress
from hpcps.records.sweep import belongs, launched, launches, planned
from hpcps.records.variants import variants
from hpcps.spec.overrides import Candidate, selected
from hpcps.spec.tree import get


@dataclass(frozen=True)
class ExperimentStatus:
    """The status of an experiment.

    Attributes:
        name: its name, with the differences from its file if all runs have the same ones.
        runs: the status of each run; labels contain differences from the file that not all runs have.
        note: a remark on points that are not in `runs`; may be empty.
    """

    name: str
    runs: tuple[RunStatus, ...]
    note: str = ""


@dataclass(frozen=True)
class ExperimentRuns:
    """The runs of an experiment to show.

    Attributes:
        paths: its run folders; a folder need not exist.
        points: the points of its file and of its sweeps, in the form of `spec.json`, by run id.
        folder: its results.
        file: the ids of the points of its current file.
    """

    name: str
    paths: Sequence[Path]
    points: Mapping[str, Mapping[str, Any]]
    folder: Path
    file: frozenset[str] = frozenset()

    @classmethod
    def of(cls, folder: Path, points: Sequence[Mapping[str, Any]]) -> ExperimentRuns:
        """Return an experiment with the points of its file and its sweeps first, then its other runs.

        Args:
            folder: the experiment's results.
            points: the points of its file.
        """
        by_id = {str(point["run_id"]): point for point in points} | planned(folder, points)
        paths = [folder / "runs" / run_id for run_id in by_id]
        others = [path for path in _in_order(folder) if path.name not in by_id and belongs(RunDirectory(path), by_id)]
        return cls(folder.name, paths + others, by_id, folder, frozenset(str(point["run_id"]) for point in points))

    @classmethod
    def selection(cls, place: ExperimentLocation, overrides: Sequence[str], only: Sequence[str]) -> ExperimentRuns:
        """Return the selected points of an experiment, with the values of `--set`.

        Args:
            place: its results, and the points of its file with these values.
            overrides: the values of `--set`.
            only: the selectors of points.

        Raises:
            RunError: its points are not known.
            SpecError: no point matches.
        """
        # A file that names plugins has no points here: reading results executes no plugin.
        points = place.points or launched(place.results, overrides)
        folder = place.results
        sweeps = [] if overrides else [sweep for sweep in launches(folder) if sweep]
        if not points and not sweeps:
            given = "".join(f" --set {override}" for override in overrides)
            raise RunError(f"the points of {place.results.name} are not known before `hpcps run`{given}")
        by_id = _selected(points, only) if points else {}
        file = frozenset(by_id)
        if not overrides and not any((folder / "runs" / run_id).is_dir() for run_id in by_id):
            # Only runs with --set have started: `poll` shows them in place of the points of the file.
            started = {run_id: point for sweep in sweeps for run_id, point in _selected(sweep, only, none=True).items()}
            by_id |= {run_id: point for run_id, point in started.items() if (folder / "runs" / run_id).is_dir()}
        by_id = by_id or _selected(sweeps[-1], only)
        return cls(folder.name, [folder / "runs" / run_id for run_id in by_id], by_id, folder, file)

    def poll(self, *, verify: bool = False) -> ExperimentStatus:
        """Read the status of the runs; `verify` compares the checksums of the files of finished ones."""
        runs = SweepProgress(self.paths, verify=verify).poll()
        texts = self._variants(runs)
        points = self.points
        runs = [run.planned(p["label"], p["run"]) if (p := points.get(run.run_id)) else run for run in runs]
        idle = [run for run in runs if run.run_id in self.file and run.state == "not started"]
        note = ""
        if idle and len(idle) == len(self.file) < len(runs):
            # Only runs with --set have started.
            runs = [run for run in runs if run not in idle]
            note = f"the {len(idle)} points of the file without --set have not started"
        alike = {texts[run.run_id] for run in runs}
        if len(alike) == 1:
            return ExperimentStatus(self.name + "".join(alike), tuple(runs), note)
        return ExperimentStatus(
            self.name, tuple(replace(run, label=run.label + texts[run.run_id]) for run in runs), note
        )

    def _variants(self, runs: Sequence[RunStatus]) -> dict[str, str]:
        """Return by run id the differences from the file, such as ` (train.epochs=2)`, or an empty text.

        A seed is stated where nothing else distinguishes two runs.
        """
        known = {run.run_id: RunDirectory(run.path).spec or self.points.get(run.run_id) for run in runs}
        specs = {run_id: spec for run_id, spec in known.items() if spec}
        texts = variants(list(specs.values()), [point for run_id, point in self.points.items() if run_id in self.file])
        seeds = {run_id: get(dict(spec), ("run", "seed")) for run_id, spec in specs.items()}
        told = [(spec.get("label"), text) for spec, text in zip(specs.values(), texts, strict=True)]
        of_one = Counter(dict.fromkeys(zip(told, seeds.values(), strict=True)))
        several = Counter(each for each, _ in of_one)
        found = {}
        for run_id, one, text in zip(specs, told, texts, strict=True):
            words = " ".join(filter(None, [text, f"seed={seeds[run_id]}" if several[one] > 1 else ""]))
            found[run_id] = f" ({words})" if words else ""
        return {run.run_id: found.get(run.run_id, "") for run in runs}


def _selected(
    points: Sequence[Mapping[str, Any]], only: Sequence[str], *, none: bool = False
) -> dict[str, Mapping[str, Any]]:
    """Return the points of a sweep that the selectors match, by run id; `none` permits that there is none."""
    candidates = [Candidate(p["index"], p["run_id"], p["label"], partial(dict, p["run"])) for p in points]
    try:
        indices = selected(candidates, only)
    except SpecError:
        if not none:
            raise
        indices = frozenset()
    return {str(point["run_id"]): point for point in points if point["index"] in indices}


def _in_order(experiment: Path) -> list[Path]:
    """Return the run folders of an experiment in the order of its sweep."""
    folders = [path for path in (experiment / "runs").glob("*") if path.is_dir()]
    return sorted(folders, key=lambda path: (RunDirectory(path).spec.get("index", 0), path.name))

"""The scores of the runs of a search, the configuration that they choose, and the file with this result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hpcps
from hpcps.errors import RunError
from hpcps.records.collect import collect
from hpcps.records.files import write_whole, writing
from hpcps.records.provenance import source_state
from hpcps.spec.point import Point
from hpcps.spec.search_groups import Configuration, SearchGroup


@dataclass(frozen=True)
class RunScore:
    """The last evaluation of a run on the held-out samples.

    Attributes:
        accuracy: share classified rightly; NaN if it is not known.
        loss: mean loss; NaN if it is not known.
        lost: why the run counts as lost: `diverged`, or its state, such as `failed`; empty for a run that counts.
    """

    run_id: str
    accuracy: float
    loss: float
    lost: str


@dataclass(frozen=True)
class ConfigurationScore:
    """The score of a configuration in a rung.

    Attributes:
        place: the position of the configuration in its group.
        rung: the rung, from 0.
        accuracy: mean over the seeds, and the worst or the mean over the points; NaN if all runs are lost.
        loss: likewise.
        runs: its runs; several for several points or seeds.
    """

    place: int
    rung: int
    accuracy: float
    loss: float
    runs: tuple[RunScore, ...]

    @property
    def lost(self) -> int:
        """The number of runs that are lost."""
        return sum(bool(run.lost) for run in self.runs)

    @property
    def has_score(self) -> bool:
        """Whether any run counts."""
        return self.lost < len(self.runs)


def score_runs(folder: Path, points: Iterable[Point]) -> dict[str, RunScore]:
    """Return the score of each run, by its id.

    Args:
        folder: the results of the search.
        points: its runs, finished or not.
    """
    rows: dict[str, Mapping[Any, Any]] = {}
    with suppress(RunError):  # no run has written a record
        table = collect(folder, events=["evaluation"]).table
        if "epoch" in table:
            last = table.sort_values("epoch", kind="stable").groupby("run_id", observed=True).tail(1)
            rows = {str(row["run_id"]): row for row in last.to_dict("records")}
    scores = {}
    for point in points:
        row = rows.get(point.run_id, {"status": "failed"})
        accuracy, loss = (float(row.get(name, math.nan)) for name in ("accuracy", "loss"))
        lost = "" if row["status"] == "done" else str(row["status"])
        if not lost and (row.get("diverged", 0) > 0 or not math.isfinite(loss) or not math.isfinite(accuracy)):
            lost = "diverged"
        scores[point.run_id] = RunScore(point.run_id, accuracy, loss, lost)
    return scores


def ranked(
    group: SearchGroup, places: Iterable[int], rung: int, scores: Mapping[str, RunScore]
) -> list[ConfigurationScore]:
    """Return the scores of some configurations in a rung, the best first.

    A configuration with fewer lost runs comes first, then the one with the better score, then the one with the smaller
    loss, then the one that the file lists first.
    """
    found = [_scored(group, group.configurations[place], place, rung, scores) for place in places]

    def order(score: ConfigurationScore) -> tuple[float, ...]:
        by = -score.accuracy if group.search.score == "accuracy" else score.loss
        values = (by, score.loss) if score.has_score else (math.inf, math.inf)
        return (score.lost, *values, score.place)

    return sorted(found, key=order)


def _scored(
    group: SearchGroup, configuration: Configuration, place: int, rung: int, scores: Mapping[str, RunScore]
) -> ConfigurationScore:
    points = configuration.rungs[rung]
    by_point: dict[str, list[RunScore]] = {}
    for point in points:
        score = scores[point.run_id]
        if not score.lost:
            by_point.setdefault(point.run.model_copy(update={"seed": 0}).model_dump_json(), []).append(score)
    accuracies = [_mean([score.accuracy for score in runs]) for runs in by_point.values()]
    losses = [_mean([score.loss for score in runs]) for runs in by_point.values()]
    worst = group.search.over == "worst"
    accuracy, loss = (min(accuracies), max(losses)) if worst and by_point else (_mean(accuracies), _mean(losses))
    return ConfigurationScore(place, rung, accuracy, loss, tuple(scores[point.run_id] for point in points))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def write_result(
    group: SearchGroup, scores: Sequence[ConfigurationScore], file: Path, overrides: Sequence[str]
) -> None:
    """Write the values of the first score with their provenance, which runs with these values copy into `spec.json`.

    Args:
        group: the group.
        scores: those of all configurations: the last rung first, and in each the best first.
        file: the experiment file.
        overrides: the values of `--set`.

    Raises:
        RunError: the file cannot be written.
    """
    chosen = scores[0]
    search = group.search
    content = {
        "values": group.configurations[chosen.place].values,
        "per": group.per,
        "kind": search.kind,
        "score": search.score,
        "over": search.over,
        "holdout": search.holdout,
        "accuracy": chosen.accuracy,
        "loss": chosen.loss,
        "runs": [run.run_id for run in chosen.runs],
        "lost": chosen.lost,
        "configurations": len(group.configurations),
        "result": f"{group.result.parent.parent.name}/{group.result.parent.name}/{group.result.name}",
        "file": file.name,
        "overrides": list(overrides),
        "hpcps": hpcps.__version__,
        "commit": source_state(Path(hpcps.__file__).parent).commit,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "tried": [
            {
                "values": group.configurations[score.place].values,
                "rung": score.rung,
                "accuracy": _known(score.accuracy),
                "loss": _known(score.loss),
                "runs": {run.run_id: run.lost or "done" for run in score.runs},
            }
            for score in scores
        ],
    }
    with writing(group.result):
        group.result.parent.mkdir(parents=True, exist_ok=True)
        write_whole(group.result, json.dumps(content, indent=1, allow_nan=False) + "\n")
        group.without_result.unlink(missing_ok=True)


def write_without_result(group: SearchGroup) -> None:
    """Note that all runs of a group are lost, so that `hpcps run` does not ask to execute the same search.

    Raises:
        RunError: the file cannot be written.
    """
    with writing(group.without_result):
        group.without_result.parent.mkdir(parents=True, exist_ok=True)
        write_whole(group.without_result, "all runs diverged or failed\n")


def write_proposals(group: SearchGroup, values: Sequence[Mapping[str, Any]]) -> None:
    """Add proposed configurations, given by their values by dotted key, to the file that `load_experiment` reads.

    A search that is interrupted, or that another version of Optuna continues, executes what was proposed before.

    Raises:
        RunError: the file cannot be written.
    """
    file = group.proposals
    content = [*group.proposed, *values]
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None

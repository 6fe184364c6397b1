"""Gives the records of runs to experiment trackers: MLflow, Weights & Biases, Trackio and TensorBoard.

`hpcps export` writes runs that are there, and `hpcps.execution.tracking` follows a run; both use the same trackers.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd

from hpcps.errors import HpcpsError, InputError, RunError, text_of
from hpcps.inputs import MiB, printable, read_json
from hpcps.records.files import writing
from hpcps.records.table import numbers, settings_of
from hpcps.spec.tracking import PACKAGES
from hpcps.spec.tree import get

ROUND_FIELDS = (
    *("loss", "train_accuracy", "learning_rate", "compute", "combine", "exchange", "wait", "bytes_sent"),
    *("acceptance_rate", "blocks_attacked"),
)
"""The fields of `round` lines that trackers get, for each process."""

_NO_SCALARS = ("index", "round", "time", "rank", "pid", "attempt")
_NO_SETTINGS = ("run_id", "label", "status", "point", "scores", "settings", "one_process")
"""Columns of a table that are no settings of a run, or that a tracker has in another form."""


class Scalar(NamedTuple):
    """A number of a run: its tag, the round, the seconds since the start of the run, and the value."""

    tag: str
    round: int
    time: float
    value: float


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of a run at its beginning.

    Attributes:
        run_id: its id.
        label: its label.
        experiment: the experiment.
        settings: the settings that distinguish runs, such as `rule` and `attack`.
        start: when it started, in seconds since 1970; 0 if that is not known.
    """

    run_id: str
    label: str
    experiment: str
    settings: Mapping[str, object]
    start: float = 0.0

    @classmethod
    def of(cls, rows: pd.DataFrame, start: float) -> TrackedRun:
        """Return what the rows of a run in a table of `collect` say of it."""
        facts = rows[settings_of(rows)].iloc[0]
        known = {str(name): _plain(value) for name, value in facts.items() if pd.notna(value) and value != ""}
        settings = {name: value for name, value in known.items() if name not in _NO_SETTINGS}
        return cls(str(facts["run_id"]), str(facts["label"]), str(facts["experiment"]), settings, start)

    @property
    def name(self) -> str:
        """A name for people that is unique in the experiment."""
        return f"{self.label} {self.run_id}"


class Tracker(ABC):
    """An experiment tracker, which gets one run after another.

    A run begins anew: what the tracker has of an earlier export, or of an earlier attempt of the run, is replaced.

    Attributes:
        place: the folder, or another destination that a variable of the tracker names.
        hint: how a person sees it.
    """

    name: ClassVar[str]
    """Its name in `--to` and in `[tracking]`."""

    variable: ClassVar[str] = ""
    """The tracker's own environment variable that names another destination than the folder."""

    def __init__(self, folder: Path) -> None:
        """Import the package of the tracker; it writes into the folder, unless its variable names a destination.

        Raises:
            RunError: the package cannot be imported, or its variable has a value that it cannot have.
        """
        self._folder = folder
        self.place = self._destination() or str(folder)
        os.environ.update(self._variables())
        module, extra = PACKAGES[self.name]
        try:
            with redirect_stdout(StringIO()):
                self._module = import_module(module)
        except ImportError as error:
            raise RunError(
                f"--to {self.name} needs the package {module}, which is not installed: install hpcps with its extra "
                f"`{extra}`: pip install 'hpcps[{extra}]'"
            ) from error

    def _destination(self) -> str:
        """Return the destination that its variable names; empty for the folder."""
        return os.environ.get(self.variable, "")

    def _variables(self) -> dict[str, str]:
        """Return the environment variables that the package reads when it is imported."""
        return {}

    @property
    def elsewhere(self) -> bool:
        """Whether its variable names another destination than the folder."""
        return self.place != str(self._folder)

    @property
    @abstractmethod
    def hint(self) -> str:
        """The command with which a person sees the runs."""

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Begin a run anew."""

    @abstractmethod
    def log(self, scalars: Sequence[Scalar]) -> None:
        """Take numbers of the run, each once."""

    @abstractmethod
    def end(self, *, done: bool) -> None:
        """End the run, which is done, or has stopped or failed."""


class TensorBoard(Tracker):
    """Event files of TensorBoard, in a folder for each run."""

    name = "tensorboard"

    @property
    def hint(self) -> str:
        return f"tensorboard --logdir {self.place}"

    def begin(self, run: TrackedRun) -> None:
        path = self._folder / re.sub(r"[^\w.+-]+", "-", f"{run.label}-{run.run_id}")
        for old in path.glob("events.out.tfevents.*"):
            old.unlink()
        self._start = run.start
        self._writer = self._module.SummaryWriter(str(path))
        lines = [f"| {name} | {value} |" for name, value in run.settings.items()]
        self._writer.add_text("settings", "\n".join(["| key | value |", "|---|---|", *lines]), 0, run.start)

    def log(self, scalars: Sequence[Scalar]) -> None:
        for tag, round, time, value in scalars:
            self._writer.add_scalar(tag, value, round, self._start + time)
        self._writer.flush()

    def end(self, *, done: bool) -> None:
        self._writer.close()


class MlFlow(Tracker):
    """A folder of MLflow's file store, or the tracking server that `MLFLOW_TRACKING_URI` names."""

    name = "mlflow"
    variable = "MLFLOW_TRACKING_URI"
    _MOST = 1000
    """Metrics that its client takes at once."""

    def _variables(self) -> dict[str, str]:
        # MLflow refuses folders otherwise; its databases need a package that mlflow-skinny does not bring. Of its own
        # accord it tries for many minutes to reach a server that does not answer.
        limits = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
        own = {name: os.environ.get(name, value) for name, value in limits.items()}
        return {"MLFLOW_ALLOW_FILE_STORE": "true", **own}

    @property
    def hint(self) -> str:
        if self.elsewhere:
            return f"mlflow ui --backend-store-uri {self.place}"
        return f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {self.place}"

    def begin(self, run: TrackedRun) -> None:
        uri = self.place if self.elsewhere else self._folder.absolute().as_uri()
        self._client = self._module.tracking.MlflowClient(uri)
        experiment = self._experiment(run.experiment)
        for old in self._client.search_runs([experiment], f"tags.`hpcps.run_id` = '{run.run_id}'"):
            self._client.delete_run(old.info.run_id)
        self._start = run.start
        made = self._client.create_run(
            experiment, self._milliseconds(0.0), {"hpcps.run_id": run.run_id, "hpcps.label": run.label}, run.label
        )
        self._run = made.info.run_id
        params = [self._module.entities.Param(name, str(value)) for name, value in run.settings.items()]
        self._client.log_batch(self._run, params=params)

    def _experiment(self, name: str) -> str:
        """Return the id of the experiment; another process may make it at the same time."""
        with suppress(self._module.exceptions.MlflowException):
            return str(self._client.create_experiment(name))
        known = self._client.get_experiment_by_name(name)
        if known is None or known.lifecycle_stage != "active":
            raise RunError(f"MLflow has deleted the experiment {name}: restore it with `mlflow experiments restore`")
        return str(known.experiment_id)

    def _milliseconds(self, time: float) -> int:
        return int(1000 * (self._start + time))

    def log(self, scalars: Sequence[Scalar]) -> None:
        metric = self._module.entities.Metric
        metrics = [metric(tag, value, self._milliseconds(time), round) for tag, round, time, value in scalars]
        for first in range(0, len(metrics), self._MOST):
            self._client.log_batch(self._run, metrics=metrics[first : first + self._MOST])

    def end(self, *, done: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if done else "KILLED")


class WeightsAndBiases(Tracker):
    """Offline runs of Weights & Biases, which `wandb sync` uploads; `WANDB_MODE=online` sends them at once."""

    name = "wandb"
    variable = "WANDB_MODE"

    def _destination(self) -> str:
        mode = super()._destination()
        if mode not in ("", "offline", "online", "shared"):
            raise RunError(f"WANDB_MODE={printable(mode)}: hpcps writes to offline, online or shared: use one of them")
        return "" if mode == "offline" else mode

    @property
    def hint(self) -> str:
        return "wandb status" if self.elsewhere else f"wandb sync {self.place}/wandb/offline-run-*"

    def begin(self, run: TrackedRun) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in (self._folder / "wandb").glob(f"offline-run-*-{run.run_id}"):
            shutil.rmtree(old)
        quiet = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        self._run = self._module.init(
            mode=self.place if self.elsewhere else "offline",
            dir=str(self._folder),
            project=run.experiment,
            id=run.run_id,
            name=run.label,
            config=dict(run.settings),
            resume="allow" if self.elsewhere else None,
            settings=self._module.Settings(**quiet, x_disable_stats=True, x_disable_meta=True),
        )
        # Its own step only grows, and the rounds of processes come one after another.
        self._run.define_metric("*", step_metric="round")

    def log(self, scalars: Sequence[Scalar]) -> None:
        for (round, time), values in _rows(scalars):
            self._run.log({**values, "round": round, "seconds": time})

    def end(self, *, done: bool) -> None:
        self._run.finish(exit_code=0 if done else 1)


class Trackio(Tracker):
    """The database of a Trackio project."""

    name = "trackio"

    def _variables(self) -> dict[str, str]:
        return {"TRACKIO_DIR": str(self._folder.absolute())}

    @property
    def hint(self) -> str:
        return f"TRACKIO_DIR={self.place} trackio show"

    def begin(self, run: TrackedRun) -> None:
        storage = import_module("trackio.sqlite_storage").SQLiteStorage
        if run.name in storage.get_runs(run.experiment):
            storage.delete_run(run.experiment, run.name)
        with redirect_stdout(StringIO()):
            self._run = self._module.init(
                project=run.experiment,
                name=run.name,
                config={"hpcps.run_id": run.run_id, **run.settings},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, scalars: Sequence[Scalar]) -> None:
        for (round, time), values in _rows(scalars):
            self._run.log({**values, "seconds": time}, step=round)

    def end(self, *, done: bool) -> None:
        with redirect_stdout(StringIO()):
            self._run.finish()


TRACKERS: Mapping[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (TensorBoard, MlFlow, WeightsAndBiases, Trackio)
}
"""The trackers by name."""


def _rows(scalars: Sequence[Scalar]) -> Iterator[tuple[tuple[int, float], dict[str, float]]]:
    """Yield round and seconds with the values of that moment, in the order of rounds."""
    ordered = sorted(scalars, key=lambda scalar: (scalar.round, scalar.time))
    for moment, group in groupby(ordered, key=lambda scalar: (scalar.round, scalar.time)):
        yield moment, {scalar.tag: scalar.value for scalar in group}


def write_runs(frame: pd.DataFrame, results: Path, tracker: Tracker) -> int:
    """Give the runs of a table to a tracker; return their number.

    `evaluation/<field>` are the numbers of evaluations, and `<role>-<index>/<field>` those of `round` lines in
    `ROUND_FIELDS`. The times are those of the run, if its provenance has its start.

    Args:
        frame: the table of `collect`.
        results: the experiment's folder.
        tracker: the tracker.

    Raises:
        RunError: the folder cannot be written, or the tracker fails.
    """
    starts, count = starts_of(results), 0
    with _failures_of(tracker), writing(f"to {tracker.place}", "choose another folder with -o"):
        for run_id, rows in frame.groupby("run_id", sort=False, observed=True):
            tracker.begin(TrackedRun.of(rows, starts.get(str(run_id), 0.0)))
            tracker.log([*scalars_of(rows)])
            tracker.end(done=str(rows["status"].iloc[0]) == "done")
            count += 1
    return count


@contextmanager
def _failures_of(tracker: Tracker) -> Iterator[None]:
    """Raise errors of the tracker's package, such as of a server that does not answer, as ours."""
    try:
        yield
    except HpcpsError:
        raise
    except Exception as error:
        where = f" ({tracker.variable}={tracker.place})" if tracker.elsewhere else ""
        raise RunError(f"the tracker {tracker.name}{where} failed: {printable(text_of(error))[:300]}") from error


def scalars_of(rows: pd.DataFrame) -> Iterator[Scalar]:
    """Yield the numbers of a run that trackers get, from its rows in a table of `collect`."""
    rows = rows.drop(columns=settings_of(rows))
    evaluations = rows[rows["event"] == "evaluation"]
    known = evaluations.dropna(axis="columns", how="all").select_dtypes("number")
    fields = [name for name in known if name not in _NO_SCALARS]
    yield from _of_rows(evaluations, {name: f"evaluation/{name}" for name in fields})
    rounds = rows[rows["event"] == "round"]
    if not rounds.empty:
        for (role, _), own in rounds.groupby(["role", "index"], sort=False, observed=True):
            # Rows of a run without an index, such as sums, make the column one of float64.
            process = f"{role}-{numbers(own, 'index')[0]:.0f}"
            yield from _of_rows(own, {name: f"{process}/{name}" for name in ROUND_FIELDS if name in own})


def _of_rows(rows: pd.DataFrame, tags: Mapping[Any, str]) -> Iterator[Scalar]:
    for name, tag in tags.items():
        known = rows[["round", "time", name]].dropna()
        for step, time, value in known.itertuples(index=False):
            yield Scalar(tag, int(step), float(time), float(value))


def _plain(value: Any) -> object:
    return value.item() if hasattr(value, "item") else value


def starts_of(results: Path) -> dict[str, float]:
    """Return the start of each run, in seconds since 1970, by run id."""
    found: dict[str, Any] = {}
    with suppress(InputError):
        published = read_json(results / "provenance.json", 64 * MiB)
        found |= published if isinstance(published, dict) else {}
    for path in results.glob("runs/*/provenance.json"):
        with suppress(InputError):
            found[path.parent.name] = read_json(path, 64 * MiB)
    starts = {}
    for run_id, facts in found.items():
        with suppress(ValueError):
            starts[run_id] = datetime.fromisoformat(str(get(facts, ("started",)))).timestamp()
    return starts

"""An experiment in a script or notebook: load, check and run it, and read its results."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcps.callbacks import Callbacks
from hpcps.errors import LaunchError, RunError, SpecError
from hpcps.execution.sweep.claims import directory_of
from hpcps.library.content import DICTIONARY, Content, named, overrides_of
from hpcps.numerics.layout import Vector
from hpcps.records.locate import default_results
from hpcps.records.run_directory import RunDirectory
from hpcps.registry import Registry, activate, active, using
from hpcps.spec.load import LoadedExperiment, load_experiment
from hpcps.spec.point import Point
from hpcps.training.trial import try_components

if TYPE_CHECKING:
    import pandas as pd

    from hpcps.training.evaluation import Evaluation

Given = str | Path | Mapping[str, Any]
"""A file, its text (of more than one line), or its content as a dictionary."""


@dataclass(frozen=True, repr=False)
class Experiment:
    """An experiment file, or some of its points, read and checked; `hpcps.load` makes it.

    Attributes:
        name: the name of the experiment.
        points: its runs: `run` has the values of all keys, `run_id` and `label` name it, `swept` has the swept values.
        results: the folder of all results.
    """

    name: str
    points: tuple[Point, ...]
    results: Path
    _content: Content
    _set: tuple[str, ...]
    _only: tuple[str, ...]
    _loaded: LoadedExperiment
    _registry: Registry

    @property
    def ids(self) -> tuple[str, ...]:
        """The id of each run, which equal specs share."""
        return tuple(point.run_id for point in self.points)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each run, made from the values that differ between runs."""
        return tuple(point.label for point in self.points)

    @property
    def keys(self) -> pd.DataFrame:
        """The values of all keys of each run: a row for each id, a column for each dotted key."""
        import pandas as pd

        from hpcps.spec.tree import flatten

        rows = [flatten(point.run.model_dump(mode="json")) for point in self.points]
        return pd.DataFrame(rows, index=pd.Index(self.ids, name="run_id"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about valid settings that are probably not intended."""
        return tuple(_without_lines(warning) for warning in self._loaded.warnings)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        count = len(self.points)
        lines = [f"{self.name}: {count} point{'s' * (count != 1)}"]
        lines += [f"{point.index:>5}  {point.run_id}  {point.label}" for point in self.points]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    def check(self) -> Experiment:
        """Try the components that are not built in, as `hpcps check` does, and return the experiment.

        Raises:
            SpecError: a component is not usable.
        """
        with using(self._registry):
            try_components(point.run for point in self.points)
        return self

    def run(
        self,
        *,
        in_process: bool = True,
        callbacks: Callbacks | Sequence[Callbacks] = (),
        results: str | Path | None = None,
        progress: bool | None = None,
        resume: bool = True,
    ) -> Experiment:
        """Execute the runs that are not done; see `hpcps.run`."""
        given = Callbacks.listed(callbacks)
        folder = self.results if results is None else Path(results)
        from hpcps.library import execution

        if not in_process:
            if given:
                raise LaunchError(
                    "functions follow runs in this process: leave them out, or in_process=False, or name a class of "
                    "hpcps.Callback under `callbacks` in the experiment"
                )
            execution.launch("run", self._content.file, self._only, self._set, folder, progress=progress)
            return replace(self, results=folder)
        here = (self if folder == self.results else _load(self._content, self._set, self._only, folder))._in_process()
        here._loaded.check_searched()
        with using(here._registry):
            execution.execute(
                here._loaded, here.points, here._set, folder, callbacks=given, progress=progress, resume=resume
            )
        return replace(here, results=folder)

    def _in_process(self) -> Experiment:
        """Return the same points for one process; the transport is a part of a run and of its id."""
        if all(point.run.transport.in_process for point in self.points):
            return self
        # By index, because ids and the transport, which a selector may name, are others here.
        indices = ",".join(str(point.index) for point in self.points)
        try:
            here = _load(self._content, (*self._set, "transport.kind=inproc"), (indices,), self.results)
        except SpecError as error:
            raise SpecError(f"{error}\n  in_process=False executes it in the processes of its transport") from error
        return replace(here, _only=self._only)

    def search(
        self, *, in_process: bool = True, results: str | Path | None = None, progress: bool | None = None
    ) -> Experiment:
        """Execute the runs of the search that are not done, and choose values; see `hpcps.search`."""
        folder = self.results if results is None else Path(results)
        from hpcps.library import execution

        if not in_process:
            execution.launch("search", self._content.file, self._only, self._set, folder, progress=progress)
            return _load(self._content, self._set, self._only, folder)
        here = _load(self._content, self._set, self._only, folder)._in_process()

        def reload() -> LoadedExperiment:
            again = _load(here._content, here._set, here._only, folder)
            activate(again._registry)
            return again._loaded

        with using(here._registry):
            execution.search(here._loaded, reload, here._set, folder, progress=progress)
        return _load(here._content, here._set, here._only, folder)

    def table(self, *, events: Collection[str] | None = None) -> pd.DataFrame:
        """Return the records of these runs, as `hpcps collect` writes them: a row for each record line.

        Args:
            events: keep only rows of these events, such as `["evaluation"]`; by default all.

        Raises:
            RunError: there are no records, or there is no such event.
        """
        from hpcps.records.collect import collect

        points = [point.spec for point in self._loaded.points]
        with using(active()):  # reading a sweep may activate plugins
            table = collect(self.results / self.name, points, events).table
        mine = table[table["run_id"].isin(self.ids)].reset_index(drop=True)
        if mine.empty:
            raise RunError(f"none of these runs has records in {self.results / self.name}: run the experiment first")
        return mine

    def final_model(self, run_id: str) -> Vector:
        """Return the model of a finished run, `[d]` float32.

        Raises:
            SpecError: no run has this id.
            RunError: the run is not done.
        """
        return self._directory(run_id).final_model()

    def evaluate(self, run_id: str, model: Vector | None = None) -> Evaluation:
        """Evaluate a model on the test set of a run: loss, accuracy, top-5, and the accuracy of each class.

        BatchNorm statistics are averages over one pass of the coordinator's shard.

        Args:
            run_id: the run, whose settings are used.
            model: the parameters, `[d]` float32; by default those of the finished run.

        Raises:
            SpecError: no run has this id.
            RunError: the run is not done, or the model is not one of its network.
            DataError: a data file is missing, truncated or corrupt.
        """
        from hpcps.execution.recorded_run import evaluate_model

        directory = self._directory(run_id)
        return evaluate_model(directory, directory.final_model() if model is None else model)

    def _directory(self, run_id: str) -> RunDirectory:
        point = next((point for point in self.points if point.run_id == run_id), None)
        if point is None:
            raise SpecError(f"{self.name} has no run {run_id!r}; its runs are {', '.join(self.ids)}")
        return directory_of(point, self.results)


def load(
    experiment: Given,
    *,
    set: Mapping[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
    results: str | Path | None = None,
) -> Experiment:
    """Read an experiment, expand its sweep and check every point; nothing is printed or executed except plugins.

    Relative paths in a file (`plugins`, `data.dir`) start from its folder; a `data.dir` that is not there starts from
    the working directory, as do all paths of a text or dictionary.

    Args:
        experiment: a TOML file, its text (of more than one line), or its content as a dictionary. In a dictionary and
            in `set`, a component such as `hpcps.rules.Zeno(rho=0.1)` may stand for its table.
        set: values of keys that override the file, such as `{"train.epochs": 5}`, as `hpcps run --set` does.
        only: selects points, as `hpcps run --only` does: `"zeno"`, `"0-3"`, `"attack.kind=none"`. Each further
            text of a list narrows the selection, as a further `--only` does.
        results: the folder of all results; by default `$HPCPS_RESULTS`, else `results`.

    Raises:
        SpecError: the experiment has mistakes; the message lists all of them.
    """
    folder = default_results() if results is None else Path(results)
    return _load(Content.of(experiment), overrides_of(set), _selectors(only), folder)


def check(
    experiment: Given, *, set: Mapping[str, Any] | None = None, only: str | Sequence[str] | None = None
) -> Experiment:
    """Load an experiment and try its components, as `hpcps check` does; see `load` for the arguments.

    Returns:
        The experiment, which shows its points and warnings when it is printed.

    Raises:
        SpecError: the experiment has mistakes, or a component is not usable.
    """
    return load(experiment, set=set, only=only).check()


def run(
    experiment: Given | Experiment,
    *,
    set: Mapping[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
    in_process: bool = True,
    callbacks: Callbacks | Sequence[Callbacks] = (),
    results: str | Path | None = None,
    progress: bool | None = None,
    resume: bool = True,
) -> Experiment:
    """Execute the runs of an experiment that are not done, one after another.

    A run that was interrupted resumes from its last checkpoint. The first Ctrl-C, or interrupt of a notebook, stops the
    current run at its next checkpoint; the second stops it at once. A run that fails does not stop the others.

    Args:
        experiment: an experiment that `load` returned, or what `load` takes.
        set: values of keys that override the experiment.
        only: selects points, of those that `load` selected.
        in_process: whether all roles of a run are in this process. `transport.kind` is then `inproc`, which is a part
            of a run's id. Otherwise `hpcps run` starts the processes, over the transport that the experiment names.
        callbacks: functions that are called after rounds and evaluations, for runs in this process.
        results: the folder of all results; by default that of the experiment.
        progress: whether to show progress; by default in a notebook and at a prompt, not in a script.
        resume: whether to skip runs that are done and to resume others; else all runs start from the beginning.

    Returns:
        The experiment as it was executed: `run(...).table()` has its results.

    Raises:
        SpecError: the experiment has mistakes.
        RunError: runs failed; a `CallbackError` if a callback did, which ends the current run and starts no other.
        DataError: the files of the data set are missing or damaged.
    """
    experiment = _selected(experiment, set, only)
    return experiment.run(in_process=in_process, callbacks=callbacks, results=results, progress=progress, resume=resume)


def search(
    experiment: Given | Experiment,
    *,
    set: Mapping[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
    in_process: bool = True,
    results: str | Path | None = None,
    progress: bool | None = None,
) -> Experiment:
    """Execute the runs of the `[search]` of an experiment that are not done, and choose the best values.

    The arguments are those of `run`. A searched key that `set` sets is not searched; values are chosen for the points
    that `only` selects, and for runs over the same transport.

    Returns:
        The experiment with the chosen values: `search(...).run()` executes it.

    Raises:
        SpecError: the experiment has mistakes, or nothing to search.
        RunError: all runs of some points failed or diverged, so that nothing is chosen for them.
        DataError: the files of the data set are missing or damaged.
    """
    return _selected(experiment, set, only).search(in_process=in_process, results=results, progress=progress)


def _selected(
    experiment: Given | Experiment, set: Mapping[str, Any] | None, only: str | Sequence[str] | None
) -> Experiment:
    if not isinstance(experiment, Experiment):
        return load(experiment, set=set, only=only)
    if not set and only is None:
        return experiment
    content, more = experiment._content, (*experiment._set, *overrides_of(set))
    return _load(content, more, (*experiment._only, *_selectors(only)), experiment.results)


def _selectors(only: str | Sequence[str] | None) -> tuple[str, ...]:
    texts = (only,) if isinstance(only, str) else () if only is None else only
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise SpecError(f'only: expects a text such as "0" or "zeno", or a list of texts, got {named(only)}')
    return tuple(texts)


def _load(content: Content, overrides: tuple[str, ...], only: tuple[str, ...], results: Path) -> Experiment:
    try:
        with using(active()):  # what the experiment activates ends with this block
            loaded = load_experiment(content.file, overrides, content.text, only, results)
            registry = active()
            file = content.file
            points = tuple(_with_data_dir(point, file) for point in loaded.points)
            chosen = tuple(_with_data_dir(point, file) for point in loaded.chosen)
            loaded = replace(loaded, points=points, chosen=chosen)
    except SpecError as error:
        raise SpecError(_without_lines(str(error))) from None
    return Experiment(loaded.name, chosen, results, content, overrides, only, loaded, registry)


def _with_data_dir(point: Point, file: Path) -> Point:
    """Return a point whose data folder, if it is beside the experiment file, is absolute."""
    given = point.run.data.dir
    if given is None or Path(given).is_absolute() or not (file.parent / given).is_dir():
        return point
    data = point.run.data.model_copy(update={"dir": str((file.parent / given).absolute())})
    return replace(point, run=point.run.model_copy(update={"data": data}))


def _without_lines(message: str) -> str:
    """Remove the lines of the text that stands for a dictionary."""
    return re.sub(rf"{re.escape(str(DICTIONARY))}:\d+(:\d+)?: ", "", message)

"""Executes the unfinished runs of an experiment: in this process, or over processes that `hpcps run` starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hpcps.callbacks import Callbacks
from hpcps.errors import CallbackError, HpcpsError, LaunchError, RunError
from hpcps.execution.reporter import Reporter
from hpcps.execution.sweep.batch import execute_point
from hpcps.execution.sweep.claims import Unfinished, directory_of
from hpcps.execution.sweep.resizing import as_requested
from hpcps.execution.tracking import TrackingProcess
from hpcps.launch.stop import stops_of
from hpcps.library.progress import ProgressBar, is_interactive
from hpcps.spec.load import LoadedExperiment
from hpcps.spec.point import Point


def execute(
    loaded: LoadedExperiment,
    points: Sequence[Point],
    overrides: Sequence[str],
    results: Path,
    *,
    callbacks: Sequence[Callbacks] = (),
    progress: bool | None = None,
    resume: bool = True,
) -> None:
    """Execute the points that are not done in this process, one after another; wait for those that another executes.

    Args:
        loaded: the experiment.
        points: the points to execute.
        overrides: the values of keys that were set.
        results: the folder of all results.
        callbacks: what to call during the runs.
        progress: whether to show progress; None: if a person types the code.
        resume: whether to skip runs that are done, and to resume others from their checkpoints.

    Raises:
        RunError: some of the runs failed; the others were executed.
        CallbackError: a callback failed; no further run was executed.
        KeyboardInterrupt: a person stopped it; the current run resumes from a checkpoint when it is executed again.
    """
    unfinished = Unfinished(
        points, loaded.points, file=loaded.path, overrides=overrides, results=results, resume=resume
    )
    left = unfinished.left
    if left:
        unfinished.check_ready()
    unfinished.write_sweep()
    shown = bool(left) and (is_interactive() if progress is None else progress)
    bar = ProgressBar(left, unfinished.done, sys.stderr if shown else None)
    failed: list[tuple[Point, HpcpsError]] = []
    command = ["hpcps.run", str(loaded.path), *overrides]

    def execute_claimed(mine: Sequence[Point]) -> bool:
        for point in mine:
            unfinished.request(point)
            error = _execute_point(point, results, command, callbacks, bar, tracking, resume=resume)
            failed.extend([(point, error)] if error else [])
        return True

    try:
        with _settings_kept(left), TrackingProcess() as tracking:
            unfinished.execute(execute_claimed)
    finally:
        bar.close()
    if failed:
        lines = [f"run {point.run_id} ({point.label}): {error}" for point, error in failed]
        if len(points) > 1:
            lines = [f"{len(failed)} of {len(points)} runs failed:", *(f"  {line}" for line in lines)]
        raise RunError("\n".join(lines)) from failed[0][1]


def _execute_point(
    point: Point,
    results: Path,
    command: Sequence[str],
    callbacks: Sequence[Callbacks],
    bar: ProgressBar,
    tracking: TrackingProcess,
    *,
    resume: bool,
) -> HpcpsError | None:
    """Execute one run; return its error if it failed."""

    def on_stop(count: int) -> None:
        if count > 1:
            raise KeyboardInterrupt
        bar.note("hpcps: stopping at the next checkpoint; a second signal stops at once")

    bar.begin(point)
    reporter = Reporter(point.run.identified(point.run_id), point.label, callbacks, bar.update)
    if resume:
        reporter.resume(directory_of(point, results))
    state = "stopped"
    try:
        directory_of(point, results).checkpoints.leave_memory()  # what a killed `hpcps run` has left there
        with stops_of(on_stop) as stops:
            while True:
                point = as_requested(point, results, bar.note)
                done = execute_point(point, results, command, lambda: bool(stops), tracking, observer=reporter)
                if done or stops:
                    break
        state = "done" if done else "stopped at a checkpoint"
    except HpcpsError as error:
        state = "failed"
        if isinstance(error.__cause__, CallbackError):
            raise error.__cause__ from error.__cause__.__cause__
        return error
    finally:
        bar.end(state)
    if stops:
        if stops[0] != signal.SIGINT:
            signal.raise_signal(stops[0])
        where = f"run {point.run_id} ({point.label}) is {state}"
        raise KeyboardInterrupt(f"{where}; run the experiment again to go on")
    return None


@contextmanager
def _settings_kept(points: Sequence[Point]) -> Iterator[None]:
    """Put back the settings of torch that runs make."""
    if any(point.run.model.backend == "torch" for point in points):
        from hpcps.training.pytorch.device import settings_kept

        with settings_kept():
            yield
    else:
        yield


def search(
    loaded: LoadedExperiment,
    reload: Callable[[], LoadedExperiment],
    overrides: Sequence[str],
    results: Path,
    *,
    progress: bool | None,
) -> None:
    """Execute the runs of a search that are not done in this process, and write the chosen values.

    Args:
        loaded: the experiment.
        reload: reads it again, with what its search has proposed since.
        overrides: the values of keys that were set.
        results: the folder of all results.
        progress: as for `execute`.

    Raises:
        SpecError: there is nothing to search.
        RunError: there is no configuration to choose for some points.
    """
    from hpcps.execution.sweep.search import conclude, execute_search

    groups = loaded.to_search()
    name = groups[0].name

    def execute_rung(rung: str, points: Sequence[Point], begun: Sequence[Point]) -> bool:
        with suppress(RunError):  # runs that failed do not win
            execute(replace(loaded, name=name, points=tuple(begun)), points, overrides, results, progress=progress)
        return True

    searched = execute_search(groups, lambda: reload().to_search(), results / name, execute_rung)
    assert searched is not None
    conclude(*searched, loaded.path, overrides)


def launch(
    command: str, file: Path, only: Sequence[str], overrides: Sequence[str], results: Path, *, progress: bool | None
) -> None:
    """Execute the runs of an experiment file with `hpcps run` or `search`, which starts the processes of each.

    Args:
        command: `run` or `search`.
        file: the experiment file.
        only: the selectors of points.
        overrides: the values of keys that were set.
        results: the folder of all results.
        progress: whether to show what the command prints; None: if a person types the code.

    Raises:
        RunError: the command failed; the message is what it said.
        LaunchError: there is no such file.
    """
    if not file.is_file():
        raise LaunchError(
            f"in_process=False starts `hpcps {command}`, which needs an experiment file: write {file} to one"
        )
    words = [sys.executable, "-m", "hpcps", command, str(file), "--results", str(results)]
    words += [word for override in overrides for word in ("--set", override)]
    words += [word for selector in only for word in ("--only", selector)]
    shown = is_interactive() if progress is None else progress
    said = []
    # In its own session: Ctrl-C reaches only this process, which forwards it, as it must from a notebook.
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                if shown:
                    print(line, end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
    if process.returncode:
        raise RunError("".join(said).strip() or f"`{' '.join(words)}` ended with status {process.returncode}")

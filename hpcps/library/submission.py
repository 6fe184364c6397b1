"""Runs as jobs of a batch system, or as processes of this machine: `hpcps.submit` and the handles that it returns."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcps.errors import LaunchError, RunError
from hpcps.execution.sweep.claims import is_done
from hpcps.launch.executors import EXECUTORS, Executor, JobRequest, successor_in
from hpcps.library.content import named
from hpcps.library.experiment import Experiment, load
from hpcps.records.files import writing
from hpcps.records.locate import absolute
from hpcps.records.run_directory import RunDirectory

State = Literal["pending", "running", "done", "failed", "cancelled"]

_INTERVAL = 2.0
"""Seconds between two questions to the batch system."""
_SILENCE = 600.0
"""Seconds after which a job counts as ended if the batch system does not answer."""


@dataclass
class SubmittedRun:
    """A run that was submitted as a job.

    Attributes:
        run_id: the id of the run.
        label: its label.
        job: the id of its job; that of the last one if the run continued in further jobs.
        executor: `pbs`, `slurm` or `local`.
    """

    run_id: str
    label: str
    job: str
    executor: str
    _experiment: Experiment = field(repr=False)
    _request: JobRequest = field(repr=False)
    _resubmissions: int = field(repr=False)
    _logs: list[Path] = field(repr=False)
    _cancelled: bool = field(default=False, repr=False)
    _last: State = field(default="pending", repr=False)
    _answered: float = field(default_factory=time.monotonic, repr=False)

    @property
    def state(self) -> State:
        """`pending`, `running`, `done`, `failed` or `cancelled`.

        If the batch system has taken the hosts of the job away (preemption, or a host that failed), the run is
        submitted again here: it goes on from its last checkpoint. While the batch system does not answer, the state is
        the last one that it told.

        Raises:
            LaunchError: the job cannot be submitted again.
        """
        if is_done(self._experiment.points[0], self._experiment.results):
            return "done"
        status = self._executor.status(self.job)
        if status == "silent" and time.monotonic() - self._answered < _SILENCE:
            return self._last
        self._answered = time.monotonic()
        if status in ("pending", "running"):
            self._last = status
            return status
        # The job may have ended its run, or have named its successor, after the questions above.
        if is_done(self._experiment.points[0], self._experiment.results):
            return "done"
        if self._follow():
            if self._cancelled:
                self._executor.cancel(self.job)
            return self.state
        if self._cancelled:
            return "cancelled"
        if status == "preempted" and self._resubmissions > 0:
            self._resubmissions -= 1
            self.job = self._executor.submit(self._request)
            self._logs.append(self._request.log)
            self._last = "pending"
            return "pending"
        return "failed"

    def _follow(self) -> bool:
        """Take the last job that continues this one; return whether there is one."""
        before = self.job
        while (successor := successor_in(_read(self._logs[-1]), self.job)) is not None:
            self.job = successor
            self._logs.append(self._executor.log_of(successor) or self._request.log)
        return self.job != before

    @property
    def _executor(self) -> Executor:
        return EXECUTORS[self.executor]()

    def result(self, timeout: float | None = None) -> Experiment:
        """Wait until the run is done; return the experiment with this run, for `table()` and `final_model(run_id)`.

        Args:
            timeout: seconds after which to give up waiting, which does not end the job; None: no limit.

        Raises:
            TimeoutError: the run is not done within this time.
            RunError: it failed, or was cancelled; or the timeout is no number.
        """
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise RunError(f"timeout: expects a number of seconds or None, got {timeout!r}")
        deadline = None if timeout is None else time.monotonic() + timeout
        while (state := self.state) in ("pending", "running"):
            left = _INTERVAL if deadline is None else min(_INTERVAL, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"run {self.run_id} ({self.label}) is {state} after {timeout:g} s (job {self.job})")
            time.sleep(left)
        if state == "done":
            return self._experiment
        raise RunError(f"run {self.run_id} ({self.label}): job {self.job} of {self.executor}: {self._why(state)}")

    def _why(self, state: State) -> str:
        if state == "cancelled":
            return "it was cancelled"
        point = self._experiment.points[0]
        failures = RunDirectory(self._experiment.results / point.run.name / "runs" / self.run_id).failures
        if failures:
            return str(failures[0])
        last = [line for line in self.logs().splitlines() if line.strip()][-1:]
        return f"it ended before the run was done{f': {last[0][:500]}' if last else ' and printed nothing'}"

    def logs(self) -> str:
        """Return what the jobs of the run have printed so far; PBS may show it only when a job has ended."""
        return "".join(map(_read, dict.fromkeys(self._logs)))

    def cancel(self) -> None:
        """End the job, or remove it from the queue; a run that is done stays done."""
        self._cancelled = True
        if self.job:
            self._follow()
            self._executor.cancel(self.job)


def submit(
    experiment: str | Path,
    *,
    executor: str = "local",
    set: Mapping[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
    results: str | Path | None = None,
    options: Sequence[str] | None = None,
    resubmissions: int = 3,
) -> list[SubmittedRun]:
    """Submit each run of an experiment file that is not done as a job; return a handle for each run, at once.

    Args:
        experiment: the file. The jobs read it when they start, so it must stay as it is until then.
        executor: `pbs` or `slurm`, with the job scripts and the site profile of `launcher/`; or `local`: processes of
            this machine, one after another.
        set: values of keys that override the file.
        only: selects points, as `hpcps run --only` does.
        results: the folder of all results; by default `$HPCPS_RESULTS`, else `results`. Every host must see it.
        options: options of `qsub` or `sbatch`, such as `["-l", "select=4:ncpus=8", "-l", "walltime=4:00:00"]`. By
            default a job has a host for each process of the run, with as many cores as the process has threads.
        resubmissions: how often a job that is preempted, or loses a host, is submitted again.

    Returns:
        A handle for each selected run, also for those that are done.

    Raises:
        SpecError: the experiment has mistakes.
        LaunchError: a job cannot be submitted; those before it are cancelled.
    """
    if executor not in [*EXECUTORS]:
        raise LaunchError(f"executor: there is no {executor!r}: choose one of {', '.join(EXECUTORS)}")
    if executor == "local" and options is not None:
        raise LaunchError("options: they are for qsub and sbatch; executor local has none")
    if options is not None and not _is_words(options):
        raise LaunchError('options: expects a list of texts, a word each, such as ["-l", "walltime=4:00:00"]')
    if not isinstance(experiment, str | Path):
        raise LaunchError(f"submit: expects an experiment file, which the jobs read; got {named(experiment)}")
    if not Path(experiment).is_file():
        what = "is no file" if Path(experiment).exists() else "does not exist"
        raise LaunchError(f"submit: {experiment} {what}: give the path of an experiment file")
    if type(resubmissions) is not int or resubmissions < 0:
        raise LaunchError(f"resubmissions: expects a whole number from 0 on, got {resubmissions!r}")
    whole = load(absolute(Path(experiment)), set=set, only=only, results=results)
    whole._loaded.check_searched()
    folder = absolute(whole.results) / whole.name / "jobs"
    handles: list[SubmittedRun] = []
    for point in whole.points:
        one = load(absolute(Path(experiment)), set=set, only=str(point.index), results=absolute(whole.results))
        log = folder / f"{point.run_id}.log"
        request = JobRequest(
            _words(one, folder / f"{point.run_id}.args"),
            hosts=1 if point.run.transport.in_process else point.run.processes,
            cores=point.run.train.threads,
            options=None if options is None else tuple(options),
            log=log,
        )
        done = is_done(point, whole.results)
        try:
            job = "" if done else EXECUTORS[executor]().submit(request)
        except LaunchError:
            for handle in handles:
                handle.cancel()
            raise
        handles.append(SubmittedRun(point.run_id, point.label, job, executor, one, request, resubmissions, [log]))
    return handles


def _words(one: Experiment, arguments: Path) -> tuple[str, ...]:
    """Return the command that executes a run; a file has its arguments, which may have blanks and quotes."""
    words = [str(one._content.file), "--results", str(one.results), "--only", one.points[0].run_id]
    words += [word for override in one._set for word in ("--set", override)]
    with writing(arguments):
        arguments.parent.mkdir(parents=True, exist_ok=True)
        arguments.write_text(shlex.join(words) + "\n", encoding="utf-8")
    return ("run", f"@{arguments}")


def _is_words(options: object) -> bool:
    return isinstance(options, list | tuple) and all(isinstance(word, str) for word in options)


def _read(log: Path) -> str:
    with suppress(OSError):
        return log.read_text(encoding="utf-8", errors="replace")
    return ""

"""Run the curves of the paper's figures, the most telling ones first, until a time is over; called again, go on.

    make figures HOURS=8 ONLY=fig3,sgd_baseline JOBS=2 RESULTS=results
    make gpu-figures HOURS=0.15 JOBS=1 ARCHIVE=build/gpu-figures

`python benchmarks/figures.py --hours HOURS [--epochs N] [--only NAME,…] [--jobs N] [--results FOLDER]`.
Every point is an `hpcps run` of its own, at nice 19: with a GPU a launch of all its processes, without one a single
process. A point that the time or a signal ends stops at a checkpoint. Points that another process executes are left to
it. At the end the figures are drawn.

With a folder of archives, results are carried from one machine to another: the archives of an earlier call are unpacked
first, runs that are done in `results/published` are not executed again, the runs join these published copies, and the
copies and the unfinished runs with their last checkpoint are packed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from archive import pack, unpack
from mps import shared_mps
from processes import ROOT

from hpcps.errors import HpcpsError
from hpcps.execution.sweep.claims import directory_of, is_done
from hpcps.execution.sweep.slots import divide
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.guard import tie_to_parent
from hpcps.launch.limits import Cores, bind, own_cores
from hpcps.launch.stop import stops_of
from hpcps.records.forecast import duration, time_left
from hpcps.records.locate import PUBLISHED, run_folder
from hpcps.records.status import RunStatus, SweepProgress
from hpcps.records.table import read_table
from hpcps.spec.load import Point, load_experiment, select

SYNCHRONOUS = ("fig3_sync_single_validator", "fig4_sync_two_validators")
ASYNCHRONOUS = ("fig5_async_single_validator", "fig6_async_two_validators")
STAGES = (
    # Each figure's attacked panels under its strongest attack: `negative` makes plain averaging diverge, and in
    # asynchronous training, where its scale is 2, `random` costs most.
    (SYNCHRONOUS[0], "attack=negative"),
    (ASYNCHRONOUS[0], "attack=random"),
    ("sgd_baseline", ""),
    (SYNCHRONOUS[1], "attack=negative"),
    (ASYNCHRONOUS[1], "attack=random"),
    ("fig7_sync_tune_rho", ""),
    *(
        (figure, f"attack={attack}")
        for attack in ("none", "random", "randomscale", "negative")
        for figure in (SYNCHRONOUS[0], ASYNCHRONOUS[0], SYNCHRONOUS[1], ASYNCHRONOUS[1])
    ),
)
"""Experiments and selectors, in the order of execution. Within a stage the last rule of a file, the paper's own, is
first. A point of an earlier stage is not executed again."""
SEEDS = (1, 2, 3)
"""All points run with the first seed, then all with the second one, and so on."""
MARGIN = {"cpu": 120.0, "cuda": 20.0}
"""Seconds before the end at which runs are told to stop at their next checkpoint, at most a tenth of the time."""
AFTERWARDS = 45.0
"""Seconds for publishing and packing, at most a tenth of the time."""
LOOK_EVERY, SAY_EVERY = 0.5, 600.0
"""Seconds between two looks at the processes, and between two reports of their progress."""


@dataclass(frozen=True)
class Task:
    """A point to execute.

    Attributes:
        file: its experiment file.
        settings: what `--set` changes.
        point: the point.
        results: the folder of all results.
    """

    file: Path
    settings: Sequence[str]
    point: Point
    results: Path

    @property
    def done(self) -> bool:
        """Whether its run is done in the folder of results."""
        return is_done(self.point, self.results)

    @property
    def free(self) -> bool:
        """Whether no process executes it."""
        lock = directory_of(self.point, self.results).claim()
        if lock is not None:
            lock.close()
        return lock is not None

    @property
    def log(self) -> Path:
        """The file for the output of its `hpcps run`."""
        return self.results / self.point.run.name / "launch" / f"{self.point.run_id}.log"

    def start(self, cores: Cores, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start its `hpcps run`, which stops at a checkpoint if this program is killed."""
        words = [sys.executable, "-m", "hpcps", "run", str(self.file), "--only", str(self.point.index)]
        words += [word for setting in self.settings for word in ("--set", setting)]

        def prepare() -> None:
            os.setsid()  # Ctrl-C reaches only this program, which passes it on
            lower_session()
            tie_to_parent(signal.SIGTERM)
            bind(cores)

        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*words, "--results", str(self.results)],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=prepare,
            )

    def __str__(self) -> str:
        return f"{self.point.run.name}, {self.point.label}, seed {self.point.run.seed}"


def lower_session() -> None:
    """Give the session of this process the niceness of this process, where Linux schedules by sessions.

    With the kernel's automatic groups, which most distributions enable, all sessions get equal shares of a core, and
    the niceness of a process counts only within its session (see sched(7)).
    """
    for _ in range(20):
        try:
            Path("/proc/self/autogroup").write_text(str(os.nice(0)))
        except BlockingIOError:
            time.sleep(0.1)  # the kernel takes one change from all ordinary users in this time
            continue
        except OSError:
            pass  # it does not schedule by sessions
        return


def tasks_of(
    stages: Sequence[tuple[str, str]],
    seeds: Sequence[int],
    experiments: Path,
    results: Path,
    settings_of: Callable[[Path, int], list[str]],
) -> list[Task]:
    """Return the points of all stages in the order of execution, each once.

    Args:
        stages: experiments and selectors.
        seeds: the seeds, each for all stages.
        experiments: the folder of experiment files.
        results: the folder of all results.
        settings_of: returns what `--set` changes in an experiment file for a seed.
    """
    tasks: dict[str, Task] = {}
    for seed in seeds:
        loaded = {}
        for name in dict.fromkeys(name for name, _ in stages):
            file = experiments / f"{name}.toml"
            settings = settings_of(file, seed)
            loaded[name] = file, settings, load_experiment(file, settings).points
        for name, selector in stages:
            file, settings, points = loaded[name]
            for point in reversed(select(points, [selector] if selector else [])):
                tasks.setdefault(f"{name}/{point.run_id}", Task(file, settings, point, results))
    return list(tasks.values())


def settings_for(file: Path, seed: int, *, epochs: int | None, further: Sequence[str]) -> list[str]:
    """Return what `--set` changes: the epochs, with decays of the rates at the same shares of the run, and the seed.

    Args:
        file: the experiment file.
        seed: the seed.
        epochs: the number of epochs; None for that of the file.
        further: other settings.
    """
    run = load_experiment(file, further).points[0].run
    settings = []
    if epochs is not None and epochs != run.train.epochs:
        decays = [round(epoch * epochs / run.train.epochs) for epoch in run.train.lr_decay.epochs]
        settings += [f"train.epochs={epochs}", f"train.lr_decay.epochs=[{','.join(map(str, decays))}]"]
    return [*settings, *further, *([f"seed={seed}"] if seed != run.seed else [])]


class Queue:
    """Executes tasks in their order, several at a time, until a time is over."""

    def __init__(self, tasks: Sequence[Task], shares: Sequence[Cores], variables: dict[str, str], until: float) -> None:
        """Create the queue.

        Args:
            tasks: the tasks that are left.
            shares: the cores of each task that runs at a time; no cores mean all.
            variables: environment variables of the tasks.
            until: time on the monotonic clock at which the tasks are to stop.
        """
        self._tasks = tasks
        self._left = list(tasks)
        self._shares = shares
        self._variables = variables
        self._until = until
        self._running: dict[int, tuple[Task, subprocess.Popen[bytes]]] = {}
        self._progress = SweepProgress([run_folder(task.point, task.results) for task in tasks])
        self._said = -SAY_EVERY
        self.failed: list[Task] = []

    def run(self) -> int:
        """Execute the tasks; return 0, 128 + the number of the signal that stopped them, or the status of a refusal."""
        status, passed, told = 0, 0, False
        with stops_of() as stops:
            while self._running or (self._left and not status and not told):
                if not told and time.monotonic() > self._until:
                    told = True
                    say("the time is nearly over: stopping at the next checkpoints")
                    self._stop(signal.SIGTERM)
                if not status and not told:
                    self._start()
                time.sleep(LOOK_EVERY)
                status = self._collect(expected=told or bool(stops)) or status
                for number in stops[passed:]:
                    self._stop(number)
                    status = 128 + stops[0]
                passed = len(stops)
                if time.monotonic() - self._said > SAY_EVERY:
                    self.report()
        return status

    def report(self) -> None:
        """Print how far the queue is."""
        self._said = time.monotonic()
        runs = [
            run.planned(task.point.label, task.point.run.model_dump(mode="json"))
            for run, task in zip(self._progress.poll(), self._tasks, strict=True)
        ]
        states = Counter("done" if run.state == "done" else "left" for run in runs)
        running = {run_folder(task.point, task.results) for task, _ in self._running.values()}
        # The estimate assumes that as many run at a time as now: those of other processes do not count.
        mine = [run if run.path in running or run.state == "done" else replace(run, state="stopped") for run in runs]
        rest = duration(max(0.0, self._until - time.monotonic()))
        forecast = time_left(mine)
        say(
            f"{states['done']} points are done, {len(running)} running, {states['left'] - len(running)} left; "
            f"{rest} of this call" + (f"; {forecast}" if forecast else "")
        )
        for run, task in zip(runs, self._tasks, strict=True):
            if run.path in running:
                print(f"       {task}: {position(run)}", flush=True)

    def _start(self) -> None:
        """Start tasks while there are free places; a task that another process executes stays in the queue."""
        for place, cores in enumerate(self._shares):
            if place in self._running:
                continue
            for task in list(self._left):
                if task.done:
                    self._left.remove(task)
                elif task.free:
                    self._left.remove(task)
                    say(f"start: {task}")
                    self._running[place] = task, task.start(cores, self._variables)
                    self._said = min(self._said, time.monotonic() - SAY_EVERY + 60)
                    break

    def _collect(self, *, expected: bool) -> int:
        """Remove the tasks that have ended; return the status of one that was refused, which others would be too."""
        for place, (task, process) in list(self._running.items()):
            if (status := process.poll()) is None:
                continue
            del self._running[place]
            if status == ExitStatus.DONE:
                say(f"done: {task}")
            elif not expected:
                last = task.log.read_text(errors="replace").strip().splitlines()[-3:]
                say("\n       ".join([f"failed with status {status}: {task}; see {task.log}", *last]))
                self.failed.append(task)
                if status == ExitStatus.REFUSED:
                    return status
        return 0

    def _stop(self, number: int) -> None:
        for _, process in self._running.values():
            process.send_signal(number)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M')}  {text}", flush=True)


def position(run: RunStatus) -> str:
    """Describe how far a run is."""
    accuracy = "" if run.accuracy is None else f", accuracy {100 * run.accuracy:.1f} %"
    return f"epoch {run.epoch:.1f} of {run.epochs}{accuracy}"


def done_in(table: Path) -> set[str]:
    """Return the ids of the runs that are done in a published copy."""
    if not table.exists():
        return set()
    frame = read_table(table)
    return set(frame["run_id"][frame["status"] == "done"].astype(str))


def groups(tasks: Sequence[Task], results: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield what to pack: the published copies, and each unfinished run in the order of the queue."""
    names = dict.fromkeys(task.point.run.name for task in tasks)
    copies = [copy for name in names if (copy := results / PUBLISHED / name).exists()]
    if copies:
        yield "published", copies
    for task in tasks:
        folder = run_folder(task.point, results)
        moments = sorted((folder / "checkpoints").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
        if moments and not task.done:
            rest = [path for path in folder.iterdir() if path.name != "checkpoints"]
            yield f"run-{folder.name}", [*rest, moments[-1].parent]


def show(files: Sequence[Path], results: Path, *, publish: bool) -> None:
    """Publish, or collect and draw, the experiments that have records."""
    for file in files:
        if any((results / file.stem / "runs").glob("*/records/*")):
            commands = [("publish", "--add")] if publish else [("collect",), ("plot",)]
            for command, *options in commands:
                words = [sys.executable, "-m", "hpcps", command, str(file), *options, "--results", str(results)]
                subprocess.run(words, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, required=True, help="length of this call, packing included")
    parser.add_argument("--epochs", type=int, help="epochs of a run; default: those of the files")
    parser.add_argument("--only", default="", help="experiments, by the beginnings of their names, such as fig3,sgd")
    parser.add_argument("--jobs", type=int, help="points at a time; default: the number of cores, or 1 with a GPU")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="default: results/ of this clone")
    parser.add_argument("--archive", type=Path, help="the folder of archives; default: nothing is published and packed")
    parser.add_argument("--experiments", type=Path, default=ROOT / "experiments", help="default: those of this clone")
    parser.add_argument("--stages", nargs="*", metavar="NAME[:SELECTOR]", help="other stages than those of the paper")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS, help="default: 1 2 3")
    parser.add_argument("--nice", type=int, default=19, help="niceness of all processes (default: 19)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `hpcps run`")
    args = parser.parse_args()
    began = time.monotonic()
    seconds, results = 3600 * args.hours, args.results.absolute()
    os.nice(max(0, args.nice - os.nice(0)))
    given = [stage.partition(":") for stage in args.stages or ()]
    stages = [(name, selector) for name, _, selector in given] or list(STAGES)
    stages = [stage for stage in stages if stage[0].startswith(tuple(args.only.split(",")))]
    if not stages:
        names = ", ".join(sorted({name for name, _ in STAGES}))
        parser.error(f"--only {args.only}: the name of no experiment begins so; there are {names}")
    gpu = torch.cuda.is_available() and "train.device=cpu" not in args.set
    every = max(1, (args.epochs or 0) // 40)
    further = [*([] if gpu else ["transport.kind=inproc"]), f"checkpoint.every={every}"]
    further += ["train.stop_when_diverged=true", *args.set]
    if args.archive and (found := unpack(args.archive, results)):
        print(f"unpacked {', '.join(found)}", flush=True)

    settings_of = partial(settings_for, epochs=args.epochs, further=further)
    try:
        tasks = tasks_of(stages, args.seeds, args.experiments, results, settings_of)
        jobs = args.jobs or (1 if gpu else len(own_cores()))
        shares = divide(own_cores(), jobs, [task.point.run for task in tasks]) if gpu and jobs > 1 else ((),) * jobs
    except HpcpsError as error:
        parser.error(str(error))
    names = dict.fromkeys(task.file.stem for task in tasks)
    published = {name: done_in(results / PUBLISHED / name / "table.parquet") for name in names if args.archive}

    def open_tasks() -> list[Task]:
        return [task for task in tasks if not task.done and task.point.run_id not in published.get(task.file.stem, ())]

    short = min(MARGIN["cuda" if gpu else "cpu"], seconds / 10) + (min(AFTERWARDS, seconds / 10) if args.archive else 0)
    with shared_mps(jobs if gpu else 1) as variables:
        queue = Queue(open_tasks(), shares, variables, began + seconds - short)
        status = queue.run()
    show(list(dict.fromkeys(task.file for task in tasks)), results, publish=bool(args.archive))
    if args.archive:
        left_out = pack(list(groups(open_tasks(), results)), results, args.archive)
        print(f"packed into {args.archive}" + (f"; no room for {', '.join(left_out)}" if left_out else ""))
    left = open_tasks()
    rest = Counter((task.file.stem, task.point.run.seed) for task in left)
    for (name, seed), number in Counter((task.file.stem, task.point.run.seed) for task in tasks).items():
        print(f"{name}, seed {seed}: {number - rest[name, seed]} of {number} points are done")
    print(f"{len(left)} points are left; this call took {duration(time.monotonic() - began)}", flush=True)
    for task in queue.failed:
        print(f"failed: {task}")
    if queue.failed:
        return ExitStatus.FAILED
    return status or (ExitStatus.SUSPENDED if left else ExitStatus.DONE)


if __name__ == "__main__":
    sys.exit(main())

"""Run the curves of the paper's figures, the most telling ones first, until a time is over; called again, go on.

    make figures HOURS=8 ONLY=fig3,sgd_baseline JOBS=2 RESULTS=results
    make gpu-figures HOURS=0.15 JOBS=1 ARCHIVE=build/gpu-figures

`python benchmarks/figures.py --hours HOURS [@FILE] [--epochs N] [--only NAME,…] [--jobs N] [--results FOLDER]`.
The arguments in @FILE, such as experiments/reduced.args, change keys of all experiments.
An `hpcps run` at nice 19 executes the points of each stage: with a GPU as launches of all their processes, without one
each as a single process. A point that the time or a signal ends stops at a checkpoint. At the end it draws the figures.

With a folder of archives, results are carried from one machine to another: the archives of an earlier call are unpacked
first, runs that are done in `results/published` are not executed again, the runs join these published copies, and the
copies and the unfinished runs with their last checkpoint are packed.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from archive import pack, unpack
from mps import shared_mps
from processes import ROOT

from hpcps.cli.arguments import ArgumentFileParser, count
from hpcps.errors import HpcpsError
from hpcps.execution.sweep.claims import is_done
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.guard import tie_to_parent
from hpcps.launch.limits import own_cores
from hpcps.launch.stop import stops_of
from hpcps.records.forecast import duration, work_left
from hpcps.records.locate import PUBLISHED, run_folder
from hpcps.records.status import RunStatus, SweepProgress
from hpcps.records.table import read_table
from hpcps.spec.load import load_experiment, select
from hpcps.spec.point import Point

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
"""Experiments and selectors, in the order of execution. A point of an earlier stage is not executed again."""
SEEDS = (1, 2, 3)
"""All points run with the first seed, then all with the second one, and so on."""
MARGIN = {"cpu": 120.0, "cuda": 20.0}
"""Seconds before the end at which runs are told to stop at their next checkpoint, at most a tenth of the time."""
AFTERWARDS = 45.0
"""Seconds for publishing and packing, at most a tenth of the time."""
LOOK_EVERY = 0.5
"""Seconds between two looks at the process."""


@dataclass(frozen=True)
class Stage:
    """Points of one experiment that an `hpcps run` executes.

    Attributes:
        file: its experiment file.
        settings: what `--set` changes.
        points: the points.
    """

    file: Path
    settings: Sequence[str]
    points: Sequence[Point]

    def execute(self, options: Sequence[str], variables: dict[str, str], stops: list[signal.Signals]) -> int:
        """Execute the points with an `hpcps run`, which stops at a checkpoint if this program is killed.

        Args:
            options: further options.
            variables: environment variables of the processes.
            stops: the signals that this program has received; new ones are passed on.

        Returns:
            The exit status.
        """
        words = [
            sys.executable,
            "-m",
            "hpcps",
            "run",
            str(self.file),
            "--only",
            ",".join(p.run_id for p in self.points),
        ]
        words += [word for setting in self.settings for word in ("--set", setting)]

        def prepare() -> None:
            os.setsid()  # Ctrl-C reaches only this program, which passes it on
            lower_session()
            tie_to_parent(signal.SIGTERM)

        environment = {**os.environ, **variables}
        process = subprocess.Popen([*words, *options], env=environment, stdin=subprocess.DEVNULL, preexec_fn=prepare)
        passed = len(stops)
        while process.poll() is None:
            time.sleep(LOOK_EVERY)
            for number in stops[passed:]:
                process.send_signal(number)
            passed = len(stops)
        return process.returncode

    def __str__(self) -> str:
        labels = ", ".join(point.label for point in self.points)
        return f"{self.points[0].run.name}, seed {self.points[0].run.seed}: {labels}"


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


def stages_of(
    names: Sequence[tuple[str, str]],
    seeds: Sequence[int],
    experiments: Path,
    settings_of: Callable[[Path, int], list[str]],
) -> list[Stage]:
    """Return the stages in the order of execution, each point once.

    Args:
        names: experiments and selectors.
        seeds: the seeds, each for all stages.
        experiments: the folder of experiment files.
        settings_of: returns what `--set` changes in an experiment file for a seed.
    """
    stages, known = [], set()
    for seed in seeds:
        loaded = {}
        for name in dict.fromkeys(name for name, _ in names):
            file = experiments / f"{name}.toml"
            settings = settings_of(file, seed)
            loaded[name] = file, settings, load_experiment(file, settings).points
        for name, selector in names:
            file, settings, points = loaded[name]
            chosen = select(points, [selector] if selector else [])
            if new := [point for point in chosen if (name, point.run_id) not in known]:
                known |= {(name, point.run_id) for point in new}
                stages.append(Stage(file, settings, new))
    return stages


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
    return [*further, *settings, *([f"seed={seed}"] if seed != run.seed else [])]


def execute(
    stages: Sequence[Stage], options: Sequence[str], variables: dict[str, str], until: float, margin: float
) -> int:
    """Execute stages, one after another; return the exit status.

    Args:
        stages: the stages.
        options: further options of `hpcps run`.
        variables: environment variables of the processes.
        until: time on the monotonic clock at which all shall have stopped.
        margin: seconds before that at which runs are to stop at a checkpoint.
    """
    failed = False
    with stops_of() as stops:
        for stage in stages:
            left = until - time.monotonic()
            if left <= margin:
                return ExitStatus.SUSPENDED
            say(f"start: {stage}")
            limit = ["--walltime", str(int(left)), "--set", f"checkpoint.margin={margin:g}"]
            limit += ["--set", "checkpoint.successors=1"]  # the next call
            status = stage.execute([*options, *limit], variables, stops)
            if stops:
                return 128 + stops[0]
            if status in (ExitStatus.SUSPENDED, ExitStatus.REFUSED):
                return status  # another stage would be refused, too
            failed = failed or bool(status)
    return ExitStatus.FAILED if failed else ExitStatus.DONE


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M')}  {text}", flush=True)


def done_in(table: Path) -> set[str]:
    """Return the ids of the runs that are done in a published copy."""
    if not table.exists():
        return set()
    frame = read_table(table)
    return set(frame["run_id"][frame["status"] == "done"].astype(str))


def groups(stages: Sequence[Stage], results: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield what to pack: the published copies, and each unfinished run in the order of the stages."""
    points = [point for stage in stages for point in stage.points]
    copies = [results / PUBLISHED / name for name in dict.fromkeys(point.run.name for point in points)]
    if there := [copy for copy in copies if copy.exists()]:
        yield "published", there
    for point in points:
        folder = run_folder(point, results)
        moments = sorted((folder / "checkpoints").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
        if moments and not is_done(point, results):
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


def tell(stages: Sequence[Stage], left: Sequence[Stage], results: Path, jobs: int) -> None:
    """Print how much of each experiment is done with each seed, and how long the rest takes.

    Args:
        stages: all stages.
        left: the stages with the points that are not done.
        results: the folder of results.
        jobs: the points that run at a time.
    """
    every = _statuses(stages, results)
    rests = _statuses(left, results)
    known = [run for runs in every.values() for run in runs]
    for name, runs in every.items():
        rest = rests.get(name, [])
        work, time_left = work_left(rest, known), ""
        if work is not None:
            paced = len(rest) - work.others
            time_left = f"; {replace(work, seconds=work.seconds / jobs)}" if paced else "; no pace is known yet"
        print(f"{name}: {len(runs) - len(rest)} of {len(runs)} points are done{time_left}", flush=True)


def _statuses(stages: Sequence[Stage], results: Path) -> dict[str, list[RunStatus]]:
    found: dict[str, list[RunStatus]] = {}
    for stage in stages:
        points = stage.points
        runs = SweepProgress([run_folder(point, results) for point in points]).poll()
        found.setdefault(f"{points[0].run.name}, seed {points[0].run.seed}", []).extend(
            run.planned(point.label, point.run.model_dump()) for run, point in zip(runs, points, strict=True)
        )
    return found


def _hours(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expects a number of hours above 0, got {text!r}")


def main() -> int:
    parser = ArgumentFileParser(description=__doc__.splitlines()[0], fromfile_prefix_chars="@")
    parser.add_argument("--hours", type=_hours, required=True, help="length of this call, packing included")
    parser.add_argument("--epochs", type=int, help="epochs of a run; default: those of the files")
    parser.add_argument("--only", default="", help="experiments, by the beginnings of their names, such as fig3,sgd")
    parser.add_argument("--jobs", type=count(1), help="points at a time; default: the number of cores, or 1 with a GPU")
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
    names = [(name, selector) for name, _, selector in given] or list(STAGES)
    beginnings = [word.strip() for word in args.only.split(",") if word.strip()] or [""]
    for word in beginnings:
        if not any(name.startswith(word) for name, _ in names):
            known = ", ".join(sorted({name for name, _ in names}))
            parser.error(f"--only {word}: the name of no experiment begins so; there are {known}")
    names = [stage for stage in names if stage[0].startswith(tuple(beginnings))]
    gpu = "train.device=cpu" not in args.set and has_gpu()
    every = max(1, (args.epochs or 0) // 40)
    further = [*([] if gpu else ["transport.kind=inproc"]), f"checkpoint.every={every}"]
    further += ["train.stop_when_diverged=true", *args.set]
    if args.archive and (found := unpack(args.archive, results)):
        print(f"unpacked {', '.join(found)}", flush=True)
    settings_of = partial(settings_for, epochs=args.epochs, further=further)
    try:
        stages = stages_of(names, args.seeds, args.experiments, settings_of)
    except HpcpsError as error:
        parser.error(str(error))
    files = list(dict.fromkeys(stage.file for stage in stages))
    published = {file: done_in(results / PUBLISHED / file.stem / "table.parquet") for file in files if args.archive}

    def open_stages() -> list[Stage]:
        left = [
            replace(stage, points=[
                point for point in stage.points
                if point.run_id not in published.get(stage.file, ()) and not is_done(point, results)
            ])
            for stage in stages
        ]  # fmt: skip
        return [stage for stage in left if stage.points]

    jobs = args.jobs or (1 if gpu else len(own_cores()))
    margin = min(MARGIN["cuda" if gpu else "cpu"], seconds / 10)
    until = began + seconds - (min(AFTERWARDS, seconds / 10) if args.archive else 0)
    tell(stages, open_stages(), results, jobs)
    with shared_mps(jobs if gpu else 1) as variables:
        options = ["--jobs", str(jobs), "--results", str(results)]
        status = execute(open_stages(), options, variables, until, margin)
    show(files, results, publish=bool(args.archive))
    left = open_stages()
    if args.archive:
        left_out = pack(list(groups(left, results)), results, args.archive)
        print(f"packed into {args.archive}" + (f"; no room for {', '.join(left_out)}" if left_out else ""))
    tell(stages, left, results, jobs)
    points = sum(len(stage.points) for stage in left)
    print(f"{points} points are left; this call took {duration(time.monotonic() - began)}", flush=True)
    return status


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())

"""Run as many full-length curves of the paper's figures on a GPU as a time limit allows; called again, go on.

    make gpu-figures LIMIT=540 JOBS=1 ARCHIVE=build/gpu-figures

`python benchmarks/gpu_figures.py --limit SECONDS [--jobs N] [--archive FOLDER] [--results FOLDER] [--set KEY=VALUE]`.
The runs are executed in the order of `STAGES`: those that say most come first. A run that the time ends stops at a
checkpoint. Then each experiment is published: its runs join the committed copy in `results/published`, and runs that
are done in that copy are not executed again. Last, what another machine needs to go on is packed into the folder of
archives: the published copies, and the unfinished runs with their last checkpoint. The archives of an earlier call are
unpacked first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from archive import pack, unpack
from processes import ROOT

from hpcps.execution.sweep.claims import is_done
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.prepare import run_folder
from hpcps.records.locate import PUBLISHED
from hpcps.records.table import read_table
from hpcps.spec.load import Point, load_experiment
from hpcps.spec.selection import select

STAGES = (
    # Each figure's attacked panels under its strongest attack: `negative` makes plain averaging diverge, and in
    # asynchronous training, where its scale is 2, `random` costs most.
    ("fig3_sync_single_validator", "attack=negative"),
    ("fig5_async_single_validator", "attack=random"),
    ("sgd_baseline", ""),
    ("fig4_sync_two_validators", "attack=negative"),
    ("fig6_async_two_validators", "attack=random"),
    ("fig7_sync_tune_rho", ""),
    *(
        (figure, f"attack={attack}")
        for attack in ("none", "random", "randomscale", "negative")
        for figure in (
            *("fig3_sync_single_validator", "fig5_async_single_validator"),
            *("fig4_sync_two_validators", "fig6_async_two_validators"),
        )
    ),
)
"""Experiments and selectors, in the order of execution; a run of an earlier stage is not executed again."""
MARGIN = 20.0
"""Seconds before the end at which runs stop at a checkpoint; on a GPU a round takes a fraction of a second."""
AFTERWARDS = 45.0
"""Seconds for publishing and packing. This, `MARGIN` and `WORTHWHILE` are shorter in calls of less than two minutes."""
WORTHWHILE = 15.0
"""Seconds of training for which a launch is worth its start."""
SHORT = 120.0


@dataclass(frozen=True)
class Campaign:
    """The settings of a call.

    Attributes:
        experiments: the folder of experiment files.
        results: the folder of all results.
        settings: what `--set` changes in every experiment.
        jobs: the number of launches at a time.
        limit: seconds of the call, with what comes after the runs.
        began: time on the monotonic clock at which the call began.
    """

    experiments: Path
    results: Path
    settings: Sequence[str]
    jobs: int
    limit: float
    began: float

    def points(self, name: str, selector: str) -> list[Point]:
        """Return the points of a stage that are done neither here nor in the published copy."""
        published = done_in(self.results / PUBLISHED / name / "table.parquet")
        chosen = select(load_experiment(self.experiments / f"{name}.toml", self.settings).points, selector or None)
        return [point for point in chosen if point.run_id not in published and not is_done(point, self.results)]

    def run(self, stages: Sequence[tuple[str, str]]) -> list[str]:
        """Execute the stages until the time is over; return the failed ones."""
        failed = []
        share = min(1.0, self.limit / SHORT)
        end, margin = self.began + self.limit - share * AFTERWARDS, share * MARGIN
        for name, selector in stages:
            left = self.points(name, selector)
            if not left:
                continue
            seconds = int(end - time.monotonic())
            if seconds < margin + share * WORTHWHILE:
                break
            print(f"== {name} {selector}: {len(left)} runs, {seconds} s left ==", flush=True)
            numbers = ",".join(str(point.index) for point in left)
            status = self._hpcps(
                *("run", str(self.experiments / f"{name}.toml"), "--only", numbers, "--jobs", str(self.jobs)),
                *("--walltime", str(seconds), "--set", f"checkpoint.margin={margin:g}"),
                *("--set", "checkpoint.successors=1000"),
                *(word for setting in self.settings for word in ("--set", setting)),
            )
            if status == ExitStatus.SUSPENDED or status > 128:
                break
            if status:
                failed.append(f"{name} {selector}")
        return failed

    def publish(self, names: Sequence[str]) -> None:
        """Add the runs of each experiment to its published copy."""
        for name in names:
            if any((self.results / name / "runs").glob("*/records/*")):
                self._hpcps("publish", str(self.experiments / f"{name}.toml"), "--add")

    def groups(self, names: Sequence[str], stages: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[Path]]]:
        """Yield what to pack: the published copies, and each unfinished run in the order of the stages."""
        copies = [self.results / PUBLISHED / name for name in names]
        if copies := [copy for copy in copies if copy.exists()]:
            yield "published", copies
        folders = (run_folder(point, self.results) for stage in stages for point in self.points(*stage))
        for folder in dict.fromkeys(folders):
            moments = sorted((folder / "checkpoints").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
            if moments:
                rest = [path for path in folder.iterdir() if path.name != "checkpoints"]
                yield f"run-{folder.name}", [*rest, moments[-1].parent]

    def _hpcps(self, *words: str) -> int:
        command = [sys.executable, "-m", "hpcps", *words, "--results", str(self.results)]
        return subprocess.run(command, check=False).returncode


@contextmanager
def shared_mps(jobs: int, folder: Path | None = None) -> Iterator[dict[str, str]]:
    """Run one MPS daemon for all launches, which otherwise start one each and take turns; nothing for one at a time.

    Args:
        jobs: the number of launches.
        folder: an empty folder for a daemon that only processes with the variables find; by default all find it.

    Yields:
        The environment variables with which CUDA finds it.
    """
    control = shutil.which("nvidia-cuda-mps-control") if jobs > 1 else None
    variables = {}
    if control and folder:
        for name, place in {
            "CUDA_MPS_PIPE_DIRECTORY": folder / "pipe",
            "CUDA_MPS_LOG_DIRECTORY": folder / "log",
        }.items():
            place.mkdir()
            variables[name] = str(place)
    environment = {**os.environ, **variables}
    ours = (
        control is not None
        and not subprocess.run([control, "-d"], env=environment, stdout=subprocess.DEVNULL, check=False).returncode
    )
    try:
        yield variables if ours else {}
    finally:
        if control and ours:
            with suppress(subprocess.TimeoutExpired):
                quiet = subprocess.DEVNULL
                subprocess.run(
                    [control], env=environment, input="quit\n", text=True, stdout=quiet, timeout=10, check=False
                )


def done_in(table: Path) -> set[str]:
    """Return the ids of the runs that are done in a published copy."""
    if not table.exists():
        return set()
    frame = read_table(table)
    return set(frame["run_id"][frame["status"] == "done"].astype(str))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, required=True, help="seconds of this call, packing included")
    parser.add_argument("--jobs", type=int, default=1, help="launches at a time, which share the GPU (default: 1)")
    parser.add_argument("--archive", type=Path, help="the folder of archives; default: nothing is packed")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="default: results/ of this clone")
    parser.add_argument("--experiments", type=Path, default=ROOT / "experiments", help="default: those of this clone")
    parser.add_argument("--stages", nargs="*", metavar="NAME[:SELECTOR]", help="other stages than those of the paper")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `hpcps run`")
    args = parser.parse_args()
    began = time.monotonic()
    if not torch.cuda.is_available() and not any(setting.startswith("train.device=") for setting in args.set):
        parser.error("torch sees no GPU here; --set train.device=cpu tries it without one")
    given = [stage.partition(":") for stage in args.stages or ()]
    stages = [(name, selector) for name, _, selector in given] or list(STAGES)
    if args.archive and (found := unpack(args.archive, args.results)):
        print(f"unpacked {', '.join(found)}", flush=True)
    campaign = Campaign(args.experiments, args.results.absolute(), args.set, args.jobs, args.limit, began)
    names = list(dict.fromkeys(name for name, _ in stages))
    with shared_mps(args.jobs):
        failed = campaign.run(stages)
    campaign.publish(names)
    left = {point.run_id for stage in stages for point in campaign.points(*stage)}
    if args.archive:
        left_out = pack(list(campaign.groups(names, stages)), campaign.results, args.archive)
        print(f"packed into {args.archive}" + (f"; no room for {', '.join(left_out)}" if left_out else ""))
    print(f"{len(left)} runs are left; this call took {time.monotonic() - began:.0f} s", flush=True)
    for stage in failed:
        print(f"failed: {stage}")
    return ExitStatus.FAILED if failed else ExitStatus.SUSPENDED if left else ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())

"""Measure Figure 3's sixteen workers on one GPU, the cost of rounds in addition to local steps, and rules on the GPU.

`python benchmarks/gpu.py [--quick] [--output FOLDER] [--rounds N] [--set KEY=VALUE]` writes gpu.md. It plays the four
rules of experiments/fig3_sync_single_validator.toml without an attack, a few epochs each, in one launch. Without
CIFAR-10's files (HPCPS_DATA) it uses synthetic images of the same shape, which are not augmented. Then it measures the
rules' kernels on the GPU (device_rules.py). `--device cpu --output FOLDER` tests it without a GPU.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import bars
import device_rules
import torch
from machine import Others, description
from processes import ROOT, Command, MeasurementError, clean_up_on_sigterm, run_together

from hpcps.data.shards import shard_size
from hpcps.errors import HpcpsError
from hpcps.spec.load import load_experiment
from hpcps.spec.selection import select
from hpcps.training.build import build_learner

EXPERIMENT = ROOT / "experiments/fig3_sync_single_validator.toml"
POINTS, ONE_POINT = "attack=none", "attack=none,validation.rule=average"
SETTLED = 3
"""The first rounds of a run, which are not measured: in them CUDA graphs are recorded and libraries are loaded."""
CURVE = 200 * 91 // 8
"""The rounds of a curve of the figure: 200 epochs of 91 batches, 8 batches per round."""
TIMEOUT = 900.0
"""The time limit of a launch, in seconds; with a GPU it takes a few minutes."""
COLUMNS = ("compute", "exchange", "combine", "wait", "evaluate")


@dataclass(frozen=True)
class Played:
    """The results from the records of a run, from the end of round `SETTLED` to the end of the last round.

    Attributes:
        rule: the kind of the rule.
        images: images per second of all workers.
        round: seconds per round.
        steps: seconds per round of the local steps of the slowest worker or validator.
        outside: seconds of the run outside of rounds: loading data, start and end.
        shares: the shares of each role's time, by column of the records.
    """

    rule: str
    images: float
    round: float
    steps: float
    outside: float
    shares: dict[str, dict[str, float]]

    @property
    def between(self) -> float:
        """The share of a round in which no process takes local steps: exchange, combining and waiting."""
        return 1 - self.steps / self.round

    def curve(self, startup: float) -> float:
        """Return the seconds of all rounds of a curve at this rate."""
        return startup + self.outside + CURVE * self.round


def read(folder: Path, run) -> Played:
    """Read the records of a run.

    Args:
        folder: the folder of the run.
        run: the run.
    """
    lines = {}
    for path in sorted((folder / "records").glob("*.jsonl")):
        records = map(json.loads, path.read_text().splitlines())
        lines[path.stem] = [line for line in records if line["event"] == "round"]
    trainees = {name: rounds for name, rounds in lines.items() if not name.startswith("server")}
    workers = [rounds for name, rounds in trainees.items() if name.startswith("worker")]
    walls = [rounds[-1]["time"] - rounds[SETTLED - 1]["time"] for rounds in workers]
    counted = len(workers[0]) - SETTLED
    slowest = [max(line["compute"] for line in turn) for turn in zip(*trainees.values(), strict=True)]
    shares = {}
    for role in ("worker", "validator", "server"):
        own = [line for name, rounds in lines.items() if name.startswith(role) for line in rounds[SETTLED:]]
        spent = {column: sum(line[column] for line in own) for column in COLUMNS}
        shares[role] = {column: seconds / sum(spent.values()) for column, seconds in spent.items()}
    wall = statistics.mean(walls)
    return Played(
        run.validation.rule.kind,
        sum(line["samples"] for rounds in workers for line in rounds[SETTLED:]) / wall,
        wall / counted,
        statistics.mean(slowest[SETTLED:]),
        json.loads((folder / "DONE").read_text())["wall"] - wall * len(workers[0]) / counted,
        shares,
    )


def overrides(device: str, rounds: int, more: list[str]) -> list[str]:
    """Return the settings of the experiment file for runs with about `rounds` rounds and with data that exist."""
    settings = [f"train.device={device}", "checkpoint.every=0", *more]

    def of_a_run(*extra):
        return load_experiment(EXPERIMENT, [*settings, *extra]).points[0].run

    try:
        of_a_run().data.open()
    except HpcpsError:
        # Synthetic images are not augmented, so the cost of augmentation is missing.
        settings += ["data.name=synthetic", "data.augment=false"]
    run = of_a_run()
    steps = run.train.passes_per_epoch * (shard_size(run.data, run.train.batch_size) // run.train.batch_size)
    epochs = -(-rounds * run.train.local_steps // steps)
    return [*settings, f"train.epochs={epochs}"]


def play(folder: Path, points: str, settings: list[str]) -> tuple[list[Played], float]:
    """Play points in one launch; return the results of each, and the seconds of the launch outside of runs.

    Raises:
        MeasurementError: the launch failed.
    """
    options = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "hpcps", "run", str(EXPERIMENT), "--only", points, "--results", str(folder)]
    began = time.monotonic()
    if problem := run_together([Command([*command, *options], name="hpcps run")], folder / "logs", TIMEOUT):
        raise MeasurementError(problem)
    took = time.monotonic() - began
    runs = folder / EXPERIMENT.stem / "runs"
    chosen = select(load_experiment(EXPERIMENT, settings).points, points)
    found = [(next(runs.glob(f"{point.run_id}*")), point.run) for point in chosen]
    walls = [json.loads((run / "DONE").read_text())["wall"] for run, _ in found]
    return [read(*each) for each in found], took - sum(walls)


def seconds_of_a_step(settings: list[str], *, replays: bool, seconds: float) -> float | None:
    """Return the seconds of a step of a single worker on the device; None if the step cannot be replayed there."""
    run = select(load_experiment(EXPERIMENT, settings).points, ONE_POINT)[0].run
    learner = build_learner(run, "worker", 0)
    if not replays:
        learner.compute_device.recorder = None
    elif learner.compute_device.recorder is None:
        return None
    learner.train(8)
    began, steps = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        steps += learner.train(8).steps
    return None if replays and learner.compute_device.recorder is None else took / steps


def report(played, startup, steps, about: str) -> str:
    """Return gpu.md."""
    eager, replayed = (f"{each * 1e3:.2f} ms" if each else "not possible here" for each in steps)
    lines = [
        "# Sixteen workers on one GPU",
        "",
        about,
        "",
        f"`between`: the share of a round in which not even the slowest process takes local steps. A curve: {CURVE} "
        "rounds at this rate, and what comes before and after them.",
        "",
        "| rule | images/s of all workers | ms a round | of these, local steps | between | seconds of a curve |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {one.rule} | {one.images:.0f} | {one.round * 1e3:.1f} | {one.steps * 1e3:.1f} | {one.between:.1%} | "
            f"{one.curve(startup):.0f} |"
            for one in played
        ),
        "",
        "How each role spends its time, by its records; evaluations run beside the steps:",
        "",
        f"| rule | role | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---:|' * len(COLUMNS)}",
        *(
            f"| {one.rule} | {role} | {' | '.join(f'{shares[column]:.1%}' for column in COLUMNS)} |"
            for one in played
            for role, shares in one.shares.items()
        ),
        "",
        f"A step of one worker alone: eager {eager}, replayed as a CUDA graph {replayed}.",
        "",
    ]
    return "\n".join(lines)


def bars_of(played, startup) -> list[bars.Bar]:
    """Return the bars of the slowest rule."""
    images, between = min(one.images for one in played), max(one.between for one in played)
    return [
        bars.Bar("images/s of 16 workers on one GPU, rounds included", "≥ 45000", f"{images:.0f}", images >= 45_000),
        bars.Bar("share of its rounds that is exchange and combining", "≤ 8 %", f"{between:.1%}", between <= 0.08),
        bars.Bar.at_most("seconds of a 200-epoch curve on one GPU", max(one.curve(startup) for one in played), 300),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one rule and a few rounds, to see that it works")
    parser.add_argument("--rounds", type=int, default=150, help="of each run, about (default: 150)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it; no bars are written")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `hpcps run`")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results, but for what is no GPU's")
    args = parser.parse_args()
    if args.output is None:
        if args.device == "cpu":
            parser.error("what a CPU does is no result of a GPU: say with --output where it is to go")
        args.output = ROOT / "benchmarks/results"
    clean_up_on_sigterm()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu tries it without one")
    points, rounds, seconds = (ONE_POINT, min(args.rounds, 20), 2.0) if args.quick else (POINTS, args.rounds, 10.0)
    others = Others()
    settings = overrides(args.device, rounds, args.set)
    steps = [seconds_of_a_step(settings, replays=replays, seconds=seconds) for replays in (False, True)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            played, startup = play(Path(folder), points, settings)
    except MeasurementError as error:
        print("failed:", error, flush=True)
        return 1
    about = (
        f"{description()}. {EXPERIMENT.name} with `{' '.join(settings)}`, all processes on one machine, no attack. "
        f"Other processes used {others.cores():.2f} cores meanwhile."
    )
    args.output.mkdir(parents=True, exist_ok=True)
    rates = device_rules.measure(quick=args.quick) if args.device == "cuda" else []
    text = report(played, startup, steps, about) + "\n".join(device_rules.report(rates))
    (args.output / "gpu.md").write_text(text)
    if args.device == "cuda":
        bars.write(args.output, "gpu", bars_of(played, startup) + device_rules.bars_of(rates))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

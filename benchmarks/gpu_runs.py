"""The runs of gpu.py: Figure 3's sixteen workers, a server and a validator, a few epochs of each rule in one launch."""

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT, Command, MeasurementError, run_together

from hpcps.data.shards import shard_size
from hpcps.errors import HpcpsError
from hpcps.spec.load import load_experiment
from hpcps.training.build import build_trainer

EXPERIMENT = ROOT / "experiments/fig3_sync_single_validator.toml"
POINTS, ONE_POINT = ["attack=none"], ["attack=none", "validation.rule=average"]
SETTLED = 3
"""The first rounds of a run, which are not measured: in them CUDA graphs are recorded and libraries are loaded."""
CURVE = 200 * 91 // 8
"""The rounds of a curve of the figure: 200 epochs of 91 batches, 8 batches per round."""
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
        buffers: how models and updates are exchanged, as worker 0 has recorded it.
    """

    rule: str
    images: float
    round: float
    steps: float
    outside: float
    shares: dict[str, dict[str, float]]
    buffers: str = ""

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
    lines, buffers = {}, ""
    for path in sorted((folder / "records").glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        lines[path.stem] = [line for line in records if line["event"] == "round"]
        if path.stem == "worker-0":
            buffers = next((str(line["device_buffers"]) for line in records if "device_buffers" in line), "staged")
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
        buffers.replace("_", " "),
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


def play(folder: Path, only: list[str], settings: list[str], limit: float) -> tuple[list[Played], float, str]:
    """Play points in one launch.

    Returns:
        The results of the runs that are done, the seconds of the launch outside of these, and why others are not done.

    Args:
        folder: an empty folder.
        only: the selectors of the points.
        settings: the settings of the experiment file.
        limit: the time limit, in seconds.

    Raises:
        MeasurementError: no run is done.
    """
    options = [f"--set={setting}" for setting in settings] + [f"--only={selector}" for selector in only]
    command = [sys.executable, "-m", "hpcps", "run", str(EXPERIMENT), "--results", str(folder)]
    began = time.monotonic()
    problem = run_together([Command([*command, *options], name="hpcps run")], folder / "logs", limit)
    took = time.monotonic() - began
    runs = folder / EXPERIMENT.stem / "runs"
    chosen = load_experiment(EXPERIMENT, settings, only=only).chosen
    found = [(path.parent, point.run) for point in chosen for path in runs.glob(f"{point.run_id}*/DONE")]
    if not found:
        raise MeasurementError(problem or "no run is done")
    walls = [json.loads((run / "DONE").read_text())["wall"] for run, _ in found]
    missing = f"{len(found)} of {len(chosen)} runs are done: {problem}" if problem else ""
    return [read(*each) for each in found], took - sum(walls), missing


def seconds_of_a_step(settings: list[str], *, replays: bool, seconds: float) -> float | None:
    """Return the seconds of a step of a single worker on the device; None if the step cannot be replayed there."""
    run = load_experiment(EXPERIMENT, settings, only=ONE_POINT).chosen[0].run
    trainer = build_trainer(run, "worker", 0)
    if not replays:
        trainer.compute_device.recorder = None
    elif trainer.compute_device.recorder is None:
        return None
    trainer.train(8)
    began, steps = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        steps += trainer.train(8).steps
    return None if replays and trainer.compute_device.recorder is None else took / steps

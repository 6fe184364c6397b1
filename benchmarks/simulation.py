"""Predict the time per round of topologies from the records of one of them, and measure them.

Run `make bench-simulation` on an otherwise idle machine; it takes three minutes. The model is fitted to the first point
of `simulation.toml`. It writes `simulation.md` and `simulation.png` to the folder `results` next to this file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from bars import Bar, write
from machine import Others, description
from processes import Command, MeasurementError, clean_up_on_sigterm, run_together

from hpcps.execution.simulation.calibration import RunRecords, fit
from hpcps.execution.simulation.replay import seconds_per_round, speed_of
from hpcps.records.locate import run_folder
from hpcps.spec.load import load_experiment
from hpcps.spec.point import Point
from hpcps.spec.simulation import Measured

HERE = Path(__file__).parent
GOAL = 0.2
"""The largest acceptable relative error of a prediction."""

TIMEOUT = 300.0
"""The time limit of a launch, in seconds; the longest takes a twentieth of it."""

DISTURBED = 0.1
"""A row is marked if other processes used more cores than this, averaged over the launch."""


@dataclass(frozen=True)
class Row:
    """One topology; times in seconds per round."""

    point: Point
    measured: list[float]
    predicted: float
    others: float

    @property
    def middle(self) -> float:
        return statistics.median(self.measured)

    @property
    def ratio(self) -> float:
        return self.predicted / self.middle

    @property
    def name(self) -> str:
        topology = self.point.run.topology
        return f"{topology.servers} / {topology.validators} / {topology.workers}"


def measure(file: Path, points: list[Point], results: Path) -> float:
    """Play points of one topology over MPI; return the number of cores that other processes used in the meantime.

    Raises:
        MeasurementError: it failed.
    """
    only = ",".join(str(point.index) for point in points)
    words = [sys.executable, "-m", "hpcps", "run", str(file), "--results", str(results), "--only", only]
    others = Others()
    with tempfile.TemporaryDirectory(prefix="hpcps-simulation-") as folder:
        if problem := run_together([Command(words, name="hpcps run")], Path(folder) / "logs", TIMEOUT):
            raise MeasurementError(problem)
    return others.cores()


@dataclass(frozen=True)
class Measurement:
    """The runs of one topology, and the number of cores that other processes used in the meantime."""

    others: float
    folders: list[Path]


def measure_all(
    file: Path, groups: list[list[Point]], results: Path, attempts: int
) -> tuple[list[Measurement | None], dict[str, str]]:
    """Measure every topology; then measure those that other processes disturbed again, up to `attempts` times.

    Returns:
        The measurement of each topology, None if all its launches failed; and the failures.
    """
    best: list[Measurement | None] = [None] * len(groups)
    failed: dict[str, str] = {}
    for attempt in range(attempts):
        place = results / f"attempt-{attempt}"
        for number, group in enumerate(groups):
            before = best[number]
            if before is not None and before.others <= DISTURBED:
                continue
            try:
                others = measure(file, group, place)
            except MeasurementError as error:
                failed[group[0].label] = str(error)
                print(f"{group[0].label} failed: {error}", flush=True)
                continue
            failed.pop(group[0].label, None)
            print(f"measured {group[0].label}; others used {others:.2f} cores", flush=True)
            if before is None or others < before.others:
                best[number] = Measurement(others, [run_folder(point, place) for point in group])
    return best, failed


def by_topology(points: tuple[Point, ...]) -> list[list[Point]]:
    """Group the points that differ only in their seed, in the order of the file."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.run.topology.model_dump_json(), []).append(point)
    return list(groups.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="keep the runs here")
    parser.add_argument("--attempts", type=int, default=3, help="launches of a topology that others disturb")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="default: benchmarks/results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    results = args.results or Path(tempfile.mkdtemp(prefix="hpcps-simulation-"))
    file = HERE / "simulation.toml"
    groups = by_topology(load_experiment(file).points)
    measurements, failed = measure_all(file, groups, results, args.attempts)
    for label, problem in failed.items():
        print(f"failed: {label}: {problem}", flush=True)
    if measurements[0] is None or not any(measurements[1:]):
        print("there is nothing to fit the model to, or nothing to be predicted")
        return 1
    if measurements[0].others > DISTURBED:
        print(
            "other processes disturbed what the model is to be fitted to: try again on a machine that does nothing else"
        )
        return 2
    found_of = [(group, found) for group, found in zip(groups, measurements, strict=True) if found is not None]
    times = [[RunRecords(folder).seconds_per_round for folder in found.folders] for _, found in found_of]
    middle = measurements[0].folders[times[0].index(statistics.median_low(times[0]))]
    simulation = Measured(records=str(middle), speed=speed_of(middle))
    rows = []
    for (group, found), measured in zip(found_of, times, strict=True):
        row = Row(group[0], measured, seconds_per_round(group[0].run, simulation), found.others)
        rows.append(row)
        print(f"{row.name}: predicted {row.predicted * 1e3:.1f} ms, measured {row.middle * 1e3:.1f} ms", flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "simulation.md").write_text(report(rows, simulation), encoding="utf-8")
    draw(rows, args.output / "simulation.png")
    worst = max(abs(row.ratio - 1) for row in rows[1:])
    write(args.output, "simulation", [Bar.at_most("Largest error of a predicted time per round", worst, GOAL)])
    print(f"the worst prediction is off by {worst:.0%}; the goal is {GOAL:.0%}; wrote {args.output / 'simulation.md'}")
    return 1 if failed else 0


def report(rows: list[Row], simulation: Measured) -> str:
    """Write the table, the fitted costs and the errors."""
    costs, run = fit(simulation.records).costs, rows[0].point.run
    worst = max(abs(row.ratio - 1) for row in rows[1:])
    lines = [
        "# Predicted and measured time per round",
        "",
        f"{description()}. MPICH. `make bench-simulation`.",
        "",
        f"Synchronous training of `{run.model.name}` on {run.data.name}, H = {run.train.local_steps}, batch "
        f"{run.train.batch_size}, participation {run.communication.participation}, rule "
        f"`{run.validation.rule.kind}`; all processes on this machine. The costs are fitted to the records of "
        "the first "
        "row; the other rows are predicted from these. Measured: the median of the runs of "
        f"{len(rows[0].measured)} seeds, with their range. Others: cores that processes which are not "
        f"of this benchmark used meanwhile (\\* above {DISTURBED}: disturbed).",
        "",
        "| Servers / validators / workers | Predicted, ms | Measured, ms | Range, ms | Predicted / measured | Others |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = min(row.measured) * 1e3, max(row.measured) * 1e3
        mark = " \\*" if row.others > DISTURBED else ""
        lines.append(
            f"| {row.name} | {row.predicted * 1e3:.1f} | {row.middle * 1e3:.1f} | {low:.1f} to {high:.1f} | "
            f"{row.ratio:.2f} | {row.others:.2f}{mark} |"
        )
    step = costs.step.model_dump()["seconds"]
    lines += [
        "",
        f"Largest error of a prediction: {worst:.0%} (goal: {GOAL:.0%}).",
        "",
        f"The fitted speed: {simulation.speed:.2f}. The fitted costs, in CPU milliseconds: "
        f"local step {step * 1e3:.3f}; evaluation {costs.evaluate * 1e3:.2f}; pack {costs.pack.call * 1e3:.3f}; adopt "
        f"{costs.adopt.call * 1e3:.3f}; combine {costs.combine.call * 1e3:.3f} and {costs.combine.element * 1e9:.2f} "
        f"per million elements; apply {costs.apply.call * 1e3:.3f}; a message {costs.messages.send * 1e3:.3f} to send, "
        f"{costs.messages.receive * 1e3:.3f} to take; a record line {costs.messages.record * 1e3:.3f}; a poll "
        f"{costs.waiting.poll * 1e3:.4f}.",
        "",
        "![Predicted against measured time per round](simulation.png)",
    ]
    return "\n".join(lines) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Plot predicted against measured times, with the band of the goal."""
    figure, axes = plt.subplots(figsize=(4.5, 4.2), layout="constrained")
    top = max(max(row.middle, row.predicted) for row in rows) * 1.1e3
    axes.fill_between([0, top], [0, top * (1 - GOAL)], [0, top * (1 + GOAL)], color="0.9", label=f"within {GOAL:.0%}")
    axes.plot([0, top], [0, top], color="0.6", linewidth=1)
    for row, marker in zip(rows, ["s"] + ["o"] * (len(rows) - 1), strict=True):
        axes.plot(row.middle * 1e3, row.predicted * 1e3, marker, color="tab:blue" if marker == "o" else "tab:orange")
        place = row.middle * 1e3, row.predicted * 1e3
        # The names of successive points are on alternating sides of the line.
        below = sorted(rows, key=lambda other: other.middle).index(row) % 2 == 0
        offset, side = ((6, -9), "left") if below and place[0] < 0.8 * top else ((-6, 4), "right")
        axes.annotate(row.name, place, offset, textcoords="offset points", ha=side, fontsize=7)
    axes.set(xlabel="measured, ms per round", ylabel="predicted, ms per round", xlim=(0, top), ylim=(0, top))
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())

"""The page and the figures of `byzfl_benchmark.py`, from its results."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
from byzfl_results import Results
from byzfl_study import BYZANTINE, GAMMAS, NAMES, RATES, RULES, SEEDS, SIDES

from hpcps.figures.figure_data import FigureData
from hpcps.figures.grid_figures import draw_heat_map
from hpcps.figures.options import PlotOptions

DIFFERENCES = (
    "Batches: ByzFL shuffles by torch's generator and trains on the last, smaller batch of a pass; hpcps shuffles by "
    "its own streams and leaves that batch out.",
    "Momentum: both keep it on the worker. ByzFL sends the momentum, in which a gradient has the factor 0.1, and hpcps "
    "sends the step that it makes. So hpcps's rate is a tenth of the stated one.",
    "Lengths: the radius of clipping (2) and nu of the geometric median (0.1) are those of ByzFL's momenta. hpcps gets "
    "both multiplied by the rate, because it clips steps. Both take 3 steps of Weiszfeld from zero.",
    "Weight decay (0.0001): ByzFL's server adds it after the rule; in hpcps it is in the gradients, so that rules and "
    "attacks see it.",
    "The searched attacks try 20 factors in both. After its first step that is not better ByzFL tries only larger "
    "factors, hpcps smaller ones too. So the crafted updates differ.",
    "What an attack sees: in both the honest updates of the round and the rule. ByzFL's Byzantine clients have no "
    "data. In hpcps each has a shard of one batch, which the attacks do not use; the honest workers of both libraries "
    "train without these samples.",
    "ByzFL's own plots take the best of several evaluations; here the accuracy is that of the last model.",
    "ByzFL's sample configuration trains a convolutional network on MNIST for 800 steps.",
)


def write(results: Results, folder: Path) -> None:
    """Write the page, and a figure for each rule that has a finished cell, into a folder."""
    drawn = [rule for rule in RULES if _draw(results, rule, folder / f"byzfl_{rule}.png")]
    (folder / "byzfl.md").write_text(page(results, drawn), encoding="utf-8")


def page(results: Results, drawn: list[str]) -> str:
    """Return the page.

    Args:
        results: the results.
        drawn: the rules that have a figure.
    """
    settings = results.settings
    done = [cell for cell in results.found if not cell.search]
    setting = f"{settings.data}, {settings.steps} steps, batches of {settings.batch}"
    lines = [
        "# ByzFL's benchmark, side by side",
        "",
        f"10 honest workers and f Byzantine ones on {setting}. Both libraries have the same samples, the same split of "
        "them among honest workers, the same initial weights and one thread, and run in turn. "
        f"`make byzfl-benchmark ARGUMENTS='--data {settings.data} --steps {settings.steps} --output FOLDER'` goes on "
        "with the cells that are left.",
        "",
        *(f"- {machine}" for machine in dict.fromkeys(results.machines)),
        "",
        f"Finished: {len(done)} trainings by each library, with "
        f"{len({cell.seed for cell in done})} of {len(SEEDS)} seeds. A cell is shown when all three "
        "attacks of a seed are finished.",
        "",
    ]
    for rule in RULES:
        scores = ", ".join(f"{rate:g}: {100 * score:.1f} %" for rate, score in results.scores(rule).items())
        largest = "; the largest one is the best, so a larger one may be better" if _at_the_end(results, rule) else ""
        lines += [f"Rates of `{rule}`, by held-out samples: {scores or 'not compared yet'}{largest}.", ""]
    lines += [f"![Worst accuracy with {rule}](byzfl_{rule}.png)\n" for rule in drawn]
    lines += [
        "| Rule | f | gamma | ByzFL, % | hpcps, % | hpcps - ByzFL | Seeds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for rule in drawn:
        for f in BYZANTINE:
            for gamma in GAMMAS:
                theirs, ours = (results.worst(rule, f, gamma, side) for side in SIDES)
                if theirs:
                    apart = [100 * (ours[seed][0] - theirs[seed][0]) for seed in theirs]
                    spread = f" ± {statistics.stdev(apart):.1f}" if len(apart) > 1 else ""
                    means = [100 * statistics.mean(value for value, _ in each.values()) for each in (theirs, ours)]
                    cells = f"{means[0]:.1f} | {means[1]:.1f} | {statistics.mean(apart):+.1f}{spread} | {len(apart)}"
                    lines.append(f"| {rule} | {f} | {gamma:g} | {cells} |")
    lines += [
        "",
        "Each number is the worst accuracy over the attacks of a seed, as the mean over the seeds; ± is the standard "
        "deviation of the difference over them.",
        "",
        "| | CPU seconds of a training, median | Largest memory, MiB |",
        "|---|---:|---:|",
    ]
    for side in SIDES if results.found else ():
        each = [found[side] for found in results.found.values()]
        seconds, memory = statistics.median(one.cpu for one in each), max(one.memory for one in each)
        lines.append(f"| {NAMES[side]} | {seconds:.1f} | {memory:.0f} |")
    lines += ["", "Other programs on the machine make these seconds longer; both libraries trained in turn."]
    lines += ["", "## Differences of definition", "", *(f"- {each}" for each in DIFFERENCES), ""]
    return "\n".join(lines)


def _at_the_end(results: Results, rule: str) -> bool:
    """Return whether the best rate of a rule is the largest one that was tried."""
    scores = results.scores(rule)
    return len(scores) == len(RATES) and max(scores, key=scores.__getitem__) == max(RATES)


def _draw(results: Results, rule: str, path: Path) -> bool:
    """Draw the heat maps of both libraries beside each other; return whether a cell is finished."""
    found = [[results.worst(rule, f, gamma, side) for side in SIDES for f in BYZANTINE] for gamma in GAMMAS]
    values = [[100 * statistics.mean(v for v, _ in one.values()) if one else math.nan for one in row] for row in found]
    if not np.isfinite(values).any():
        return False
    settings = results.settings
    facts = f"{settings.data}, 10 honest workers, {settings.steps} steps"
    figure = draw_heat_map(
        FigureData("ByzFL's benchmark", "", (), (), {}, "", facts),
        f"{rule} after clipping and nnm: accuracy under the worst attack{{below}}",
        np.array(values),
        [[min(one.values())[1] if one else "" for one in row] for row in found],
        [f"gamma = {gamma:g}" for gamma in GAMMAS],
        [f"{NAMES[side]}, f = {f}" for side in SIDES for f in BYZANTINE],
        PlotOptions(),
    )
    figure.axes[0].axvline(len(BYZANTINE) - 0.5, color="white", linewidth=6)  # between the libraries
    figure.savefig(path, dpi=120)
    return True

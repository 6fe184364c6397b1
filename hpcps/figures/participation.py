"""The figure of a run with a quorum: the share of rounds in which each worker was, and how late its updates were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hpcps.figures.page import RC, heading_lines
from hpcps.spec.tree import get

# Colours of Okabe and Ito; pale where a worker was not in a round.
_PARTS = {"in_time": "#0072B2", "late": "#56B4E9", "absent": "#E69F00", "missed": "#EEEEEE"}
_WIDTH = 7.2


def draw_participation(counts: pd.DataFrame, heading: str) -> Figure:
    """Draw the rounds of each worker as a bar, and the mean staleness of its late, dropped and abandoned updates.

    Args:
        counts: see `participation`.
        heading: the title.
    """
    with mpl.rc_context(RC):
        figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        places, below = np.arange(len(counts)), np.zeros(len(counts))
        drawn = {name: color for name, color in _PARTS.items() if counts[name].any()}
        for name, color in drawn.items():
            share = 100 * counts[name].to_numpy() / counts["rounds"].to_numpy()
            left.bar(places, share, 0.8, below, color=color, label=name.replace("_", " "))
            below += share
        left.set(ylabel="rounds (%)", ylim=(0, 100))
        figure.legend(loc="outside lower center", ncols=len(drawn))
        right.bar(places, np.nan_to_num(counts["staleness"].to_numpy(float)), 0.8, color=_PARTS["late"])
        right.set(ylabel="mean lateness (rounds)")
        for axes, most in ((left, 12), (right, 6)):
            axes.set(xlabel="worker", xticks=places[:: -(-len(places) // most)])
            axes.set_xticklabels([str(int(counts["worker"].iloc[place])) for place in axes.get_xticks()])
        figure.suptitle("\n".join(heading_lines(heading.split("\n"), _WIDTH)))
    return figure


def participation_table(counts: pd.DataFrame) -> str:
    """Return the counts as a Markdown table."""
    rows = [["worker", "rounds", "in time", "late", "absent", "dropped", "abandoned", "missed", "mean lateness"]]
    for row in counts.itertuples(index=False):
        whole, stale = [str(int(each)) for each in row[:-1]], row[-1]
        rows.append([*whole, "" if np.isnan(stale) else f"{stale:.1f}"])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def settings(run: Mapping[str, Any]) -> str:
    """Describe the quorum of a run: how many answers close a round, and what becomes of late updates."""
    train = run.get("train", {})
    workers = get(dict(run), ("topology", "workers"))
    if train.get("quorum") is None:
        return f"all of {workers} workers that are not lost"
    said = [f"quorum {train.get('quorum')} of {workers} workers", f"late {train.get('late')}"]
    said += [f"grace {train.get('grace'):g} s"] * bool(train.get("grace"))
    said += [f"abandoned {train.get('abandoned')}"] * bool(train.get("abandon"))
    return " · ".join(said)

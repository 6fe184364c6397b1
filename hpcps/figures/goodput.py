"""The figure of a run that has lost processes: its updates over time, beside those without a loss."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hpcps.figures.page import RC, heading_lines
from hpcps.records.goodput import Goodput

_WIDTH = 7.2
_UPDATES, _UNDISTURBED, _LOST, _REPLACED = "#0072B2", "#999999", "#D55E00", "#009E73"


def draw_goodput(found: Goodput, heading: str) -> Figure:
    """Draw the updates that were combined over time, and the losses and replacements.

    Args:
        found: the goodput of the run.
        heading: the title.
    """
    with mpl.rc_context(RC):
        figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        end = found.times[-1]
        axes.step([0.0, *found.times], [0, *found.updates], where="post", color=_UPDATES, label="combined")
        if np.isfinite(found.rate):
            axes.plot([0.0, end], [0.0, found.rate * end], "--", color=_UNDISTURBED, label="without a loss")
        for moments, marker, color, label in (
            ([loss.time for loss in found.losses], "x", _LOST, "a process is lost"),
            (found.returns, "^", _REPLACED, "its replacement has started"),
        ):
            if moments:
                heights = [found.updates[found.times <= moment].max(initial=0) for moment in moments]
                axes.plot(moments, heights, marker, color=color, markersize=5, linestyle="none", label=label)
        axes.set(xlabel="seconds", ylabel="updates", xlim=(0, None), ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=4)
        figure.suptitle("\n".join(heading_lines(heading.split("\n"), _WIDTH)))
    return figure


def goodput_table(found: Goodput) -> str:
    """Return the numbers as a Markdown table."""
    known = np.isfinite(found.rate)
    cells = {
        "lost": str(len(found.losses)),
        "replaced": str(len(found.returns)),
        "updates": str(found.updates[-1]),
        "without a loss": f"{found.rate * found.times[-1]:.0f}" if known else "unknown",
        "goodput": f"{100 * found.share:.1f} %" if known else "unknown",
    }
    for kind, seconds in sorted(found.recoveries.items()):
        cells[f"seconds to the next round without the {kind}"] = f"{np.median(seconds):.3g}"
    rows = [list(cells), ["---"] * len(cells), list(cells.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

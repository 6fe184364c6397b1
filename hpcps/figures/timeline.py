"""The figure of a trace: a row for each process and a colour for each activity, over a few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcps.errors import RunError
from hpcps.figures.labels import SEPARATOR
from hpcps.figures.page import RC, heading_lines, legend
from hpcps.records.trace.reader import Trace, TracedProcess

ROUNDS = 3
"""The default number of rounds to show."""

ONE_PROCESS = "one process executed the roles in turn"
"""The remark on a run in process."""

# Colours of Okabe and Ito; activities that use a core are dark or bright, waiting is pale.
_COLOR = {
    "train": "#0072B2",
    "evaluate": "#56B4E9",
    "pack": "#009E73",
    "adopt": "#F0E442",
    "combine": "#D55E00",
    "apply": "#E69F00",
    "craft": "#8B0000",
    "audit": "#4B0082",
    "send": "#000000",
    "receive": "#CC79A7",
    "handle": "#777777",
    "checkpoint": "#7A4A1E",
    "save": "#B08A5A",
    "pause": "#C9C2E3",
    "wait": "#EEEEEE",
}
_MOST_ARROWS = 500
_ROW = 0.27
_WIDTH = 7.2


@dataclass(frozen=True)
class Window:
    """The part of a trace to show.

    Attributes:
        start: seconds since the start of the run.
        stop: seconds since the start of the run.
        title: a description of this part.
    """

    start: float
    stop: float
    title: str


def whole_rounds(trace: Trace, first: int | None = None, last: int | None = None) -> Window:
    """Return the time of some rounds of the first worker (without workers, of the first process).

    Args:
        trace: the trace.
        first: the first round; by default those in the middle of the run are taken.
        last: the last round.

    Raises:
        RunError: the trace has no such rounds.
    """
    peer = next((process.peer for process in trace.processes if process.peer.role == "worker"), trace.processes[0].peer)
    spans = trace.spans[(trace.spans["process"] == str(peer)) & ~trace.spans["background"]]
    ends = spans.groupby("round").agg({"start": "first", "stop": "last"})
    if ends.empty:
        raise RunError(f"the trace of {peer} is empty: the run ended before anything was noted")
    if first is None:
        # The last number is that of a round that did not start.
        first = max(0, (ends.index.max() - ROUNDS) // 2)
        last = min(first + ROUNDS, max(1, ends.index.max())) - 1
    shown = ends.loc[first : first if last is None else last]
    if shown.empty:
        raise RunError(f"--rounds: the trace of {peer} has the rounds {ends.index.min()} to {ends.index.max()}")
    first, last = shown.index.min(), shown.index.max()
    what = f"rounds {first} to {last}" if last != first else f"round {first}"
    window = Window(shown["start"].min(), shown["stop"].max(), f"{what} of {peer}")
    if window.start == window.stop:
        raise RunError(f"no simulated time passes in {window.title}: give the simulation costs, such as `step`")
    return window


def between(trace: Trace, first: float, last: float) -> Window:
    """Return the time between two moments, in seconds since the run began.

    Raises:
        RunError: the trace has nothing there.
    """
    window = Window(first, last, f"{first:g} to {last:g} s")
    if _inside(trace, window).empty:
        raise RunError(f"--seconds: the trace ends {trace.spans['stop'].max():.3f} s after the run began")
    return window


def draw_timeline(trace: Trace, window: Window, heading: str, *, in_process: bool = False) -> Figure:
    """Draw the activities of every process in a window of time, and the messages between them.

    A background activity of a process is a thin bar over the lower edge of its row.

    Args:
        trace: the trace.
        window: the part to show.
        heading: a description of the run.
        in_process: whether one process executed all roles in turn.
    """
    processes = trace.processes
    place = {str(process.peer): -row for row, process in enumerate(processes)}
    unit, scale = _unit(window.stop - window.start)
    spans = _inside(trace, window)
    bars = pd.DataFrame({"left": (spans["begin"] - window.start) * scale, "width": spans["part"] * scale})
    hosts = list(dict.fromkeys(process.host for process in processes))
    arrows = _arrows(spans)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(_WIDTH, _ROW * len(processes) + 1.45), layout="constrained")
        axes = figure.subplots()
        keys = [spans[name] for name in ("process", "background", "activity")]
        key: Any
        for key, own in bars.groupby(keys, sort=False):
            process, background, activity = key
            color, row = _COLOR.get(activity, "#444444"), place[process]
            height = (row - 0.46, 0.26) if background else (row - 0.36, 0.72)
            axes.broken_barh([*own.itertuples(index=False, name=None)], height, facecolor=color, linewidth=0)
        if len(arrows) <= _MOST_ARROWS:
            ends = [(arrows[end] - window.start) * scale for end in ("start_sent", "stop_received")]
            rows = [arrows[end].map(place) for end in ("process", "other")]
            lines = np.stack([np.stack(ends, 1), np.stack(rows, 1)], 2)
            axes.add_collection(LineCollection([*lines], colors="#555555", linewidths=0.5, alpha=0.6))
        axes.set_yticks(list(place.values()), [_label(process, hosts) for process in processes])
        axes.set_ylim(0.6 - len(processes), 0.6)
        axes.set_xlim(0, (window.stop - window.start) * scale)
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{unit} from {window.start:.3f} s after the start")
        error = max(process.error for process in processes)
        facts = [window.title]
        facts += [ONE_PROCESS] if in_process else []
        facts += ["virtual time"] if processes[0].clock == "virtual" else []
        facts += [f"clocks of {len(hosts)} hosts compared to {error * 1e6:.0f} µs"] if error else []
        facts += [f"{len(arrows)} messages not drawn"] if len(arrows) > _MOST_ARROWS else []
        words = heading_lines([heading, SEPARATOR.join(facts)], figure.get_figwidth())
        figure.suptitle("\n".join(words), fontsize=9)
        present = set(spans["activity"])
        handles: list[Artist] = [
            Patch(color=color, linewidth=0, label=name) for name, color in _COLOR.items() if name in present
        ]
        if 0 < len(arrows) <= _MOST_ARROWS:
            handles.append(Line2D([], [], color="#555555", linewidth=0.6, label="message"))
        legend(figure, handles)
    return figure


def shares(trace: Trace, window: Window) -> str:
    """Return a Markdown table with the share of the window that each role spends on each activity, in percent.

    Background activities are in separate columns; they overlap with the others.
    """
    spans = _inside(trace, window)
    names = spans["activity"].where(~spans["background"], spans["activity"] + " in background")
    spent = spans.pivot_table("part", "role", names, "sum", fill_value=0)
    total = spent.filter(items=[*_COLOR]).sum(axis=1).replace(0, 1)
    columns = (*_COLOR, *(f"{name} in background" for name in _COLOR))
    used = [name for name in columns if name in spent and spent[name].any()]
    lines = ["| % of the time | " + " | ".join(used) + " |", "|---|" + "---:|" * len(used)]
    for role in dict.fromkeys(process.peer.role for process in trace.processes):
        percent = 100 * spent[used].div(total, axis=0).reindex([role], fill_value=0).to_numpy()[0]
        lines.append(f"| {role}s | " + " | ".join(f"{part:.1f}" if part else "" for part in percent) + " |")
    return "\n".join(lines)


def _inside(trace: Trace, window: Window) -> pd.DataFrame:
    """Return the spans of a window, with the seconds `part` of each that are inside, which begin at `begin`."""
    spans = trace.spans[(trace.spans["stop"] > window.start) & (trace.spans["start"] < window.stop)]
    begin = spans["start"].clip(lower=window.start)
    return spans.assign(begin=begin, part=spans["stop"].clip(upper=window.stop) - begin)


def _arrows(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the messages whose two ends are among some spans, with the columns of both ends."""
    sent, received = (spans[(spans["activity"] == end) & (spans["other"] != "")] for end in ("send", "receive"))
    received = received.rename(columns={"process": "other", "other": "process"})
    return sent.merge(received, on=["process", "other", "number"], suffixes=("_sent", "_received"))


def _unit(seconds: float) -> tuple[str, float]:
    """Return the unit of the time axis, and its number per second."""
    return ("µs", 1e6) if seconds < 2e-3 else ("ms", 1e3) if seconds < 2 else ("s", 1.0)


def _label(process: TracedProcess, hosts: Sequence[str]) -> str:
    return f"{process.peer} ({process.host})" if len(hosts) > 1 else str(process.peer)

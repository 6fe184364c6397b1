"""The figure of a trace: a row for each process and a colour for each activity, over a few rounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcps.errors import RunError
from hpcps.figures.page import RC, legend
from hpcps.records.trace.lanes import Lane, Span

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
    "send": "#000000",
    "receive": "#CC79A7",
    "handle": "#777777",
    "checkpoint": "#7A4A1E",
    "save": "#B08A5A",
    "pause": "#C9C2E3",
    "wait": "#EEEEEE",
}
_MOST_ARROWS = 500
_LANE = 0.27
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


def whole_rounds(lanes: Sequence[Lane], first: int | None = None, last: int | None = None) -> Window:
    """Return the time of some rounds of the first worker (without workers, of the first process).

    Args:
        lanes: the trace.
        first: the first round; by default those in the middle of the run are taken.
        last: the last round.

    Raises:
        RunError: the trace has no such rounds.
    """
    lane = next((lane for lane in lanes if lane.peer.role == "worker"), lanes[0])
    ends: dict[int, tuple[float, float]] = {}
    for span in lane.spans():
        begin, _ = ends.get(span.round, (span.start, 0.0))
        ends[span.round] = (begin, span.stop)
    if not ends:
        raise RunError(f"the trace of {lane.peer} is empty: the run ended before anything was noted")
    if first is None:
        # The last number is that of a round that did not start.
        first = max(0, (max(ends) - ROUNDS) // 2)
        last = min(first + ROUNDS, max(1, max(ends))) - 1
    shown = sorted(round for round in ends if first <= round <= (first if last is None else last))
    if not shown:
        raise RunError(f"--rounds: the trace of {lane.peer} has the rounds {min(ends)} to {max(ends)}")
    first, last = shown[0], shown[-1]
    what = f"rounds {first} to {last}" if last != first else f"round {first}"
    return Window(min(ends[k][0] for k in shown), max(ends[k][1] for k in shown), f"{what} of {lane.peer}")


def between(lanes: Sequence[Lane], first: float, last: float) -> Window:
    """Return the time between two moments, in seconds since the run began.

    Raises:
        RunError: the trace has nothing there.
    """
    window = Window(first, last, f"{first:g} to {last:g} s")
    if not any(_inside(lane.spans(), window) for lane in lanes):
        end = max((span.stop for lane in lanes for span in lane.spans()), default=0.0)
        raise RunError(f"--seconds: the trace ends {end:.3f} s after the run began")
    return window


def draw_timeline(lanes: Sequence[Lane], window: Window, heading: str, *, in_process: bool = False) -> Figure:
    """Draw the activities of every process in a window of time, and the messages between them.

    A background activity of a process is a thin bar over the lower edge of its row.

    Args:
        lanes: the trace.
        window: the part to show.
        heading: a description of the run.
        in_process: whether one process executed all roles in turn.
    """
    spans = {lane.peer: _inside(lane.spans(), window) for lane in lanes}
    background = {lane.peer: _inside(lane.background(), window) for lane in lanes}
    place = {str(lane.peer): -row for row, lane in enumerate(lanes)}
    unit, scale = _unit(window.stop - window.start)
    hosts = list(dict.fromkeys(lane.host for lane in lanes))
    arrows = _arrows(lanes, window)
    with mpl.rc_context(RC):
        figure = Figure(figsize=(_WIDTH, _LANE * len(lanes) + 1.45), layout="constrained")
        axes = figure.subplots()
        for lane in lanes:
            row = place[str(lane.peer)]
            _draw_lane(axes, row - 0.36, 0.72, spans[lane.peer], window, scale)
            _draw_lane(axes, row - 0.46, 0.26, background[lane.peer], window, scale)
        if len(arrows) <= _MOST_ARROWS:
            _draw_arrows(axes, arrows, place, window, scale)
        axes.set_yticks(list(place.values()), [_label(lane, hosts) for lane in lanes])
        axes.set_ylim(0.6 - len(lanes), 0.6)
        axes.set_xlim(0, (window.stop - window.start) * scale)
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{unit} from {window.start:.3f} s after the start")
        error = max(lane.error for lane in lanes)
        facts = [window.title]
        facts += [ONE_PROCESS] if in_process else []
        facts += ["virtual time"] if lanes[0].clock == "virtual" else []
        facts += [f"clocks of {len(hosts)} hosts compared to {error * 1e6:.0f} µs"] if error else []
        facts += [f"{len(arrows)} messages not drawn"] if len(arrows) > _MOST_ARROWS else []
        figure.suptitle(f"{heading}\n{' · '.join(facts)}", fontsize=9)
        present = {span.activity for found in (*spans.values(), *background.values()) for span in found}
        handles: list[Artist] = [
            Patch(color=color, linewidth=0, label=name) for name, color in _COLOR.items() if name in present
        ]
        if 0 < len(arrows) <= _MOST_ARROWS:
            handles.append(Line2D([], [], color="#555555", linewidth=0.6, label="message"))
        legend(figure, handles)
    return figure


def shares(lanes: Sequence[Lane], window: Window) -> str:
    """Return a Markdown table with the share of the window that each role spends on each activity, in percent.

    Background activities are in separate columns; they overlap with the others.
    """
    spent: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for lane in lanes:
        counts = spent[lane.peer.role]
        for span in _inside(lane.spans(), window):
            counts[span.activity] += _seconds(span, window)
            counts["total"] += _seconds(span, window)
        for span in _inside(lane.background(), window):
            counts[f"{span.activity} in background"] += _seconds(span, window)
    names = [*_COLOR, *(f"{name} in background" for name in _COLOR)]
    used = [name for name in names if any(counts[name] for counts in spent.values())]
    lines = ["| % of the time | " + " | ".join(used) + " |", "|---|" + "---:|" * len(used)]
    for role, counts in spent.items():
        total = counts["total"] or 1
        cells = (f"{100 * counts[name] / total:.1f}" if counts[name] else "" for name in used)
        lines.append(f"| {role}s | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _inside(spans: Iterable[Span], window: Window) -> list[Span]:
    return [span for span in spans if span.stop > window.start and span.start < window.stop]


def _seconds(span: Span, window: Window) -> float:
    """Return how much of a span is inside the window."""
    return min(span.stop, window.stop) - max(span.start, window.start)


def _draw_lane(axes: Axes, bottom: float, height: float, spans: Sequence[Span], window: Window, scale: float) -> None:
    by_activity: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        start, stop = max(span.start, window.start), min(span.stop, window.stop)
        by_activity[span.activity].append(((start - window.start) * scale, (stop - start) * scale))
    for activity, bars in by_activity.items():
        axes.broken_barh(bars, (bottom, height), facecolor=_COLOR.get(activity, "#444444"), linewidth=0)


def _arrows(lanes: Sequence[Lane], window: Window) -> list[tuple[str, str, float, float]]:
    """Return the messages of the window: sender, receiver, start of sending, time of receipt."""
    ends: dict[tuple[str, str, int], dict[str, float]] = {}
    for lane in lanes:
        numbers: Counter[tuple[str, str]] = Counter()
        for span in lane.spans():
            if not span.other:
                continue
            sent = span.activity == "send"
            pair = (str(lane.peer), span.other) if sent else (span.other, str(lane.peer))
            key = (*pair, numbers[pair])
            numbers[pair] += 1
            if span.stop > window.start and span.start < window.stop:
                ends.setdefault(key, {})["left" if sent else "came"] = span.start if sent else span.stop
    return [(*key[:2], end["left"], end["came"]) for key, end in ends.items() if len(end) == 2]


def _draw_arrows(
    axes: Axes,
    arrows: Sequence[tuple[str, str, float, float]],
    place: Mapping[str, int],
    window: Window,
    scale: float,
) -> None:
    lines = [
        [((left - window.start) * scale, place[source]), ((came - window.start) * scale, place[to])]
        for source, to, left, came in arrows
    ]
    axes.add_collection(LineCollection(lines, colors="#555555", linewidths=0.5, alpha=0.6))


def _unit(seconds: float) -> tuple[str, float]:
    """Return the unit of the time axis, and its number per second."""
    return ("µs", 1e6) if seconds < 2e-3 else ("ms", 1e3) if seconds < 2 else ("s", 1.0)


def _label(lane: Lane, hosts: Sequence[str]) -> str:
    return f"{lane.peer} ({lane.host})" if len(hosts) > 1 else str(lane.peer)

"""The accuracy figure: a panel per attack (or what else is swept), a line per rule, over epochs, wall time or bytes."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpcps.errors import RunError
from hpcps.figures.sheet import Curve, Sheet, Values
from hpcps.figures.style import Look, looks

Against = Literal["epoch", "wall_time", "bytes"]

_RC: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text in the PDF
}
_WIDEST = 4
_MARKERS = 7
_MANY = 60
_ENTRY = 1.35
_TIED = "\N{NO-BREAK SPACE}"
_SECONDS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


@dataclass(frozen=True)
class _Axis:
    """What the x axis shows, in which unit."""

    against: Against
    label: str
    unit: float

    def of(self, curve: Curve) -> Values:
        values = {"epoch": curve.epoch, "wall_time": curve.wall, "bytes": curve.bytes_sent}[self.against]
        return values / self.unit


def draw(sheet: Sheet, against: Against = "epoch") -> Figure:
    """Draw test accuracy: a panel per panel of the sheet, a line per line, mean and range over the seeds."""
    axis = _axis(sheet, against)
    styles = looks(sheet.lines)
    rows = -(-len(sheet.panels) // _WIDEST)
    columns = -(-len(sheet.panels) // rows)
    width = max(2.35 * columns + 0.5, 4.8)
    heading = [f"{sheet.experiment}: accuracy by {against.replace('_', ' ')}"]
    for text in (sheet.facts.replace(" ", _TIED).replace(f"{_TIED}·{_TIED}", " · "), sheet.remark):
        heading += textwrap.wrap(text, int(12 * width), break_on_hyphens=False)
    with mpl.rc_context(_RC):
        figure = Figure(figsize=(width, 2.2 * rows + 0.8 + 0.16 * len(heading)), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        axes = list(grid.flat)
        for spare in axes[len(sheet.panels) :]:
            spare.remove()
        for place, (panel, curves) in enumerate(sheet.panels.items()):
            _draw_panel(axes[place], curves, axis, styles)
            axes[place].set_title(f"{' · '.join(sheet.panel_keys)}: {panel}" if panel else "")
            if place % columns == 0:
                axes[place].set_ylabel("test accuracy (%)")
            if place + columns >= len(sheet.panels):
                axes[place].set_xlabel(axis.label)
                axes[place].tick_params(labelbottom=True)
        axes[0].set_ylim(0, 100)
        axes[0].set_xlim(left=0)
        if against == "epoch":
            axes[0].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        figure.suptitle("\n".join(heading), fontsize=9)
        _legend(figure, sheet, styles)
    return figure


def save_all(sheets: Sequence[Sheet], folder: Path) -> list[Path]:
    """Write each sheet's figures, against epochs, wall time and bytes, as PNG and PDF; return the files.

    With several variants, those that differ from the experiment file have a short hash of how in their file names.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for sheet in sheets:
            digest = hashlib.sha256(sheet.variant.encode()).hexdigest()
            mark = f"-{digest[:6]}" if sheet.variant and len(sheets) > 1 else ""
            for against in ("epoch", "wall_time", "bytes"):
                figure = draw(sheet, against)
                for ending in ("png", "pdf"):
                    files.append(folder / f"accuracy_by_{against}{mark}.{ending}")
                    # No creation date: the same table gives the same file.
                    metadata = {"CreationDate": None} if ending == "pdf" else {}
                    with mpl.rc_context(_RC):
                        figure.savefig(files[-1], dpi=180, metadata=metadata)
    except OSError as error:
        raise RunError(f"cannot write figures to {folder}: {error.strerror}; choose another folder with -o") from error
    return files


def _draw_panel(axes: Axes, curves: Sequence[Curve], axis: _Axis, styles: dict[str, Look]) -> None:
    for position, curve in enumerate(curves):
        look, x = styles[curve.line], axis.of(curve)
        if curve.seeds > 1:
            axes.fill_between(x, curve.low, curve.high, color=look.color, alpha=0.15, linewidth=0)
        gap = max(1, len(x) // _MARKERS)
        axes.plot(
            x,
            curve.accuracy,
            label=curve.line,
            markevery=(position * gap // max(1, len(curves)), gap),
            clip_on=False,  # a line at 0 or 100 % keeps its width
            **look.options | {"linewidth": look.width * (0.7 if len(x) > _MANY else 1.0)},
        )
        if curve.diverged is not None:
            cross: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2.2, "zorder": 5}
            axes.plot(x[curve.diverged], curve.accuracy[curve.diverged], color=look.color, clip_on=False, **cross)


def _legend(figure: Figure, sheet: Sheet, styles: dict[str, Look]) -> None:
    """Name every line once, below all panels, and say what crosses and bands are where there are any."""
    curves = [curve for panel in sheet.panels.values() for curve in panel]
    handles = [Line2D([], [], label=line, **styles[line].options) for line in sheet.lines if sheet.line_key]
    if any(curve.diverged is not None for curve in curves):
        cross: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 7, "markeredgewidth": 2}
        handles.append(Line2D([], [], color="#555555", label="diverged", **cross))
    most = max(curve.seeds for curve in curves)
    if most > 1:
        handles.append(Line2D([], [], color="#999999", alpha=0.4, linewidth=6, label=f"range of {most} seeds"))
    if handles:
        rows = -(-len(handles) // int(figure.get_figwidth() / _ENTRY))
        figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // rows), handlelength=3.2)


def _axis(sheet: Sheet, against: Against) -> _Axis:
    if against == "epoch":
        return _Axis(against, "epoch", 1.0)
    name, units = ("wall time", _SECONDS) if against == "wall_time" else ("sent by all processes", _BYTES)
    plain = _Axis(against, name, 1.0)
    largest = max(np.max(plain.of(curve), initial=0.0) for panel in sheet.panels.values() for curve in panel)
    unit, symbol = [pair for pair in units if pair[0] * 2 <= largest or pair[0] == 1.0][-1]
    return _Axis(against, f"{name} ({symbol})", unit)

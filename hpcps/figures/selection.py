"""Selects the lines and panels to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpcps.errors import RunError
from hpcps.figures.figure_data import FigureData
from hpcps.figures.labels import SEPARATOR, of_value
from hpcps.figures.options import PlotOptions
from hpcps.registry.similarity import nearest


def select(shown: Sequence[FigureData], options: PlotOptions) -> list[FigureData]:
    """Return the figure data of each variant with the chosen lines and panels only, in the chosen order.

    Raises:
        RunError: no variant has a chosen line or panel; the message lists those that there are.
    """
    every_line = dict.fromkeys(line for figure_data in shown for line in _lines(figure_data))
    every_panel = dict.fromkeys(panel for figure_data in shown for panel in figure_data.panels)
    refuse_unknown({"line": (options.lines, every_line), "panel": (options.panels, every_panel)})
    return [_selected(figure_data, options) for figure_data in shown]


def refuse_unknown(chosen: Mapping[str, tuple[Sequence[str], Iterable[str]]]) -> None:
    """Check that there is something for each entry that the options choose.

    Args:
        chosen: the entries and the existing texts, by what they are: lines or panels.

    Raises:
        RunError: there is nothing for some entries; the message lists what there is.
    """
    mistakes = [
        mistake
        for what, (entries, known) in chosen.items()
        for mistake in _unknown(what, entries, dict.fromkeys(known))
    ]
    if mistakes:
        raise RunError("\n".join(["the figures cannot be drawn as chosen", *mistakes]))


def _selected(figure_data: FigureData, options: PlotOptions) -> FigureData:
    lines, panels = choose(_lines(figure_data), options.lines), choose([*figure_data.panels], options.panels)
    place = {line: position for position, line in enumerate(lines)}
    by_panel = {
        panel: tuple(
            sorted((one for one in figure_data.panels[panel] if one.line in place), key=lambda c: place[c.line])
        )
        for panel in panels
    }
    applied = {
        panel: tuple(sorted((a for a in figure_data.applied[panel] if a.line in place), key=lambda a: place[a.line]))
        for panel in panels
        if panel in figure_data.applied
    }
    classes = {
        panel: tuple(sorted((c for c in figure_data.classes[panel] if c.line in place), key=lambda c: place[c.line]))
        for panel in panels
        if panel in figure_data.classes
    }
    return replace(
        figure_data,
        lines=tuple(line for line in lines if line in figure_data.lines),
        all_lines=figure_data.lines,
        panels=by_panel,
        applied={panel: lines for panel, lines in applied.items() if lines},
        classes={panel: lines for panel, lines in classes.items() if lines},
        references=tuple(one for one in figure_data.references if one.line in place),
        compared=tuple(one for one in figure_data.compared if one.line in place and one.panel in panels),
        facts=with_left_out(
            figure_data.facts, lines=(lines, _lines(figure_data)), panels=(panels, [*figure_data.panels])
        ),
    )


def with_left_out(facts: str, **chosen: tuple[Sequence[str], Sequence[str]]) -> str:
    """Add to the description of runs how many lines and panels are shown, where some are left out."""
    parts = [f"{len(part)} of {len(whole)} {what}" for what, (part, whole) in chosen.items() if len(part) < len(whole)]
    return SEPARATOR.join([facts, *([f"{', '.join(parts)} shown"] if parts else [])])


def _lines(figure_data: FigureData) -> list[str]:
    return [*figure_data.lines, *(curve.line for curve in figure_data.references)]


def choose(known: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the texts that some entries choose, in the order of the entries; all of them without entries."""
    found = [text for entry in wanted for text in known if _means(entry, text)]
    return list(dict.fromkeys(found)) if wanted else list(known)


def _means(entry: str, text: str) -> bool:
    """Return whether an entry names a line or panel: its text, a part of it, its kind, or its name in the figure."""
    parts = text.split(SEPARATOR)
    return entry in (text, *parts, *(part.split(" ")[0].rstrip(":") for part in parts), *map(of_value, parts))


def _unknown(what: str, wanted: Sequence[str], known: dict[str, None]) -> list[str]:
    said = []
    for entry in wanted:
        if not any(_means(entry, text) for text in known):
            close = nearest(entry, known)
            guess = f": did you mean {close!r}?" if close else "."
            there = ", ".join(" ".join(text.split()) for text in known if text) or "one without a name"
            said.append(f"  {what}s: no {what} {entry!r}{guess} There are: {there}")
    return said

"""The options of figures, and the lines and panels that they choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from scipy.special import stdtrit

from hpcps.errors import RunError
from hpcps.figures.curve import Range, Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.labels import SEPARATOR, of_value
from hpcps.inputs import parse_toml, read_text
from hpcps.registry import Config
from hpcps.registry.similarity import nearest
from hpcps.spec.locate import line_of, locate
from hpcps.spec.overrides import parse_value

_LARGEST_FILE = 2**20


class PlotOptions(Config):
    """The options of figures. They are the keys of the file of `hpcps plot --style`, and keywords in Python."""

    width: float | None = Field(
        None, gt=0, le=100, description="Width of a figure in inches; by default it depends on the number of panels."
    )
    height: float | None = Field(
        None, gt=0, le=100, description="Height of a row of panels in inches; default: 1.9 to 2.9."
    )
    columns: int | None = Field(
        None, ge=1, le=100, description="Largest number of panels side by side; default: 4, less in a narrow `width`."
    )
    statistic: Literal["range", "deviation", "interval"] = Field(
        "range",
        description="The band around the mean of several seeds: `range`, from the lowest to the highest; `deviation`, "
        "one sample standard deviation to each side; `interval`, the confidence interval of the mean (Student's t).",
    )
    confidence: float = Field(0.95, gt=0, lt=1, description='Confidence level of `statistic = "interval"`.')
    lines: list[str] = Field(
        [],
        description="The lines (rules) to show, in the order of the legend: the value or its first word. Empty: all.",
    )
    panels: list[str] = Field([], description="The panels (attacks) to show, in this order: likewise. Empty: all.")
    names: dict[str, str] = Field(
        {}, description="Names of lines and panels in the figure, by their value in the file."
    )
    target: float | None = Field(
        None,
        gt=0,
        description="The accuracy in percent, or the perplexity of text, of `hpcps plot bytes`; default: the best "
        "final accuracy less 5, rounded down to a multiple of 5, or the best final perplexity plus 5 %.",
    )
    heading: bool = Field(True, description="Whether a heading describes the runs; papers have a caption instead.")

    def band_limits(self, values: Range) -> tuple[Values, Values]:
        """Return the lower and the upper end of the band of the chosen statistic."""
        if self.statistic == "range":
            return values.low, values.high
        known = np.ma.masked_invalid(values.seeds)
        count = known.count(axis=0)
        half = np.sqrt(np.ma.filled(known.var(axis=0), 0.0) * count / np.maximum(count - 1, 1))
        if self.statistic == "interval":
            quantile = stdtrit(np.maximum(count - 1, 1), (1 + self.confidence) / 2)
            half = half * quantile / np.sqrt(np.maximum(count, 1))
        return values.mean - half, values.mean + half

    @property
    def band(self) -> str:
        """The name of the statistic in a legend, before the number of seeds."""
        names = {"range": "range", "deviation": "mean ± standard deviation"}
        return names.get(self.statistic, f"{100 * self.confidence:g} % confidence interval")


def plot_options(values: Mapping[str, Any], where: str = "options of a figure", text: str = "") -> PlotOptions:
    """Check the options of a figure.

    Args:
        values: the options by key.
        where: the origin of the options, for messages.
        text: the TOML text that has them, to name lines.

    Raises:
        RunError: keys are unknown or values are wrong; the message lists all mistakes.
    """
    try:
        return PlotOptions.model_validate(dict(values))
    except ValidationError as error:
        lines = locate(text) if text else {}
        mistakes = [_mistake(each, where, lines) for each in error.errors()]
    raise RunError("\n".join(["the options of the figures have mistakes", *mistakes]))


def read_options(file: Path | None, overrides: Sequence[str] = ()) -> PlotOptions:
    """Read the options of a figure from a TOML file and from texts `key=value`, which override it.

    Raises:
        InputError: the file cannot be read, or is not TOML.
        RunError: the options have mistakes.
    """
    text = read_text(file, _LARGEST_FILE) if file else ""
    values = parse_toml(file, text) if file else {}
    given = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise RunError(f"--set expects key=value, such as heading=false; got {override!r}")
        try:
            given[name.strip()] = parse_value(value.strip())
        except ValueError as error:
            raise RunError(f"--set {override}: {error}") from error
    if file:
        plot_options({key: value for key, value in values.items() if key not in given}, str(file), text)
    return plot_options({**values, **given}, "--set" if given else str(file))


def _mistake(error: ErrorDetails, where: str, lines: Mapping[tuple[str | int, ...], int]) -> str:
    path = tuple(part for part in error["loc"] if not str(part).startswith(("function", "constrained")))
    place = f"{where}:{line_of(dict(lines), path)}" if lines else where
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if error["type"] == "extra_forbidden":
        close = nearest(key, PlotOptions.model_fields)
        guess = f": did you mean {close}?" if close else ""
        return f"  {place}: unknown key {key}{guess} The keys are {', '.join(PlotOptions.model_fields)}"
    said = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"  {place}: {key}: expects {said}, got {error['input']!r}"


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

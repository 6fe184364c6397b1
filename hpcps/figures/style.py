"""Line styles: a rule has the same style in every figure, distinguishable in grey and by the colour-blind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_hex

# Colours of Okabe and Ito (https://jfly.uni-koeln.de/color/), ordered so that neighbours differ in lightness too.
_BLACK, _ORANGE, _BLUE, _VERMILION = "#000000", "#E69F00", "#0072B2", "#D55E00"
_GREEN, _SKY, _PURPLE, _GREY = "#009E73", "#56B4E9", "#CC79A7", "#777777"
_DASHED, _DOTTED, _DASH_DOT = (0, (4.5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4))


@dataclass(frozen=True)
class Look:
    """Colour, dashes, marker and width (points) of a line."""

    color: str
    dashes: str | tuple[float, tuple[float, ...]]
    marker: str
    width: float = 1.5

    @property
    def options(self) -> dict[str, Any]:
        """The same for matplotlib's lines."""
        line = {"color": self.color, "linestyle": self.dashes, "linewidth": self.width}
        return line | {"marker": self.marker, "markersize": 3.6}


_KNOWN = {
    "average": Look(_BLACK, _DOTTED, "s"),
    "trimmed_mean": Look(_ORANGE, _DASH_DOT, "^"),
    "median": Look(_GREEN, _DASH_DOT, "v"),
    "phocas": Look(_BLUE, _DASHED, "D"),
    "zeno": Look(_VERMILION, "solid", "o", 2.0),
    "naive_async": Look(_BLACK, _DOTTED, "s"),
    "fed_async": Look(_SKY, _DASHED, "v"),
    "dc_asgd": Look(_PURPLE, _DASH_DOT, "P"),
    "zeno++": Look(_VERMILION, "solid", "o", 2.0),
    "ESync": Look(_VERMILION, "solid", "o", 2.0),
    "SSGD": Look(_BLACK, _DOTTED, "s"),
    "ASGD": Look(_BLUE, _DASHED, "D"),
    "DC-ASGD": Look(_GREEN, _DASH_DOT, "v"),
    "DyLU": Look(_ORANGE, _DASH_DOT, "^"),
    "standalone": Look(_GREY, _DASHED, "", 1.8),
    "base": Look(_BLACK, _DOTTED, "s"),
    "changed": Look(_VERMILION, "solid", "o", 2.0),
}

_OTHERS = (
    Look(_GREEN, "solid", "v"),
    Look(_PURPLE, _DASHED, "P"),
    Look(_BLUE, _DASH_DOT, "D"),
    Look(_ORANGE, "solid", "^"),
    Look(_BLACK, _DASHED, "s"),
    Look(_SKY, _DASH_DOT, ">"),
    Look(_GREY, "solid", "X"),
    Look(_VERMILION, _DOTTED, "o"),
)

_DASHES = ("solid", _DASHED, _DOTTED, _DASH_DOT)


def _unknown() -> tuple[Look, ...]:
    """Return the styles of other lines: the colours in turn, then once more with other dashes and markers."""
    taken = {(look.color, look.dashes) for look in _KNOWN.values()}
    found = [
        Look(look.color, _DASHES[(_DASHES.index(look.dashes) + turn) % len(_DASHES)], _OTHERS[place - turn].marker)
        for turn in range(len(_DASHES))
        for place, look in enumerate(_OTHERS)
    ]
    return tuple(look for look in found if (look.color, look.dashes) not in taken)


_REFERENCES = (Look(_GREY, _DASHED, "", 1.8), Look(_GREY, _DOTTED, "", 1.8), Look(_GREY, _DASH_DOT, "", 1.8))
_SIGNS: tuple[tuple[str, str | tuple[float, tuple[float, ...]]], ...] = (("Blues", "solid"), ("Oranges", _DASHED))
_MARKERS = "oDsv^P"


def looks(lines: Sequence[str], references: Sequence[str] = ()) -> dict[str, Look]:
    """Return the style of each line: a known rule has its own, other lines get the next free one; references are grey.

    Numbers of both signs, such as those of `zeno rho -0.1`, go from dark blue over black (zero) to dark orange.
    """
    others = [line for line in lines if line not in _KNOWN]
    free = _unknown()
    given = _by_sign(others) or {line: free[place % len(free)] for place, line in enumerate(others)}
    grey = {line: _REFERENCES[place % len(_REFERENCES)] for place, line in enumerate(references)}
    return {line: _KNOWN.get(line) or given[line] for line in lines} | grey


def _by_sign(lines: Sequence[str]) -> dict[str, Look]:
    """Colour lines that differ in a number by its sign and size; return nothing unless both signs occur."""
    try:
        numbers = {line: float(line.rpartition(" ")[2]) for line in lines}
    except ValueError:
        return {}
    if len({line.rpartition(" ")[0] for line in lines}) > 1:
        return {}
    if not min(numbers.values(), default=0.0) < 0 < max(numbers.values()):
        return {}
    given = {line: Look(_BLACK, _DOTTED, "X", 1.8) for line in lines}
    for sign, (colors, dashes) in zip((-1, 1), _SIGNS, strict=True):
        ranked = sorted((line for line in lines if sign * numbers[line] > 0), key=lambda line: -abs(numbers[line]))
        for place, line in enumerate(ranked):
            shade = 0.95 - 0.5 * place / max(1, len(ranked) - 1)
            given[line] = Look(to_hex(mpl.colormaps[colors](shade)), dashes, _MARKERS[place % len(_MARKERS)])
    return given

"""Line styles: a rule has the same style in every figure, distinguishable in grey and by the colour-blind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import matplotlib as mpl
from matplotlib.colors import hsv_to_rgb, to_hex

from hpcps.figures.labels import parse

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

_GOLDEN = 0.6180339887
"""The golden ratio: its multiples, modulo 1, are far from each other."""

_GREYS = (_GREY, "#444444", "#a6a6a6")


def _free() -> Iterator[Look]:
    """Yield the styles of other lines: all colours in turn, then with other dashes and markers, then new colours."""
    known = {(look.color, look.dashes) for look in _KNOWN.values()}
    for turn in count():
        for place, look in enumerate(_OTHERS):
            dashes = _DASHES[(_DASHES.index(look.dashes) + turn) % len(_DASHES)]
            color = look.color if turn < len(_DASHES) else _hue(place + len(_OTHERS) * turn)
            if (color, dashes) not in known:
                yield Look(color, dashes, _OTHERS[(place - turn) % len(_OTHERS)].marker)


def _hue(number: int) -> str:
    """Return one of many colours; colours of consecutive numbers differ much."""
    hue = number * _GOLDEN % 1
    red, green, blue = hsv_to_rgb((hue, 0.85, 0.55 + 0.35 * (number * _GOLDEN**2 % 1)))
    return to_hex((red, green, blue))


_SIGNS: tuple[tuple[str, str | tuple[float, tuple[float, ...]]], ...] = (("Blues", "solid"), ("Oranges", _DASHED))
_MARKERS = "oDsv^P"


def looks(lines: Sequence[str], references: Sequence[str] = ()) -> dict[str, Look]:
    """Return the style of each line: a known rule has its own, other lines get the next free one; references are grey.

    No two lines have the same colour and marker, so that they differ where the markers hide the dashes. Numbers of both
    signs, such as those of `zeno rho -0.1`, go from dark blue over black (zero) to dark orange.
    """
    kinds = Counter(parse(line)[0] for line in lines)
    # `trimmed_mean f 0.1` looks as the rule does elsewhere, if no other line is of this rule.
    alone = {line: _KNOWN[kind] for line in lines if kinds[kind := parse(line)[0]] == 1 and kind in _KNOWN}
    own = _by_sign([line for line in lines if line not in _KNOWN]) | alone | _KNOWN
    grey = dict(zip(references, _references(), strict=False))
    given: dict[str, Look] = {}
    taken = {(look.color, look.marker) for look in grey.values()}
    free = _free()
    # Lines with a style of their own keep it, wherever they stand among the others.
    for line in sorted(dict.fromkeys(lines), key=lambda line: line not in own):
        look = own.get(line) or next(free)
        while (look.color, look.marker) in taken:
            look = next(free)
        given[line] = look
        taken.add((look.color, look.marker))
    return {line: given[line] for line in lines} | grey


def _references() -> Iterator[Look]:
    """Yield greys without markers, then with markers."""
    for marker in ("", *(look.marker for look in _OTHERS)):
        for color, dashes in zip(_GREYS, _DASHES[1:], strict=True):
            yield Look(color, dashes, marker, 1.8)
    for number in count():
        yield Look(_hue(number), _DASHED, "", 1.8)


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

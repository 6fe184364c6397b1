"""Draws all figures of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from hpcps.figures.grid.best import draw_best
from hpcps.figures.grid.entered import draw_entered
from hpcps.figures.grid.ranking import draw_ranking
from hpcps.figures.grid.study import Study, selected
from hpcps.figures.grid.worst import draw_worst
from hpcps.figures.names import suffixes
from hpcps.figures.options import PlotOptions


def draw_grid(studies: Sequence[Study], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each figure of each variant: heat maps, a ranking, and bypass statistics.

    Raises:
        RunError: there is no rule or attack that the options choose.
    """
    endings = suffixes([study.figure_data.variant for study in studies])
    for whole, suffix in zip(studies, endings, strict=True):
        study = selected(whole, options)
        yield f"grid_worst{suffix}", draw_worst(study, options)
        if len(study.rules) > 1:
            yield f"grid_best{suffix}", draw_best(study, options)
            yield f"grid_ranking{suffix}", draw_ranking(study, options)
        if bypass := draw_entered(study, options):
            yield f"grid_bypass{suffix}", bypass

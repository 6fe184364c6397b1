"""The figure of a run with a quorum."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from hpcps.figures.participation import draw_participation


@pytest.mark.parametrize("workers", [1, 12, 300])
def test_the_legend_names_what_is_drawn_and_the_numbers_of_workers_do_not_touch(workers):
    counts = pd.DataFrame({"worker": range(workers), "rounds": 10, "in_time": 7, "missed": 3, "late": 0, "absent": 0})
    figure = draw_participation(counts.assign(staleness=np.nan), "x\nquorum 2")
    assert [each.get_text() for each in figure.legends[0].get_texts()] == ["in time", "missed"]
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))

"""A pre-aggregator of your own: `before = [{ kind = "direction" }]` in `[validation.rule]` puts it before a rule."""

from typing import Literal

import numpy as np

from hpcps.rules import PreAggregator


class Direction(PreAggregator):
    """Scales every update to norm 1, so that only its direction counts."""

    kind: Literal["direction"] = "direction"

    def weights(self, products, f, random):
        """Return the weight of each update in each resulting row, `[m, n]`, from their inner products `[n, n]`."""
        norms = np.sqrt(np.diagonal(products))
        return np.diag(1 / np.where(norms > 0, norms, 1))

"""An attack of your own that knows the honest updates: `attack = { kind = "beyond", rate = 0.3 }`."""

from typing import Literal

from pydantic import Field

from hpcps.attacks import Omniscient


class Beyond(Omniscient):
    """Every Byzantine worker sends the mean of the honest updates plus `by` standard deviations of each element."""

    kind: Literal["beyond"] = "beyond"
    by: float = Field(-1.5, description="Number of standard deviations.")

    def craft(self, honest, own, context):
        """Return what the Byzantine workers of one combiner send, `[d]`."""
        return honest.mean(axis=0) + self.by * honest.std(axis=0)

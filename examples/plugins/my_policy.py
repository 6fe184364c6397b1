"""A policy of local steps: every worker trains for the same time."""

from typing import Literal

from pydantic import Field

from hpcps.policies import Policy


class SameTime(Policy):
    """Every worker takes the local steps that it can take in a number of seconds, at least one."""

    kind: Literal["same_time"] = "same_time"
    seconds: float = Field(1.0, gt=0, description="Seconds of local steps in a round.")
    most: int = Field(100, ge=1, description="The largest number of local steps of a round.")

    def further_steps(self, asker, progress, now):
        """Return 1 while another step fits."""
        own = progress[asker]
        return 1 if own.c * (own.k + 1) <= self.seconds else 0

"""An attack of your own; `experiment.toml` beside this file uses it."""

from typing import Literal

from pydantic import Field

from hpcps.attacks import Attack


class Shift(Attack):
    """u becomes u + `by` in every element."""

    kind: Literal["shift"] = "shift"
    by: float = Field(0.1, description="What is added, in parameter units.")

    def corrupt(self, block, context):
        """Corrupt one block in place."""
        block += self.by

"""A server optimizer: the sign of a momentum decides how the model changes."""

from typing import Literal

from pydantic import Field

from hpcps.optimizers import ServerOptimizer


class Signed(ServerOptimizer):
    """Changes each weight by `lr` in the direction of the momentum."""

    kind: Literal["signed"] = "signed"
    lr: float = Field(0.01, gt=0, description="The change of each weight.")

    def initial(self):
        """Keep a momentum, which begins at zero."""
        return {"momentum": 0.0}

    def step(self, update, state, count):
        """Return the change of the model."""
        state["momentum"] += 0.1 * (update - state["momentum"])
        return self.lr * state["momentum"] / (abs(state["momentum"]) + 1e-12)

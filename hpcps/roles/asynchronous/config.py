"""The keys of asynchronous training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcps.config import Config

Share = Annotated[float, Field(ge=0, lt=1)]


class AlphaDecay(Config):
    """Step decay of alpha; epoch n means from the (n+1)th epoch on."""

    factor: float = Field(0.5, gt=0, description="Multiplier at each of the epochs.")
    epochs: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = Field(
        (), description="Epochs after which alpha is multiplied."
    )


class Proximal(Config):
    """The proximal step after every local step, x = (1 - rho) x + rho c with c the point the steps began at."""

    worker: Share = Field(0.0, description="rho of the workers; ZenoPS: 0.2.")
    validator: Share = Field(0.0, description="rho of validators under a rule that scores (others do not step).")


class Asynchronous(Config):
    """Asynchronous training; only with `train.mode = "async"`."""

    alpha: float = Field(0.4, gt=0, le=1, description="What is applied of an update.")
    alpha_decay: AlphaDecay = AlphaDecay()
    proximal: Proximal = Proximal()
    absent: Literal["accumulate", "reset"] = Field(
        "accumulate",
        description="A worker that does not participate in a cycle: `accumulate`: trains on from where it is, and its "
        "update grows; `reset`: gets the model and keeps its update as the residual.",
    )
    updates_per_refresh: Literal["share", "queued"] = Field(
        "queued",
        description="What a validator handles between two refreshes of its own model: `share` (artifact): as many "
        "workers' messages as it has workers, absent ones included; `queued`: all that wait, at least one.",
    )
    epochs: Literal["validator", "own"] = Field(
        "validator",
        description="Whose epochs the workers' learning rate and alpha decay by: `validator` 0's (worker 0's without "
        "validators), or each process's `own` (artifact; alpha then follows the validator that handles the update).",
    )

    def alpha_in(self, epoch: int) -> float:
        """Return alpha once so many epochs are over."""
        return float(self.alpha * self.alpha_decay.factor ** sum(epoch >= n for n in self.alpha_decay.epochs))

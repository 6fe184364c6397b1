"""The keys of asynchronous training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcps.registry.config import MOST, Config

Share = Annotated[float, Field(ge=0, lt=1)]


class AlphaDecay(Config):
    """Step decay of alpha; epoch n means from the (n+1)th epoch on."""

    factor: float = Field(0.5, gt=0, le=10, description="Multiplier at each of the epochs.")
    epochs: Annotated[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], Field(strict=False, max_length=100)] = Field(
        (), description="Epochs after which alpha is multiplied."
    )


class Proximal(Config):
    """The proximal step after every local step: x = (1 - rho) x + rho c, where c is the start of the local steps."""

    worker: Share = Field(0.0, description="rho of the workers; ZenoPS: 0.2.")
    validator: Share = Field(
        0.0, description="rho of validators under a rule that needs a reference (other validators do not train)."
    )


class Asynchronous(Config):
    """Asynchronous training; only with `train.mode = "async"`."""

    alpha: float = Field(0.4, gt=0, le=1, description="Factor on an applied update.")
    alpha_decay: AlphaDecay = AlphaDecay()
    proximal: Proximal = Proximal()
    absent: Literal["accumulate", "reset"] = Field(
        "accumulate",
        description="What a worker does in a cycle in which it does not participate: `accumulate`: continues to train "
        "from its own network, and its update grows; `reset`: gets the model and keeps its update as the residual.",
    )
    updates_per_refresh: Literal["share", "queued"] = Field(
        "queued",
        description="Number of messages that a validator handles between two refreshes of its model: `share` "
        "(artifact): as many as it has workers, including messages of absent workers; `queued`: all messages in its "
        "queue, at least one.",
    )
    epochs: Literal["validator", "own"] = Field(
        "validator",
        description="Epochs that determine the workers' learning rate and alpha: those of `validator` 0 (of worker 0 "
        "without validators), or each process's `own` (artifact; alpha then follows the validator that handles the "
        "update).",
    )

    def alpha_in(self, epoch: int) -> float:
        """Return alpha after this number of epochs."""
        return float(self.alpha * self.alpha_decay.factor ** sum(epoch >= n for n in self.alpha_decay.epochs))

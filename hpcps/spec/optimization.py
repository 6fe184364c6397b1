"""The keys of the optimizer of the local steps, of its learning rate, and of asynchronous training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcps.optimizers import NoOptimizer, ServerOptimizer
from hpcps.registry import OneOf
from hpcps.registry.config import LARGEST_RATE, MOST, MOST_ROLES, Config
from hpcps.rules.asynchronous import Constant, Hinge, Polynomial

Beta = Annotated[float, Field(ge=0, lt=1)]
Epochs = Annotated[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], Field(strict=False, max_length=100)]


class Optimizer(Config):
    """The optimizer of the local steps; its state stays in its process."""

    name: Literal["sgd", "nag", "adam", "adamw", "muon"] = Field(
        "nag",
        description="sgd (momentum), nag (Nesterov), adam, adamw (adam with decoupled weight decay), or muon (the "
        "steps of hidden layers are orthogonal matrices, and the other parameters have adamw).",
    )
    lr: float = Field(0.1, gt=0, le=LARGEST_RATE, description="Learning rate before any decay.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd, nag and muon; papers on muon have 0.95.")
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = Field(
        (0.9, 0.999), description="Decay rates of adam and adamw, and in muon of adamw."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=LARGEST_RATE,
        description="Weight decay, on every tensor: L2 in the gradient; with adamw and muon each step multiplies the "
        "weights by 1 - learning rate * weight_decay.",
    )

    @property
    def largest_rate(self) -> float:
        """The largest factor of a step, of which no schedule has multiplied the rate.

        The first step of adam divides the rate by 1 - betas[0]; each of adamw multiplies the weights by the decay.
        """
        rate = self.lr / (1 - self.betas[0]) if self.adaptive else self.lr
        return max(rate, self.lr * self.weight_decay if self.name in ("adamw", "muon") else 0.0)

    @property
    def adaptive(self) -> bool:
        """Whether a step divides a gradient by a second moment; with muon, those of some parameters."""
        return self.name in ("adam", "adamw", "muon")


class ServerStep(Config):
    """What the servers do with a combined update."""

    optimizer: Annotated[ServerOptimizer, OneOf("optimizers")] = Field(
        NoOptimizer(),
        description="How a combined update changes the model, after the rule has combined it; a name, or a table.",
    )


class LrDecay(Config):
    """Decay of the learning rate; an epoch is one of that role, and epoch n takes effect from the (n+1)th on."""

    schedule: Literal["steps", "cosine"] = Field(
        "steps",
        description="`steps`: the rate is multiplied by `factor` after each of `epochs`; `cosine`: from the end of the "
        "warm-up to the end of the run it falls by half a period of the cosine (Loshchilov, Hutter, 2017).",
    )
    factor: float = Field(0.1, gt=0, le=10, description="`steps`: the multiplier at each of the epochs.")
    epochs: Epochs = Field((), description="`steps`: epochs after which the rate is multiplied.")
    validator_epochs: Epochs | None = Field(None, description="The same for validators; default: `epochs`.")
    final: float = Field(0.0, ge=0, le=1, description="`cosine`: the fraction of the rate at the end of the run.")


class WarmUp(Config):
    """Linear warm-up of the learning rate."""

    epochs: int = Field(0, ge=0, le=MOST, description="Epochs over which the rate rises; 0: none.")
    start: float = Field(0.1, gt=0, le=1, description="Fraction of the rate at the first step.")


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
    buffer: int | None = Field(
        None,
        ge=2,
        le=MOST_ROLES,
        description="The servers collect so many updates, and then combine them by a synchronous rule; alpha "
        "multiplies the result. Default: none, each update enters the model alone, by an asynchronous rule.",
    )
    staleness: Annotated[Constant | Polynomial | Hinge, Field(discriminator="kind")] = Field(
        Constant(),
        description="With `buffer`: the factor on an update as a function s(t) of its staleness t, which counts the "
        "changes of the model since the version from which it was made.",
    )
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

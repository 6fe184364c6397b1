"""How the local steps of a worker become an update, and what the worker keeps of it for later rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from hpcps.compression import Codec
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, private
from hpcps.numerics.vectors import finite, on_host
from hpcps.roles.update.choice import Choice
from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer


class UpdateMemory(ABC):
    """Makes an update of the difference that the local steps made, and keeps what is not sent of it.

    Attributes:
        values: the update `[d]`; once it is packed, what is kept of it.
    """

    @staticmethod
    def of(run: Run, layout: Layout, codec: Codec | None, local: Allocate) -> UpdateMemory:
        """Return the memory of a worker, which its compressor chooses; `local` allocates the update."""
        if codec is None or not codec.feeds_back:
            return ErrorReset(layout, local)
        return ErrorFeedback(run, layout, codec.momentum, local)

    def __init__(self, layout: Layout, local: Allocate) -> None:
        self._layout = layout
        self.values = local(layout.size)
        self.values[:] = 0

    @abstractmethod
    def take(self, trainer: Trainer, base: Vector, choice: Choice) -> Vector:
        """Return the update of the local steps from `base` `[d]` on; `choice` says what becomes of it."""

    @abstractmethod
    def release(self, sent: Mask, attacked: Mask) -> None:
        """Forget what is sent of the update, once it is packed; the blocks `attacked` are not the worker's own."""

    @property
    @abstractmethod
    def errors(self) -> Vector | None:
        """What gets the errors of the encoding `[d]`; None if they are not kept."""

    @property
    @abstractmethod
    def residual(self) -> Vector | None:
        """What is added to the next model `[d]`; None for nothing."""

    @abstractmethod
    def arrays(self) -> dict[str, Vector]:
        """Return what a checkpoint contains."""

    @abstractmethod
    def restore(self, arrays: dict[str, Vector]) -> None:
        """Restore it."""


class ErrorReset(UpdateMemory):
    """Sends Δ, the difference of the steps; blocks that are not sent are the residual e, which enters the next model.

    So the next difference contains them. (ZenoPS; error reset: Xie et al., CSER, 2020.)
    """

    def __init__(self, layout: Layout, local: Allocate) -> None:
        super().__init__(layout, local)
        self._keeps = False

    def take(self, trainer: Trainer, base: Vector, choice: Choice) -> Vector:
        trainer.copy_to(self.values)
        self.values -= base
        if choice.discarded:
            self.values[:] = 0
        self._keeps = choice.withheld or not choice.sent.all()
        return self.values

    def release(self, sent: Mask, attacked: Mask) -> None:
        if self._keeps:
            for start, stop in self._layout.runs(sent):
                self.values[start:stop] = 0

    @property
    def errors(self) -> Vector | None:
        return None

    @property
    def residual(self) -> Vector | None:
        return self.values if self._keeps else None

    def arrays(self) -> dict[str, Vector]:
        return {"residual": on_host(self.values)} if self._keeps else {}

    def restore(self, arrays: dict[str, Vector]) -> None:
        # A residual of zeros stays one: the commitment of a worker to its state says whether there is one.
        residual = arrays.get("residual")
        self._keeps = residual is not None
        self.values[:] = 0 if residual is None else residual


class ErrorFeedback(UpdateMemory):
    """Adds each difference to the residual and sends that; what the encoding loses, and what is not sent, remains.

    What the worker has sent and the residual add up to the differences of all its steps (Seide et al., 2014). With
    `nesterov`, Δ + μm replaces the difference Δ, where m ← μm + Δ.
    """

    def __init__(self, run: Run, layout: Layout, decay: float, local: Allocate) -> None:
        super().__init__(layout, local)
        self._steps = private(layout.size)
        self._decay = np.float32(decay)
        self._momentum = np.zeros(layout.size if decay else 0, np.float32)
        # A worker whose update grows goes on from its own network, whose next difference contains these steps.
        self._grows = run.train.mode == "async" and run.asynchronous.absent == "accumulate"

    def take(self, trainer: Trainer, base: Vector, choice: Choice) -> Vector:
        if not (choice.withheld and self._grows) and not choice.discarded:
            trainer.copy_to(self._steps)
            self._steps -= base
            self._add()
        return self.values

    def _add(self) -> None:
        """Add the steps to the residual; they replace it in blocks in which it is not finite."""
        if self._momentum.size:
            self._momentum *= self._decay
            self._momentum += self._steps
            if not finite(self._momentum):
                self._momentum[~np.isfinite(self._momentum)] = 0
            self._steps += self._decay * self._momentum
        self.values += self._steps
        if not finite(self.values):
            for block in self._layout.blocks:
                part = slice(block.offset, block.stop)
                if not finite(self.values[part]):
                    self.values[part] = self._steps[part]

    def release(self, sent: Mask, attacked: Mask) -> None:
        for start, stop in self._layout.runs(attacked & sent):
            self.values[start:stop] = 0

    @property
    def errors(self) -> Vector | None:
        return self.values

    @property
    def residual(self) -> Vector | None:
        return None

    def arrays(self) -> dict[str, Vector]:
        momentum = {"momentum": self._momentum.copy()} if self._momentum.size else {}
        return {"residual": on_host(self.values), **momentum}

    def restore(self, arrays: dict[str, Vector]) -> None:
        self.values[:] = arrays["residual"]
        if self._momentum.size:
            self._momentum[:] = arrays["momentum"]

"""A role that trains: what workers and validators have in common in every run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

from hpcps.numerics.layout import Vector
from hpcps.numerics.state import Kept, State
from hpcps.protocol.messages import Peer
from hpcps.roles.events import Effect
from hpcps.roles.local_training import LocalTraining
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.resources import Resources
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class TrainingRole(ABC):
    """A worker or a validator. A subclass says how it takes local steps, and what it does after them."""

    def __init__(
        self,
        peer: Peer,
        run: Run,
        run_id: str,
        trainer: Trainer,
        resources: Resources,
        inbox: ModelInbox | None = None,
    ) -> None:
        """Prepare the role; `inbox` is the next model, by default that of the servers."""
        self.peer = peer
        self.device = trainer.device
        self._run = run
        self._run_id = run_id
        self._trainer = trainer
        self._training = LocalTraining(self, run, run_id, trainer, resources, inbox)

    @property
    def round(self) -> int:
        """The round, cycle or refresh it is in."""
        return self._training.round

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether this process keeps the checkpoints of the run; by default another one does."""
        return False

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        self._training.restore(state)

    @abstractmethod
    def take_steps(self, steps: int) -> Progress:
        """Take so many local steps."""

    @abstractmethod
    def after_steps(self) -> Iterator[Effect]:
        """Go on once the local steps of a round are done."""

    @property
    @abstractmethod
    def kept(self) -> Mapping[str, Kept]:
        """The parts of the role that belong in its checkpoint, by name."""

    @property
    def residual(self) -> Vector | None:
        """What is added to every model `[d]`; None for nothing."""
        return None

    def see_model(self, read: Callable[[Vector], None]) -> None:  # noqa: B027
        """Take note of a model that the role adopts, if it cares; `read` writes it into a vector."""

    def evaluation_fields(self) -> dict[str, object]:
        """Return what the role adds to the record of an evaluation."""
        return {}

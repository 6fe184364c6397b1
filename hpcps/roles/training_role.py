"""A role that trains: what workers and validators have in common in every run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np

from hpcps.errors import RunError
from hpcps.numerics.layout import Vector
from hpcps.numerics.state import Kept, State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import Description, InitialModel, Peer, Statistics
from hpcps.protocol.roster import Roster, shards_of
from hpcps.roles.checks import rejection
from hpcps.roles.events import Effect, Send
from hpcps.roles.local_training import LocalTraining
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.resources import Resources
from hpcps.roles.stages import StageTable
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.schedule import learning_rate, schedule_of
from hpcps.training.trainer import Trainer


class TrainingRole(MessagingRole):
    """A worker or a validator. A subclass says how it takes local steps, and what it does after them.

    Attributes:
        stages: the table of its stages.
    """

    stages: ClassVar[StageTable]

    def __init__(
        self,
        peer: Peer,
        run: Run,
        trainer: Trainer,
        resources: Resources,
        inbox: ModelInbox | None = None,
    ) -> None:
        """Prepare the role; `inbox` is the next model, by default that of the servers."""
        super().__init__(peer, run)
        self.device = trainer.device
        self._trainer = trainer
        self._training = LocalTraining(self, run, trainer, resources, inbox)

    @property
    def round(self) -> int:
        """The round, cycle or refresh it is in."""
        return self._training.round

    @property
    def steps_before_model(self) -> int:
        """Local steps taken before the first model comes, as in ZenoPS's artifact."""
        return 1 if self._run.train.first_step == "overwritten" else 0

    @property
    def epoch(self) -> int:
        """The epochs of the role's own steps that are over."""
        return self._trainer.steps_done // self._trainer.steps_per_epoch

    @property
    def rate_epoch(self) -> int | None:
        """The epochs that are over for the learning rate; None if those of the role's own steps count.

        With a policy of local steps they are those of the run, so that all roles decay their rates together; and so
        they are where workers miss rounds.
        """
        if self._run.misses_rounds and self.peer.role == "worker" and not self._counts_every_round:
            return self._training.ended()
        return self._training.epochs_over if self._run.train.policy is not None else None

    @property
    def _counts_every_round(self) -> bool:
        """Whether a worker that may miss rounds has missed none, and so counts its own steps as in other runs."""
        if self._run.has_quorum and not self._training.is_coordinator:
            return False
        return not self._run.survive.workers or self._trainer.steps_done >= self._training.steps_before(self.round)

    def state(self, evaluated: int) -> State:
        """Return the role's part of a checkpoint, in which so many epochs have been evaluated."""
        kept = {name: part.state() for name, part in self._all_kept.items()}
        facts = {"round": self.round, "evaluated": evaluated}
        return State(facts=facts).having(trainer=self._trainer.state(), **kept)

    def restore(self, state: State) -> None:
        """Go on from a checkpoint: wait for the model, as between two rounds."""
        self._trainer.restore(state.part("trainer"))
        for name, part in self._all_kept.items():
            part.restore(state.part(name))
        self._training.resume(state.facts["round"], state.facts["evaluated"])

    def initial_messages(self, statistics: bool) -> Iterator[Effect]:
        """Send the servers the initial weights, and servers and adversaries what they need to know of the model."""
        training, layout, roster = self._training, self._trainer.layout, Roster.of(self._run)
        if self.peer.role == "validator":
            # A step that a validator took before is part of the initial model; a worker's step is not.
            self._trainer.copy_to(training.base)
        table, steps = layout.to_json(), self._trainer.steps_per_epoch
        for adversary in roster.adversaries():
            yield Send(adversary, Description(layout=table, steps_per_epoch=steps, statistics=statistics))
        shards = shards_of(self._run, layout)
        for server in roster.all_servers():
            start, stop = shards[server.index]
            initial = InitialModel(
                shard=server.index, layout=table, steps_per_epoch=steps, statistics=statistics,
                values=training.base[start:stop],
            )  # fmt: skip
            yield Send(server, initial)

    @abstractmethod
    def take_steps(self, steps: int) -> Progress:
        """Take so many local steps."""

    def duration_factor(self) -> float:
        """Return the factor on its seconds per step in its reports to a policy of local steps."""
        return 1.0

    @abstractmethod
    def after_steps(self) -> Iterator[Effect]:
        """Go on once the local steps of a round are done."""

    @property
    def _all_kept(self) -> Mapping[str, Kept]:
        evaluator = self._training.evaluator
        return {**self.kept, **({} if evaluator is None else {"evaluator": evaluator})}

    @property
    @abstractmethod
    def kept(self) -> Mapping[str, Kept]:
        """The parts of the role that belong in its checkpoint, by name."""

    @property
    def residual(self) -> Vector | None:
        """What is added to every model `[d]`; None for nothing."""
        return None

    def see_model(self, read: Callable[[Vector], None]) -> None:
        """Take note of a model that the role adopts, if it cares; `read` writes it into a vector."""

    def evaluation_fields(self) -> dict[str, object]:
        """Return what the role adds to the record of an evaluation."""
        return {}

    def send_statistics(self) -> Iterator[Effect]:
        """Send a worker's BatchNorm statistics to the coordinator, which averages them."""
        training = self._training
        if self.peer.role == "worker" and not training.is_coordinator:
            message = Statistics(round=self.round, values=self._trainer.statistics)
            yield Send(Roster.of(self._run).coordinator, message)

    def fields_of_evaluation(self) -> dict[str, object]:
        """Return what the role adds to the record of an evaluation, with the learning rate if the run decides it."""
        if self.rate_epoch is None:
            return self.evaluation_fields()
        train, trainer = schedule_of(self._run, self.peer.role, self.peer.index), self._trainer
        rate = learning_rate(train, trainer.steps_done, trainer.steps_per_epoch, self.rate_epoch)
        return {"learning_rate": rate, **self.evaluation_fields()}

    def loss_of_round(self) -> Callable[[Vector], float]:
        """Return a function of a vector `[d]`: the loss, on one batch, of the model of this round plus the vector."""
        measure, base = self._trainer.loss_on(self.round), self._training.base

        def loss(update: Vector) -> float:
            if np.shape(update) != base.shape:
                raise ValueError(f"loss takes a vector of {base.size} elements, not one of shape {np.shape(update)}")
            with np.errstate(over="ignore", invalid="ignore"):
                return measure(np.add(on_host(base), update).astype(np.float32))

        return loss

    def unusable(self, source: Peer, reason: str) -> RunError:
        """Return the error of a message that the role cannot go on without."""
        unit = "round" if self._run.train.mode == "sync" else "cycle"
        return RunError(f"{self.peer} cannot use what {source} sent in {unit} {self.round}: {reason}")

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Record a bad message; the run cannot go on without a server's."""
        if source.role == "server":
            raise self.unusable(source, reason)
        yield rejection(source, reason)

"""What the workers of both modes of training have in common: an update is made of local steps, and sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial

from hpcps.numerics.layout import Vector
from hpcps.numerics.state import Kept, Position, State
from hpcps.protocol.messages import Peer
from hpcps.roles.events import Compute, Computed, Effect, Event, Now, Pause, Resumed
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.resources import Resources
from hpcps.roles.stages import Trigger
from hpcps.roles.training_role import TrainingRole
from hpcps.roles.update.packer import Packed, Packer
from hpcps.roles.update.partitions import UpdatePart
from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer


class Worker(TrainingRole):
    """A worker: it makes an update of its local steps; its packer keeps what it did not send.

    ZenoPS's c is the base of the training, x is the trainer's model, Δ and e are the packer's.
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        trainer: Trainer,
        resources: Resources,
        combiners: tuple[Peer, ...],
        inbox: ModelInbox | None = None,
    ) -> None:
        """Prepare a worker that sends its updates to `combiners`."""
        self._packer = Packer(peer, run, combiners, trainer.layout, resources.allocate, resources.local)
        self._packed: Packed | None = None
        self._beginning: Position | None = None  # a replacement may be told twice where it begins
        super().__init__(peer, run, trainer, resources, inbox)

    @property
    def kept(self) -> Mapping[str, Kept]:
        return {"packer": self._packer}

    def restore(self, state: State) -> None:
        if "position" in state.facts:  # it was lost, or it joins
            self.go_to(state.facts["round"], state.facts["position"], state.facts.get("lost", 0))
        else:
            super().restore(state)

    def go_to(self, round: int, position: Position | None, evaluated: int = 0) -> None:
        """Wait for the model of a round in the place of a lost worker.

        Args:
            round: the round.
            position: that of the lost worker after its last answer that entered a round, see `Update`; None if none
                did.
            evaluated: the epochs whose evaluations are recorded, for the coordinator.
        """
        if self._beginning is None:
            self._beginning = self.position()
        if (place := position or self._beginning) is not None:
            self._trainer.go_to(place["data"])
            self._packer.go_to(place)
        self._training.resume(round, evaluated)

    def take_over(self, part: State) -> None:
        """Begin with the residual and the momentum of a lost worker, as its part of a checkpoint has them."""
        self._packer.memory.restore(part.part("packer").arrays)
        self._trainer.restore_optimizer(part.part("trainer"))

    def position(self) -> Position | None:
        """Return where a replacement goes on after the present update, if the run survives the loss of workers."""
        return {"data": self._trainer.position(), **self._packer.position()} if self._run.survive.workers else None

    @property
    def residual(self) -> Vector | None:
        return self._packer.residual

    def see_model(self, read: Callable[[Vector], None]) -> None:
        self._packer.attacker.see_model(read)

    def after_steps(self) -> Iterator[Effect]:
        """Make the update of the local steps."""
        training = self._training
        training.on(Trigger.STEPS_DONE)
        pack = partial(
            self._packer.pack, self._trainer, training.base, self.round, training.epochs_over, training.abandoned
        )
        yield Compute("pack", pack, elements=training.base.size)

    @abstractmethod
    def after_packing(self, packed: Packed) -> Iterator[Effect]:
        """Go on with the update once it is packed, and delayed if the experiment says so."""

    def _go_on(self, event: Event) -> Iterator[Effect]:
        """React to an event of the own training and packing."""
        match event:
            case Computed("pack", packed):
                self._packed = packed
                yield from (Pause(packed.delay),) if packed.delay else self.after_packing(packed)
            case Resumed():
                assert self._packed is not None, "it has been packed"
                yield from self.after_packing(self._packed)
            case _:
                yield from self._training.handle(event)

    def encoded(self, packed: Packed, place: int) -> Generator[Effect, None, UpdatePart]:
        """Return the encoded partition at a place in `packed.parts`; others are on their way meanwhile."""
        parts = [packed.parts[place]]
        if self._packer.encodes and not packed.encoded:

            def encode() -> None:
                parts[0] = self._packer.encode(packed, place)

            yield Now("pack", encode, elements=parts[0].payload.size)
        return parts[0]

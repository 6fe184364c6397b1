"""Events, which a role handles, and effects, which it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Message, Peer
from hpcps.protocol.received import Lost, Malformed, Operation, Received, Reduced, Replaced
from hpcps.training.evaluation import Evaluation


class Start(NamedTuple):
    """The run begins.

    Attributes:
        arrived: when the role gets it, as in `Received`.
    """

    arrived: float = 0.0


class Computed(NamedTuple):
    """A `Compute` or `InBackground` effect is done.

    Attributes:
        task: the task of the effect.
        result: what its work returned.
        time: when it was done, in seconds since the role's record began.
        seconds: how long a `Compute` took, with an imposed slowdown or step time.
        overran: whether the computation alone took longer than its imposed time.
        arrived: when the role gets it, as in `Received`.
    """

    task: str
    result: Any
    time: float = 0.0
    seconds: float = 0.0
    overran: bool = False
    arrived: float = 0.0


class Resumed(NamedTuple):
    """A `Pause` is over.

    Attributes:
        arrived: when the role gets it, as in `Received`.
    """

    arrived: float = 0.0


@dataclass(frozen=True)
class Idle:
    """All messages that had come by the time of a `Drain` have been handled."""


@dataclass(frozen=True)
class StopRequested:
    """The run is to stop at a checkpoint, to be resumed later; only the checkpoint coordinator gets this event.

    Attributes:
        at_epoch: whether it is to stop where an epoch ends, to be resumed with another number of workers.
    """

    at_epoch: bool = False


class Snapped(NamedTuple):
    """A `Snapshot` is written.

    Attributes:
        position: the round, or the place in the servers' log.
        checksum: the checksum of what was written.
        arrived: when the role gets it, as in `Received`.
    """

    position: int
    checksum: str
    arrived: float = 0.0


Event = Start | Received | Malformed | Lost | Replaced | Reduced | Computed | Resumed | Idle | StopRequested | Snapped


@dataclass(frozen=True)
class Send:
    """Send a message; its payload must not change before its receiver has answered, or at all if no answer comes."""

    to: Peer
    message: Message


@dataclass(frozen=True)
class Join:
    """Prepare the reductions of these peers, which are the same for all of them; each does so when it starts."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True)
class Reduce:
    """Reduce an array with those of all peers of the `Join`, element by element, then pass `Reduced`.

    Attributes:
        values: the array, float64 or int64 and of the same size for all; it is overwritten with the result.
        operation: how elements are combined. Its order is not defined, so it must be exact.
        soon: whether all peers are about to do the same, so that nobody waits for one that computes.
    """

    values: NDArray[Any]
    operation: Operation
    soon: bool = False


@dataclass(frozen=True)
class Compute:
    """Run a computation, then pass its result as `Computed`. A handler must yield nothing after it.

    Attributes:
        task: `train`, `evaluate`, `combine`, `pack`, `craft`, `audit` or `adopt`; the record accounts the time to it.
        work: what to run.
        steps: the number of its local steps, for the clock of a simulation.
        load: the samples of each of them as a multiple of the usual number, for that clock.
        elements: the number of elements of models or updates that it reads, for the clock of a simulation.
        slowdown: the factor on the time that it takes.
        least: the imposed time: it ends no sooner than so many seconds after its start; excludes a slowdown.
    """

    task: str
    work: Callable[[], Any]
    steps: int = 0
    load: float = 1.0
    elements: int = 0
    slowdown: float = 1.0
    least: float = 0.0


@dataclass(frozen=True)
class Now:
    """Run a computation; the role goes on as soon as it is done.

    Attributes:
        task: `apply`, or `pack` for the encoding of a partition; the record accounts the time to it.
        work: what to run.
        elements: the number of elements of models or updates that it reads, for the clock of a simulation.
    """

    task: str
    work: Callable[[], None]
    elements: int = 0


@dataclass(frozen=True)
class InBackground:
    """Run a computation in the background, then pass its result as `Computed`; one at a time.

    It must touch nothing that the role changes meanwhile. Where all roles share a process it runs at once.

    Attributes:
        task: as in `Compute`.
        work: what to run.
        cancel: makes `work` end early; called from another thread when the run fails or is stopped.
    """

    task: str
    work: Callable[[], Any]
    cancel: Callable[[], None]


@dataclass(frozen=True)
class AwaitBackground:
    """Wait for the end of the background computation: its `Computed` is handled before the next effect."""


@dataclass(frozen=True)
class Pause:
    """Get `Resumed` after so many seconds; messages are handled meanwhile. One pause at a time."""

    seconds: float


@dataclass(frozen=True)
class Drain:
    """Get `Idle` as soon as no message waits."""


@dataclass(frozen=True)
class SetDeadline:
    """From now on the role waits for these peers; if they stay silent too long, the run fails and names them.

    Attributes:
        waiting_for: the peers.
        limited: whether the wait has a limit. It has none where others, who wait for the same peers, have one.
    """

    waiting_for: tuple[Peer, ...]
    limited: bool = True


@dataclass(frozen=True)
class Record:
    """Write a line to the role's record.

    Attributes:
        event: its event.
        fields: its fields.
        model: returns the model that it describes `[d]`, for an observer; the line does not contain it.
    """

    event: str
    fields: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], Vector] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Save:
    """Save an array in the run's folder under this name."""

    name: str
    values: Vector


@dataclass(frozen=True)
class SaveEvaluation:
    """Save an evaluation in the run's folder as that of its latest model."""

    evaluation: Evaluation


@dataclass(frozen=True)
class Snapshot:
    """Write this process's part of a checkpoint, then pass `Snapped`."""

    position: int
    state: State


@dataclass(frozen=True)
class Seal:
    """Complete a checkpoint, all of whose parts are written.

    Attributes:
        position: see `Snapped`.
        checksums: the checksum of every process's part, by the process's name.
        lasting: whether it must survive a power failure; else it was made for `checkpoint.rounds` alone.
    """

    position: int
    checksums: dict[str, str]
    lasting: bool = True


@dataclass(frozen=True)
class Finish:
    """The role is done; a suspended one can be resumed from the checkpoint."""

    suspended: bool = False


Effect = (
    Send
    | Join
    | Reduce
    | Compute
    | Now
    | InBackground
    | AwaitBackground
    | Pause
    | Drain
    | SetDeadline
    | Record
    | Save
    | SaveEvaluation
    | Snapshot
    | Seal
    | Finish
)


class Role(Protocol):
    """A role of a run."""

    peer: Peer
    run_id: str

    @property
    def round(self) -> int:
        """The round, cycle or place in the log that it is at."""
        ...

    @property
    def device(self) -> str:
        """Where it computes, such as `cpu` or `cuda:0`."""
        ...

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event; effects are carried out in order, as they are yielded."""
        ...

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether it decides when the run's processes write checkpoints, and seals them."""
        ...

    def restore(self, state: State) -> None:
        """Restore the state of a `Snapshot`, before `Start`."""
        ...

"""What happens to a role, and what a role asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpcps.layout import Vector
from hpcps.messages import Malformed, Message, Peer, Received
from hpcps.state import State


@dataclass(frozen=True)
class Start:
    """The run begins."""


@dataclass(frozen=True)
class Computed:
    """The `Compute` or `Aside` effect of this task is done.

    Attributes:
        task: which.
        result: what its work returned.
        time: when it was done, in seconds since the role's record began: what a line says that is written later.
    """

    task: str
    result: Any
    time: float = 0.0


@dataclass(frozen=True)
class Resumed:
    """The pause that the role asked for is over."""


@dataclass(frozen=True)
class Idle:
    """Everything that had come when the role asked for it with `Drain` has been handled."""


@dataclass(frozen=True)
class StopRequested:
    """The run shall stop, at a checkpoint from which it can go on; only the keeper of the checkpoints hears it."""


@dataclass(frozen=True)
class Snapped:
    """The `Snapshot` effect of this moment is done.

    Attributes:
        moment: the round, or the place in the servers' log.
        checksum: of what was written.
    """

    moment: int
    checksum: str


Event = Start | Received | Malformed | Computed | Resumed | Idle | StopRequested | Snapped


@dataclass(frozen=True)
class Send:
    """Send a message; its payload must stay unchanged until its receiver has answered, or for good."""

    to: Peer
    message: Message


@dataclass(frozen=True)
class Compute:
    """Run something that takes time, then hand back its result as `Computed`; the last effect of a handler.

    Attributes:
        task: `train`, `evaluate`, `combine`, `pack` or `adopt`; time is accounted to it.
        work: what to run.
        steps: how many local steps it holds, for a clock that models time.
        elements: how many elements of models or updates it goes through, likewise.
    """

    task: str
    work: Callable[[], Any]
    steps: int = 0
    elements: int = 0


@dataclass(frozen=True)
class Now:
    """Run something that takes time; the role goes on as soon as that is done.

    Attributes:
        task: `apply`; time is accounted to it.
        work: what to run.
        elements: how many elements of models or updates it goes through, for a clock that models time.
    """

    task: str
    work: Callable[[], None]
    elements: int = 0


@dataclass(frozen=True)
class Aside:
    """Run something beside what the role does next, then hand back its result as `Computed`; one thing at a time.

    It must touch nothing that the role changes meanwhile. Where all roles share a process it runs at once.

    Attributes:
        task: as of `Compute`.
        work: what to run.
        cancel: has `work` end early; called from another thread when the run fails or is stopped.
    """

    task: str
    work: Callable[[], Any]
    cancel: Callable[[], None]


@dataclass(frozen=True)
class Settle:
    """Wait for the end of what runs `Aside`, if anything does: its `Computed` is handled before the next effect."""


@dataclass(frozen=True)
class Pause:
    """Say `Resumed` after so many seconds; messages are handled meanwhile. One pause at a time."""

    seconds: float


@dataclass(frozen=True)
class Drain:
    """Say `Idle` as soon as no message waits."""


@dataclass(frozen=True)
class SetDeadline:
    """From now on the role waits for these peers; the run fails and names them if they stay silent too long."""

    waiting_for: tuple[Peer, ...]


@dataclass(frozen=True)
class Record:
    """Write a line to the role's record."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Save:
    """Keep an array in the run's folder under this name."""

    name: str
    values: Vector


@dataclass(frozen=True)
class Snapshot:
    """Write this process's part of a checkpoint, then say `Snapped`."""

    moment: int
    state: State


@dataclass(frozen=True)
class Seal:
    """All parts of a checkpoint are written: from now on it exists.

    Attributes:
        moment: which checkpoint.
        checksums: of the part of every process, by the process's name.
    """

    moment: int
    checksums: dict[str, str]


@dataclass(frozen=True)
class Finish:
    """The role is done; or, suspended, it goes on from the checkpoint another time."""

    suspended: bool = False


Effect = Send | Compute | Now | Aside | Settle | Pause | Drain | SetDeadline | Record | Save | Snapshot | Seal | Finish


class Role(Protocol):
    """A role of a run."""

    peer: Peer
    round: int

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
        """Take the state of a `Snapshot`, before `Start`: the run goes on from there."""
        ...

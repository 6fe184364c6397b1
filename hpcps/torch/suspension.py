"""BytePS's pair `suspend` and `resume`: a script pauses its exchanges, and may go on with more or fewer processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcps.errors import LaunchError, SpecError, message_of
from hpcps.launch.plan import Rank
from hpcps.registry.config import MOST_ROLES
from hpcps.session.current import renew, session
from hpcps.session.join import LaunchedSession
from hpcps.session.pending import forget_names
from hpcps.session.session import Session
from hpcps.torch.collectives import allgather_object
from hpcps.torch.elastic import declare_anew
from hpcps.torch.gradients import check_rules

_NAME = "resume"
_HOW = "start the script with `hpcps launch --transport pslite --survive`, and let elastic.run call its function"


class _Wanted(NamedTuple):
    """The numbers for which a process asks; None: those that there are."""

    workers: Any
    servers: Any

    def __str__(self) -> str:
        return f"resume(workers={self.workers!r:.50}, servers={self.servers!r:.50})"


def suspend() -> None:
    """Exchange nothing until `resume`; all processes call this. Returns when all do, and all exchanges have ended.

    Handles of exchanges that have begun stay valid. An exchange before `resume` is an error.

    Raises:
        SpecError: the script has suspended its exchanges already.
        RunError: an exchange that has begun fails, the script has begun a step and not ended it, or a process is lost.
    """
    current = session()
    if current.suspended:
        raise SpecError("suspend() after suspend(): call resume() first")
    current.complete()
    allgather_object(None, "suspend")
    current.suspend()


def resume(workers: int | None = None, servers: int | None = None) -> None:
    """Exchange tensors again after `suspend`; all processes call this with the same numbers.

    Other numbers than before need `hpcps launch --transport pslite --survive`, and the function of `elastic.run`. The
    processes that are missing are started: they begin the script at its top. Those with the highest ranks that are too
    many end in this call, by SystemExit with status 0, so that `finally` and atexit work. The others return with
    another `size()` and the same `rank()`, and then call `sync()` of their `TorchState`, with which those that have
    joined begin. If all that have stayed are lost, no commit is left, and the script begins at its beginning.

    After an error because of the numbers the script stays suspended, and may call this again.

    Args:
        workers: the number of workers; by default that before.
        servers: the number of servers; by default that before.

    Raises:
        SpecError: the script is not suspended, the processes ask for different numbers, a number or a rule of an
            optimizer does not permit this, or the launch cannot change its numbers.
        LaunchError: the hosts of the launch have too few slots.
        RunError: a process is lost; `elastic.run` then repeats its function with the numbers before.
        SystemExit: the script goes on without this process.
    """
    current = session()
    if not current.suspended:
        raise SpecError("resume() without suspend(): all processes call suspend() first")
    current.resume()
    try:
        world = _agreed(current, _Wanted(workers, servers))
    except (SpecError, LaunchError):
        current.suspend()
        raise
    if world is None:
        return
    assert isinstance(current, LaunchedSession), "others keep their numbers"
    if current.rank == 0:
        current.resize(world)
    current.await_end()
    # Worker 0 resizes once all agree, so all join each other anew, also if one of them is lost by then.
    if not current.is_over() or not current.generation.is_resized:
        current.member.check()
    renew()
    forget_names()
    declare_anew()


def _agreed(current: Session, mine: _Wanted) -> Sequence[Rank] | None:
    """Return the processes with which all go on; None: those that there are.

    Raises:
        SpecError: the numbers cannot be used.
        LaunchError: there are too few slots.
    """
    plain = _Wanted(*(each if each is None or type(each) is int else repr(each)[:50] for each in mine))
    every = [_Wanted(*each) for each in allgather_object(tuple(plain), _NAME)]
    for rank, each in enumerate(every):
        _check(each, rank)
    now = _Wanted(current.size, len(current.member.servers))
    numbers = [
        _Wanted(*(before if given is None else given for given, before in zip(each, now, strict=True)))
        for each in every
    ]
    other = next((rank for rank, each in enumerate(numbers) if each != numbers[0]), None)
    if other is not None:
        raise SpecError(
            f"the processes ask for different numbers: worker-0 calls {every[0]}, and worker-{other} {every[other]}: "
            "all must give the same"
        )
    if numbers[0] == now:
        return None
    if not isinstance(current, LaunchedSession) or not current.generation.survives:
        raise SpecError(
            f"{numbers[0]}: these processes cannot become more or fewer, as they are {now.workers} with {now.servers} "
            f"servers: {_HOW}, or call resume() without numbers"
        )
    try:
        check_rules(numbers[0].workers)
    except SpecError as error:
        raise SpecError(f"{numbers[0]}: {message_of(error)}") from error
    return current.generation.others(*numbers[0])


def _check(wanted: _Wanted, rank: int) -> None:
    """Check the numbers of a process.

    Raises:
        SpecError: they are none.
    """
    for name, least, given in (("workers", 1, wanted.workers), ("servers", 0, wanted.servers)):
        if given is not None and not (isinstance(given, int) and least <= given <= MOST_ROLES):
            raise SpecError(
                f"worker-{rank} calls {wanted}: {name} is a whole number from {least} to {MOST_ROLES}, or None for the "
                "number before"
            )

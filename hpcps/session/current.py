"""The session of this process: there is one at a time, whichever framework exchanges its tensors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from operator import index
from typing import Any

from hpcps.errors import LaunchError, RunError, SpecError
from hpcps.launch.ancestry import JOINED
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import LaunchedSession, StepSession, messages
from hpcps.session.member import RECENT
from hpcps.session.outbox import checked_credit
from hpcps.session.session import Session

_current: tuple[Session, ScriptEnding] | None = None
_front_end = ""
_ended = False


def begin(front_end: str, timeout: object, join: Callable[[float], Session], credit: object = None) -> None:
    """Join the other processes of the script; without effect if this process has joined them.

    Args:
        front_end: the module whose tensors the session copies.
        timeout: the seconds in which they must join.
        join: joins them in so many seconds, and returns the session.
        credit: the bytes that this process has on their way; see `checked_credit`.

    Raises:
        LaunchError: they have ended their session.
        SpecError: the timeout or the credit cannot be used.
        RunError: this process has joined them with another front end.
    """
    global _current, _front_end
    if _current is not None:
        check_front_end(front_end)
        return
    if _ended:
        raise LaunchError("init() after shutdown(): a script joins the other processes only once")
    with messages():
        bound, seconds = checked_credit(credit), _checked_timeout(timeout)
    session = join(seconds)
    session.limit(bound)
    if isinstance(session, StepSession) or session.size > 1:
        os.environ[JOINED] = str(os.getpid())
    _current, _front_end = (session, ScriptEnding(session)), front_end


def _checked_timeout(timeout: object) -> float:
    """Return seconds.

    Raises:
        SpecError: they are no positive number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) > 0:
        remedy = "give a number of seconds, such as init(timeout=600)"
        raise SpecError(f"the timeout of init() is {timeout!r:.50}: {remedy}")
    return float(timeout)


def check_front_end(name: str) -> None:
    """Check that the session copies the tensors of a front end.

    Raises:
        RunError: it copies those of another one.
    """
    if name != _front_end:
        raise RunError(f"{_front_end}.init() has joined the other processes: {name} needs its own init() instead of it")


def shutdown() -> None:
    """End the session; returns when all processes have ended theirs. The end of a script does this by itself."""
    global _current, _ended
    if _current is not None:
        session, ending = _current
        _ended = isinstance(session, StepSession) or session.size > 1
        try:
            ending.shutdown()  # what awaits the last results looks for the session
        finally:
            _current = None
            if not _ended:  # others may still read the memory of this process
                session.leave()


def renew() -> bool:
    """If the session is over and its script goes on, join all processes anew; return whether this has.

    Raises:
        SystemExit: the script goes on without this process.
    """
    global _current
    assert _current is not None, "there is a session"
    session, ending = _current
    if not (isinstance(session, LaunchedSession) and session.is_over()):
        return False
    if (renewed := session.again()) is None:
        ending.leave()
        raise SystemExit(0)
    ending.follow(renewed)
    _current = (renewed, ending)
    return True


def note_over() -> None:
    """Note that all processes have done what they repeat after a loss: none that is lost later is replaced."""
    current = session()
    assert isinstance(current, LaunchedSession), "others do not survive"
    current.generation.note_over()


def check_survives(what: str, remedy: str, *, repeated: bool) -> None:
    """Check that a script that survives the loss of a process uses something where it can.

    Args:
        what: the thing.
        remedy: what to do instead.
        repeated: whether only what is repeated after a loss is a problem.

    Raises:
        SpecError: it cannot.
    """
    current = session()
    if isinstance(current, LaunchedSession) and current.generation.survives and (current.exchanges or not repeated):
        raise SpecError(f"{what}, in a script of `hpcps launch --survive`: {remedy}")


@contextmanager
def exchanging() -> Iterator[None]:
    """Let a script that survives the loss of a process exchange tensors in this context, which it repeats."""
    current = session()
    assert isinstance(current, LaunchedSession), "others do not survive"
    current.exchanges = True
    try:
        yield
    finally:
        current = session()  # another one, if the script has resumed with other processes
        assert isinstance(current, LaunchedSession), "others do not survive"
        current.exchanges = False


def log(*, epoch: float | None = None, **numbers: Any) -> None:
    """Write numbers, such as `loss=0.3, accuracy=0.91`, into the record of the run, for plots and reports.

    The numbers are those of process 0: in the others, and without `hpcps launch`, this has no effect.

    Args:
        epoch: the finished epochs; by default, the number of this call, from 1.
        numbers: numbers or tensors with one element; `accuracy`, from 0 to 1, and `loss` on the test set are those that
            plots draw.
    """
    session().log(epoch, numbers)


def get_pushpull_speed() -> tuple[float, float]:
    """Return the time, in ms since 1970, and the MB/s that this process has exchanged in the last 10 seconds."""
    return 1e3 * time.time(), session().recent() / RECENT / 1e6


def suspend() -> None:
    """Refuse: only scripts of `hpcps.torch` suspend their exchanges.

    Raises:
        SpecError: always; it says what to do instead.
    """
    raise SpecError(
        f"{_front_end or 'this module'} has no suspend() and resume(), which are of hpcps.torch: save what the script "
        "needs, and start it again, with another number of processes if you want: `hpcps launch -n N`"
    )


def resume(workers: int | None = None, servers: int | None = None) -> None:
    """Refuse, as `suspend` does.

    Args:
        workers: has no effect.
        servers: has no effect.

    Raises:
        SpecError: always; it says what to do instead.
    """
    suspend()


def session() -> Session:
    """Return the session of this process.

    Raises:
        RunError: there is none.
    """
    if _current is None:
        raise RunError("call init() first")
    return _current[0]


def is_initialized() -> bool:
    """Return whether this process has joined the others."""
    return _current is not None


def rank() -> int:
    """Return the number of this process, from 0."""
    return session().rank


def checked_rank(root_rank: object, what: str) -> int:
    """Return the number of the process that gives something, such as a tensor, to all.

    Raises:
        SpecError: there is no such process.
    """
    try:
        found = index(root_rank)  # type: ignore[arg-type]  # it says what is none
    except TypeError:
        found = -1
    if found not in range(size()):
        raise SpecError(f"the root_rank of {what} is {root_rank!r}: the ranks go from 0 to {size() - 1}")
    return found


def size() -> int:
    """Return the number of processes of the script."""
    return session().size


def local_rank() -> int:
    """Return the number of this process among those of its host."""
    return session().local_rank


def local_size() -> int:
    """Return the number of processes of the script on this host."""
    return session().local_size


def cross_rank() -> int:
    """Return the number of this host among those that have a process with this `local_rank`."""
    return session().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process with this `local_rank`."""
    return session().cross_size


def is_homogeneous() -> bool:
    """Return whether each host has the same number of processes."""
    return session().homogeneous

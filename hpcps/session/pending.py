"""Exchanges that a script has begun: their handles, and names for tensors to which it has given none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from hpcps.errors import RunError
from hpcps.session.current import session
from hpcps.session.tensors import TensorExchange

_handles: dict[int, PendingOperation] = {}
_numbers = count()
_unnamed: set[str] = set()
_calls: Counter[str] = Counter()
"""How often the script has given a tensor without a name, by the type, the shape and the reduction."""


class PendingOperation(Protocol):
    """What a handle stands for."""

    def done(self) -> bool:
        """Return whether `finish` does not wait."""

    def finish(self) -> Any:
        """Wait for the result, and return it."""


@dataclass(slots=True)
class PendingExchange:
    """An exchange that the script has begun.

    Attributes:
        exchange: the exchange.
        unnamed: the name that it uses, if it was given none.
    """

    exchange: TensorExchange
    unnamed: str
    _names: set[str] = field(default_factory=lambda: _unnamed, init=False, repr=False)  # those of its session

    def done(self) -> bool:
        """Return whether its result has come."""
        return session().done(self.exchange)

    def wait(self) -> None:
        """Wait for the result."""
        exchange = self.exchange
        try:
            if exchange.left or exchange.error is not None:
                session().wait(exchange)
        finally:
            if self.unnamed:
                self._names.discard(self.unnamed)


def poll(handle: int) -> bool:
    """Return whether an exchange is done, so that `synchronize` does not wait."""
    return _pending(handle).done()


def synchronize(handle: int) -> Any:
    """Wait for the result of an exchange, and return it: a tensor, or a list of tensors if the handle is of several."""
    pending = _handles.pop(handle, None) or _pending(handle)
    return pending.finish()


def kept(pending: PendingOperation) -> int:
    """Return a handle, which `synchronize` takes."""
    handle = next(_numbers)
    _handles[handle] = pending
    return handle


def _pending(handle: int) -> PendingOperation:
    if handle not in _handles:
        raise RunError(f"handle {handle} is unknown, or synchronized already")
    return _handles[handle]


def free_name(form: str) -> str:
    """Return the first name for a tensor of a form that no exchange under way has.

    A script that does the same in all processes gets the same names in all of them. Where it does not, the aggregator
    finds that the numbers of the calls differ.
    """
    names = (f"{form} {number}" for number in count())
    return next(name for name in names if name not in _unnamed)


def take_name(name: str) -> None:
    """Note that an exchange under way has a name of `free_name`."""
    _unnamed.add(name)


def number_of_call(form: str) -> int:
    """Count a tensor of a form to which the script has given no name."""
    _calls[form] += 1
    return _calls[form]


def forget_exchanges() -> None:
    """Forget all exchanges that have begun: their session has ended, and another one goes on."""
    _handles.clear()
    forget_names()


def forget_names() -> None:
    """Name tensors without a name anew, in another session; all exchanges of the last one are done."""
    global _unnamed
    _unnamed = set()  # a handle from before frees a name of its own session
    _calls.clear()


def forget_calls() -> None:
    """Count tensors without a name anew, after `join`: a process that had joined has counted fewer."""
    _calls.clear()

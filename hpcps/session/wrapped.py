"""Errors of hpcps in functions that a framework calls: it repeats their text in an exception of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcps.errors import HpcpsError, message_of

_last: HpcpsError | None = None


@contextmanager
def noted() -> Iterator[None]:
    """Note an error of hpcps in this context, so that `original` finds it in an exception that repeats its text."""
    global _last
    try:
        yield
    except HpcpsError as error:
        _last = error
        raise


def original(error: BaseException) -> BaseException:
    """Return the noted error whose text an exception repeats; the exception itself if it repeats none."""
    if not isinstance(error, HpcpsError) and _last is not None and message_of(_last) in message_of(error):
        return _last
    return error

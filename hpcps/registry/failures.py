"""What goes wrong in the code of a component, as an error for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hpcps.errors import HpcpsError, SpecError, text_of
from hpcps.registry.components import BUILT_IN, active
from hpcps.registry.config import Config
from hpcps.registry.kinds import line_in


@contextmanager
def errors_of(
    component: Config, what: str, *, foreign: bool = False, passing: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn an exception of a component's code into a `SpecError` that names the component, its file and the line.

    Args:
        component: whose code runs within the block.
        what: what the block does, such as `its open() failed`.
        foreign: whether only plugins and packages are named; an exception of other code keeps its traceback.
        passing: exceptions that are raised unchanged.
    """
    try:
        yield
    except passing:
        raise
    except HpcpsError:
        raise
    except (Exception, SystemExit) as error:  # a component must not end the process without a message
        entry = active().entry_of(component)
        if foreign and (entry is None or entry.origin == BUILT_IN):
            raise
        reason = text_of(error).strip().partition("\n")[0]
        raise fault(component, f"{what}: {reason}", line_in(_file(component), error)) from error


def fault(component: Config, what: str, line: int | None = None) -> SpecError:
    """Return the error that says what is wrong with a component: `model my_model (plugin my_model.py): ...`."""
    entry = active().entry_of(component)
    if entry is None:
        return SpecError(f"{type(component).__name__}: {what}")
    place = entry.origin.words if line is None or entry.origin == BUILT_IN else f"{entry.origin.words}, line {line}"
    return SpecError(f"{entry.kind.noun} {entry.name} ({place}): {what}")


def returned(component: Config, method: str, what: str) -> SpecError:
    """Return the error that says what is wrong with the value that a method returned, at the line of the method."""
    code = getattr(getattr(type(component), method), "__code__", None)
    own = code is not None and code.co_filename == _file(component)
    return fault(component, f"its {method}() returned {what}", code.co_firstlineno if code and own else None)


def described(value: object) -> str:
    """Return a short description of what a component returned, such as `an array [3, 2] of float32`."""
    if isinstance(value, np.ndarray):
        return f"an array {list(value.shape)} of {value.dtype}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}" if value is not None else "None"


def _file(component: Config) -> str | None:
    return getattr(sys.modules.get(type(component).__module__), "__file__", None)

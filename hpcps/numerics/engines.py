"""Chooses the code that computes an operation on updates.

Three modules have the same functions, which `operations` and `gram` describe: `definitions` with numpy,
`kernels.engine` with compiled kernels, whose results equal those of the definitions bit for bit, and `tensors` with
torch, for rows that are tensors. A final operation returns what it has written, and whether that is finite.
"""

from __future__ import annotations

from typing import Any

from hpcps.numerics.kernels import enough
from hpcps.numerics.updates import Updates


def engine(updates: Updates) -> Any:
    """Return the module that computes with these updates, which may be a partition."""
    if not updates.on_host:
        from hpcps.numerics import tensors

        return tensors
    if uses_kernels(updates):
        from hpcps.numerics.kernels import engine as kernels

        return kernels
    from hpcps.numerics import definitions

    return definitions


def uses_kernels(updates: Updates) -> bool:
    """Return whether compiled kernels compute with these updates, and load the kernels if so."""
    here = updates.on_host and not updates.lazy and len(updates) > 0
    return here and enough(len(updates) * updates.layout.size)

"""What a role may use of the machine it is on."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.layout import Allocate, private


@dataclass(frozen=True)
class Resources:
    """A role's share of its machine.

    Attributes:
        allocate: gives memory to send from; others of the machine may be able to read it where it is.
        threads: how many may combine updates. The others of the machine wait meanwhile, in a synchronous run.
    """

    allocate: Allocate = private
    threads: int = 1


ALONE = Resources()
"""Those of a role that shares nothing."""

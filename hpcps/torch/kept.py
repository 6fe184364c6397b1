"""Commits in memory, for a script that survives the loss of processes.

Each process keeps its models, optimizers and tensors. What differs between the processes, such as random numbers, all
keep of each, so that any of them can give a replacement of any other what that one had.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hpcps.errors import RunError
from hpcps.session.current import rank, size
from hpcps.torch.collectives import allgather, allgather_object, broadcast_object

Parts = Mapping[str, Any]
_NAME = "state"


@dataclass(frozen=True)
class KeptState:
    """What a process has at a commit.

    Attributes:
        number: the number of the commit, from 1.
        shared: the states of the parts that are equal in all processes.
        own: the states of the other parts of each process, written by torch; empty until all have committed.
    """

    number: int
    shared: Parts
    own: tuple[bytes, ...] = ()


class KeptCommits:
    """The last commit of a process, and the one that it has begun.

    Args:
        take: returns the states of the shared parts and of the others, as they are.
        give: gives the parts some of these states.
        join: gives the parts the others of process 0, in a process that has joined later.

    Attributes:
        found: whether the last `agree` has found a commit.
    """

    found = False

    def __init__(
        self, take: Callable[[], tuple[Parts, Parts]], give: Callable[[Parts], None], join: Callable[[Parts], None]
    ) -> None:
        self._take, self._give, self._join = take, give, join
        self._last: KeptState | None = None
        self._begun: KeptState | None = None

    def commit(self) -> None:
        """Keep what this process has; returns when all processes do.

        Raises:
            RunError: not all processes take part, or not equally often.
        """
        shared, own = self._take()
        number = 1 + (self._last.number if self._last else 0)
        self._begun = KeptState(number, copy.deepcopy(shared))
        found = allgather_object((number, written(own)), _NAME)
        if {each for each, _ in found} != {number}:
            raise RunError("the processes commit different states: all must call commit() equally often")
        self._last, self._begun = replace(self._begun, own=tuple(of_rank for _, of_rank in found)), None

    def agree(self) -> int:
        """Go back to the last commit of any process, in all of them; a replacement gets it from another process.

        Without a commit, all get the shared parts of process 0, and commit.

        A process that the commit does not have, because the number of processes has grown, gets what process 0 had:
        another commit should follow.

        Returns:
            The rank of the process that has given it.
        """
        mine = [each.number if each else 0 for each in (self._last, self._begun)]
        numbers = allgather(torch.tensor([mine]), _NAME).tolist()
        committed = [last for last, _ in numbers]
        newest = max(committed)
        giver, self.found = committed.index(newest), newest > 0
        if not newest:
            shared = self._take()[0] if rank() == giver else {}
            content = broadcast_object(written(shared), giver, _NAME)
            if rank() != giver:
                self._give(read(content))
            self.commit()
            return giver
        known = next((each for each in (self._last, self._begun) if each and each.number == newest), None)
        lacks = any(newest not in each for each in numbers)
        given: tuple[bytes, tuple[bytes, ...]] = b"", ()
        if rank() == giver:
            assert known is not None, "it has committed"
            given = written(known.shared) if lacks else b"", known.own
        content, own = broadcast_object(given, giver, _NAME)
        self._last, self._begun = KeptState(newest, known.shared if known else read(content), own), None
        self._give(copy.deepcopy(self._last.shared))
        if rank() < len(own):
            self._give(read(own[rank()]))
        else:
            self._join(read(own[0]))
        return giver

    @property
    def is_of_all(self) -> bool:
        """Whether the last commit has what each of the present processes has for itself; after `agree`."""
        return self._last is not None and len(self._last.own) == size()


def written(states: Parts) -> bytes:
    """Return states as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(states), buffer)
    return buffer.getvalue()


def read(content: bytes) -> Parts:
    """Return the states of bytes, with tensors on the host."""
    found: Parts = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return found

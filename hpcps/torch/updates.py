"""Counts the steps of an optimizer that the session knows only as changes of parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from hpcps.session.current import session


class UpdateCounter:
    """The steps of the optimizer of a model that plain optimizers train.

    A step changes parameters in place, which torch counts in their versions. Steps that write to `.data` have no effect
    on the versions, in all processes.
    """

    def __init__(self) -> None:
        """Begin without a backward pass."""
        self._watched: list[Tensor] = []
        self._versions = 0

    def count(self, parameters: Iterable[Tensor]) -> None:
        """Count the step since the last backward pass, if there was one; see `Session.updated`.

        Args:
            parameters: some parameters of the model; those of the first call are watched.
        """
        first = not self._watched
        self._watched = self._watched or list(parameters)
        before, self._versions = self._versions, sum(each._version for each in self._watched)
        if not first and self._versions != before:
            session().updated()

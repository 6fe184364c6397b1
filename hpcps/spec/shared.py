"""What the points of a file have in common: it is validated and computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from hpcps.registry import Config

T = TypeVar("T")


class Shared:
    """The valid tables of a file's points, which many points of a sweep have in common, and what follows from them.

    Attributes:
        tables: the valid tables by name and content.
    """

    def __init__(self) -> None:
        self.tables: dict[Hashable, Config] = {}
        self._results: dict[Hashable, tuple[Config, Any]] = {}

    def of(self, table: Config, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time for this table, which is compared by its identity, and key."""
        # The table is kept, so that no other one gets its id.
        known = self._results.get((id(table), key)) or self._results.setdefault((id(table), key), (table, make()))
        result: T = known[1]
        return result

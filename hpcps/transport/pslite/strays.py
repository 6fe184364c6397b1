"""Frames that nobody should have sent: counted, and told of now and then."""

from __future__ import annotations

import logging
from collections import Counter

_log = logging.getLogger(__name__)


class Strays:
    """Counts dropped frames by kind. The log gets the first of a kind, the second, the fourth, the eighth, …."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def drop(self, kind: str, reason: str) -> None:
        """Count a dropped frame.

        Args:
            kind: `malformed`, `foreign` or `unexpected`.
            reason: what is wrong with this one.
        """
        self.counts[kind] += 1
        seen = self.counts[kind]
        if seen & (seen - 1) == 0:
            _log.warning("dropped a %s message (%d so far): %s", kind, seen, reason)

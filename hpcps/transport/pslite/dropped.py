"""Dropped messages: count them and log some of them."""

from __future__ import annotations

import logging
from collections import Counter

_log = logging.getLogger(__name__)


class DroppedMessages:
    """Counts dropped messages by kind. The log holds the first of a kind, the second, the fourth, the eighth, …."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def drop(self, kind: str, reason: str) -> None:
        """Count a dropped message.

        Args:
            kind: `malformed`, `foreign` or `unexpected`.
            reason: the reason for dropping it.
        """
        self.counts[kind] += 1
        seen = self.counts[kind]
        if seen & (seen - 1) == 0:
            _log.warning("dropped a %s message (%d so far): %s", kind, seen, reason)

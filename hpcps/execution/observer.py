"""What a run tells an observer while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.roles.model_inbox import ModelInbox

Observations = Mapping[str, object]
"""The fields of a line that an observer adds to a role's record, such as the values of callbacks; empty: no line."""


class Observer(Protocol):
    """Follows the roles of a run; what it does cannot change the run, but its exceptions end it."""

    def recorded(
        self, peer: Peer, event: str, fields: Mapping[str, Any], model: Callable[[], Vector] | None
    ) -> Observations:
        """Take a line that a role has written to its record; return what follows it there.

        Args:
            peer: the role.
            event: the event of the line.
            fields: its fields, without the times and counts that the driver adds.
            model: returns the model that the line describes `[d]`, if the role gives one.
        """

    def adopted(self, peer: Peer, inbox: ModelInbox) -> Observations:
        """Take the model that a role has adopted for its next round; the inbox is valid during the call.

        Returns:
            What follows in the record.
        """

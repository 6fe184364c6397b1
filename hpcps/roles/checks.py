"""Checks that a message must pass before a role uses it."""

from __future__ import annotations

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed, Received
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.roles.events import Record


def unwanted(event: Received | Malformed, receiver: str) -> str:
    """Return why a receiver refuses a message that it does not expect, or that cannot be read."""
    if isinstance(event, Malformed):
        return event.reason
    return f"{receiver} gets no {event.message.kind} from {event.source}"


def wrong_size(values: Vector, size: int) -> str | None:
    """Return what is wrong with a whole shard's payload; None if nothing is."""
    return None if values.size == size else f"its payload has {values.size} elements instead of {size}"


def wrong_rate(rate: float) -> str | None:
    """Return what is wrong with the learning rate of an update; None if nothing is."""
    return None if 0 <= rate < LARGEST_FACTOR else f"its learning rate is {str(rate)[:40]}"


def rejection(source: Peer, reason: str) -> Record:
    """Return the record of a message that was refused as a whole."""
    return Record("rejected", {"reason": reason, "sender": str(source), "blocks": None})


def not_finite(source: Peer, blocks: Mask) -> Record:
    """Return the record of blocks `[B]` that were refused because they hold a NaN or an infinity."""
    return Record("rejected", {"reason": "not finite", "sender": str(source), "blocks": blocks.nonzero()[0].tolist()})

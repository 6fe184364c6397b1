"""Checks that a message must pass before a role uses it."""

from __future__ import annotations

from hpcps.numerics.layout import Layout, Mask
from hpcps.protocol.messages import Malformed, Message, Peer, Received
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.roles.events import Event, Record


def vetted(event: Event, run_id: str) -> Event:
    """Return an event; a message with a wrong sender or run counts as malformed."""
    match event:
        case Received(source, message) if message.sender != source:
            return Malformed(source, f"it came from {source} but says it is {message.sender}'s", event.moment)
        case Received(source, message) if message.run != run_id:
            return Malformed(source, f"it belongs to run {message.run or '(none)'}", event.moment)
    return event


def unwanted(event: Received | Malformed, receiver: str) -> str:
    """Return why a receiver refuses a message that it does not expect, or that cannot be read."""
    if isinstance(event, Malformed):
        return event.reason
    return f"{receiver} gets no {event.message.kind.name} from {event.source}"


def wrong_mask(message: Message, layout: Layout) -> str | None:
    """Return what is wrong with an update's mask for this layout; None if nothing is."""
    covered = 0 if message.mask is None else len(message.mask)
    return None if covered == len(layout.blocks) else f"its mask covers {covered} blocks of {len(layout.blocks)}"


def wrong_blocks(message: Message, layout: Layout) -> str | None:
    """Return what is wrong with an update's mask or size for this layout; None if nothing is."""
    if reason := wrong_mask(message, layout):
        return reason
    got = 0 if message.payload is None else message.payload.size
    want = 0 if message.mask is None else layout.packed_size(message.mask)
    return None if got == want else f"its payload has {got} elements where its mask announces {want}"


def wrong_size(message: Message, size: int) -> str | None:
    """Return what is wrong with a whole shard's payload; None if nothing is."""
    got = 0 if message.payload is None else message.payload.size
    return None if got == size else f"its payload has {got} elements instead of {size}"


def wrong_rate(message: Message) -> str | None:
    """Return what is wrong with the learning rate in an update's note; None if nothing is, or if it has none."""
    rate = message.note.get("rate", 0.0)
    right = isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 <= rate < LARGEST_FACTOR
    return None if right else f"its learning rate is {str(rate)[:40]}"


def rejection(source: Peer, reason: str) -> Record:
    """Return the record of a message that was refused as a whole."""
    return Record("rejected", {"reason": reason, "sender": str(source), "blocks": None})


def not_finite(source: Peer, blocks: Mask) -> Record:
    """Return the record of blocks `[B]` that were refused because they hold a NaN or an infinity."""
    return Record("rejected", {"reason": "not finite", "sender": str(source), "blocks": blocks.nonzero()[0].tolist()})

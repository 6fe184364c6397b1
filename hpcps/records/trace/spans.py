"""The binary format of a span: 48 bytes, because packing them is fast."""

from __future__ import annotations

import struct

import numpy as np

FORMAT = 2
"""Version of the file format; files of other versions are not read."""

SUFFIX = ".spans"
"""Suffix of the name of a trace file."""

ACTIVITIES = (
    "wait", "pause", "handle", "receive", "send", "train", "evaluate", "pack", "combine", "apply", "adopt",
    "checkpoint", "save", "craft",
)  # fmt: skip
"""The activities of a process. Their codes begin at 1, because a disk may contain zeros after a power failure."""

PACKED = struct.Struct("<BBBBidddQQ")
"""The fields: activity; kind of the message (0: malformed); role of the other process; activity of the rest before the
span (0: no rest); round; start of that rest, start and end of the span, in seconds on the clock of the process; bytes
of the message; index of the other process."""

UNPACKED = np.dtype(
    [("activity", "u1"), ("kind", "u1"), ("role", "u1"), ("before", "u1"), ("round", "<i4"),
     ("rested", "<f8"), ("start", "<f8"), ("stop", "<f8"), ("bytes", "<u8"), ("index", "<u8")]
)  # fmt: skip
"""The same fields as a numpy type."""

BACKGROUND = 0x80
"""Flag in the code of an activity: it ran in the background."""

COMPARED = 0xFF
"""Instead of an activity: at `start`, the clock was compared with that of rank 0. `stop` is the offset to add, in
seconds; `bytes` is the error of the offset, in nanoseconds."""


def code(activity: str) -> int:
    """Return the code of an activity in the file."""
    return ACTIVITIES.index(activity) + 1

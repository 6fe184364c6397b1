"""The binary format of a span: 48 bytes, so that recording one is fast."""

from __future__ import annotations

import struct

import numpy as np

FORMAT = 2
"""Version of the file; another one is not read."""

SUFFIX = ".spans"
"""What the name of such a file ends with, after that of its process."""

ACTIVITIES = (
    "wait", "pause", "handle", "receive", "send", "train", "evaluate", "pack", "combine", "apply", "adopt",
    "checkpoint", "save",
)  # fmt: skip
"""What a process does. In the file they count from 1: a disk that lost its power may have left zeros."""

PACKED = struct.Struct("<BBBBidddQQ")
"""Activity; of a message its kind (0: it is malformed) and the role of the other process; the activity of the rest
before it (0: there was none); round; when that rest began, when the span began and ended, in seconds of the process's
clock; of a message its bytes and the index of the other process."""

UNPACKED = np.dtype(
    [("activity", "u1"), ("kind", "u1"), ("role", "u1"), ("before", "u1"), ("round", "<i4"),
     ("rested", "<f8"), ("start", "<f8"), ("stop", "<f8"), ("bytes", "<u8"), ("index", "<u8")]
)  # fmt: skip
"""The same to numpy."""

BESIDE = 0x80
"""Added to an activity: it ran beside the process's own."""

COMPARED = 0xFF
"""No activity: at `start` the clock was compared with the first process's; `stop` is what to add to get that one's, in
seconds, `bytes` how far off that may be, in nanoseconds."""


def code(activity: str) -> int:
    """Return what stands for an activity in the file."""
    return ACTIVITIES.index(activity) + 1

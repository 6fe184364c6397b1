"""The journal of a server: the names of its events, which its standby handles in the same order.

They are those of `hpcps.execution.account`, and these.
"""

FINISHED = "finished"
"""The server has ended: its standby ends, too."""

SNAPPED = "snapped "
"""Precedes the position and the checksum of the part of a checkpoint that the server has written."""

WAITING = "waiting"
"""The server has written in its record for whom it waits."""

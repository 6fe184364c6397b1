"""The exit statuses of the commands."""

from __future__ import annotations

import signal
from enum import IntEnum


class ExitStatus(IntEnum):
    """The exit statuses of `hpcps`, of `launcher/configgen.py` and of the job scripts.

    Attributes:
        meaning: the text in the documentation.
    """

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitStatus:
        """Create a status with its meaning."""
        status = int.__new__(cls, value)
        status._value_ = value
        status.meaning = meaning
        return status

    DONE = 0, "all requested runs are done, or the command has done its work"
    FAILED = 1, "a run failed, or the successor of a job could not be submitted"
    REFUSED = 2, "a mistake in the request: an argument, the experiment file, a host file, missing data; nothing ran"
    NOTHING_LEFT = 3, "`configgen.py`: all points are done, so it wrote no configfile; `--all` includes these points"
    # EX_UNAVAILABLE and EX_TEMPFAIL of sysexits.h
    UNMET = 69, "`doctor`: this machine does not meet all needs of the file"
    SUSPENDED = 75, "the run stopped at a checkpoint because its walltime was nearly over; run it again to go on"
    HUNG_UP = 128 + signal.SIGHUP, "stopped by the signal HUP; run it again to go on"
    INTERRUPTED = 128 + signal.SIGINT, "stopped by Ctrl-C (the signal INT); run it again to go on"
    OUTPUT_CLOSED = 128 + signal.SIGPIPE, "the reader of the output, such as `head`, has closed it"
    TERMINATED = 128 + signal.SIGTERM, "stopped by the signal TERM; run it again to go on"

"""The exit statuses of the commands, and the messages of the errors that end a command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import IntEnum

from hpcps.errors import HpcpsError
from hpcps.inputs import printable


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
    UNMET = (
        69,
        "`doctor`: this machine does not meet all needs of the file, or something is wrong with a host of `--hostfile`",
    )
    SUSPENDED = (
        75,
        "the run stopped at a checkpoint because its walltime was nearly over, or because it waited for replacements "
        "for longer than `survive.wait`; run it again to go on",
    )
    HUNG_UP = 128 + signal.SIGHUP, "stopped by the signal HUP; run it again to go on"
    INTERRUPTED = 128 + signal.SIGINT, "stopped by Ctrl-C (the signal INT); run it again to go on"
    OUTPUT_CLOSED = 128 + signal.SIGPIPE, "the reader of the output, such as `head`, has closed it"
    TERMINATED = 128 + signal.SIGTERM, "stopped by the signal TERM; run it again to go on"


def exit_status_of(command: Callable[[], int], program: str) -> int:
    """Run a command; return its exit status.

    Args:
        command: returns a status, or raises an error.
        program: the name that messages begin with.
    """
    try:
        return command()
    except HpcpsError as error:
        print("\n".join(map(printable, f"{program}: {error}".split("\n"))), file=sys.stderr)
        return ExitStatus.REFUSED
    except KeyboardInterrupt:
        print(f"{program}: stopped", file=sys.stderr)
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # Python would print an error when it closes the output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.OUTPUT_CLOSED
    except OSError as error:
        what = f"{str(error.filename)[:200]}: " if error.filename is not None else ""
        print(f"{program}: {what}{error.strerror or error}", file=sys.stderr)
        return ExitStatus.REFUSED

"""Prints the errors of a command without a traceback, and returns its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hpcps.errors import HpcpsError
from hpcps.launch.exit_status import ExitStatus


def exit_status_of(command: Callable[[], int], program: str) -> int:
    """Run a command; return its exit status.

    Args:
        command: returns a status, or raises an error.
        program: the name that messages begin with.
    """
    try:
        return command()
    except HpcpsError as error:
        print(f"{program}: {error}", file=sys.stderr)
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

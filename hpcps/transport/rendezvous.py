"""The file from which the nodes of a launch read the address of their scheduler.

When the scheduler starts, it chooses a free port of its host, and its own address on the network in use. The plan
cannot contain them, because it may be written on another machine an hour before. Every host can read the folder of the
plan.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.inputs import regular

_LOOK_EVERY = 0.05


class Rendezvous:
    """The address of the scheduler of a launch, in a file in the folder of the plan."""

    def __init__(self, plan_file: Path) -> None:
        """Set the path of the file; the file need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.scheduler")

    def announce(self, host: str, port: int) -> None:
        """Write the address on which the scheduler listens.

        Raises:
            LaunchError: the file cannot be written.
        """
        try:
            beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            beside.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}))
            beside.replace(self.path)  # readers only ever find a complete file
        except OSError as error:
            raise LaunchError(f"{self.path} cannot be written: {error.strerror}") from error

    def find(self, timeout: float, interrupt: Callable[[], None] = lambda: None) -> tuple[str, int]:
        """Wait until the scheduler listens; return its host and port.

        Args:
            timeout: seconds.
            interrupt: called again and again; what it raises ends this.

        Raises:
            LaunchError: it does not listen within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (there := self._read()) is None or not _answers(*there):
            if time.monotonic() > deadline:
                empty = "the file is missing or empty"
                what = empty if there is None else f"no process listens at its address, {there[0]}:{there[1]}"
                raise LaunchError(
                    f"no scheduler in {self.path} after {timeout:g} s: {what}; check that the scheduler has started, "
                    "and that every host can read that folder"
                )
            interrupt()
            time.sleep(_LOOK_EVERY)
        return there

    def clear(self) -> None:
        """Remove the file after the scheduler has stopped listening."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _read(self) -> tuple[str, int] | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            # A network file system caches for up to a minute that a file is missing; listing its folder refreshes it.
            os.listdir(self.path.parent)
            address = json.loads(regular(self.path).read_text())
            return str(address["host"]), int(address["port"])
        return None


def _answers(host: str, port: int) -> bool:
    """Whether a process listens at the address: the file may belong to a launch that was killed."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True

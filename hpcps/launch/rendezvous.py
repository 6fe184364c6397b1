"""The file by which the nodes of a launch learn where their scheduler listens.

The scheduler takes a port that is free on its host at that moment, and its own address on the network in use; who wrote
the plan, perhaps on another machine and an hour before, could know neither. Every host sees the folder of the plan.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.records.files import write_whole

_LOOK_EVERY = 0.05


class Rendezvous:
    """Beside the plan of a launch: where its scheduler is."""

    def __init__(self, plan_file: Path) -> None:
        """Name it; it need not be there."""
        self.path = plan_file.with_name(f"{plan_file.name}.scheduler")

    def announce(self, host: str, port: int) -> None:
        """Say where the scheduler listens.

        Raises:
            LaunchError: the file cannot be written.
        """
        try:
            write_whole(self.path, json.dumps({"host": host, "port": port, "pid": os.getpid()}))
        except OSError as error:
            raise LaunchError(f"{self.path} cannot be written: {error.strerror}") from error

    def find(self, patience: float) -> tuple[str, int]:
        """Wait until the scheduler listens; return its host and port.

        Raises:
            LaunchError: it does not within so many seconds.
        """
        deadline = time.monotonic() + patience
        while (there := self._read()) is None or not _answers(*there):
            if time.monotonic() > deadline:
                what = "it says nothing" if there is None else f"nobody listens at {there[0]}:{there[1]}, as it says"
                raise LaunchError(
                    f"no scheduler in {self.path} after {patience:g} s: {what}; see whether the scheduler has started, "
                    "and whether every host sees that folder"
                )
            time.sleep(_LOOK_EVERY)
        return there

    def clear(self) -> None:
        """Remove it: nobody listens there any more."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _read(self) -> tuple[str, int] | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            # A network file system believes for a minute that a file is not there, unless one lists its folder.
            os.listdir(self.path.parent)
            said = json.loads(self.path.read_text())
            return str(said["host"]), int(said["port"])
        return None


def _answers(host: str, port: int) -> bool:
    """Whether somebody listens there: the file may be of a launch that was killed."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True

"""`python -m hpcps.execution.sweep.slot`: execute one batch on its own cores, in parallel with others of the sweep.

It is a separate process, because signals, orphaned processes of a launch and cores belong to a process. It reads the
batch from its standard input and writes JSON lines: the messages to print and, at the end, how the batch ended.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from hpcps.errors import HpcpsError
from hpcps.execution.sweep.batch import Batch, Ending, play
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.guard import tie_to_parent
from hpcps.launch.limits import Cores, bind
from hpcps.registry import activate
from hpcps.registry.plugins import registry_of


def main() -> int:
    """Execute the batch that the sweep sends; return 0, even if the batch fails."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    tie_to_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    # Redirect other output to stderr, so that stdout holds only the JSON lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    batch: Batch
    cores: Cores
    activate(registry_of(pickle.load(sys.stdin.buffer), Path()))
    batch, cores = pickle.load(sys.stdin.buffer)
    bind(cores)
    try:
        ending = play(batch, lambda text: answer(say=text), lambda: None)
    except KeyboardInterrupt:
        ending = Ending(ExitStatus.INTERRUPTED, "stopped", over=True)
    except HpcpsError as error:
        ending = Ending(ExitStatus.REFUSED, str(error), over=True)
    answer(ending=asdict(ending))
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

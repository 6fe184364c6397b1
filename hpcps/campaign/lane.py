"""`python -m hpcps.campaign.lane`: plays one batch, on cores of its own, for a campaign that plays several at a time.

A process of its own, as signals, the processes that a launch leaves behind and the cores belong to a process. It reads
the batch from its standard input and writes JSON lines: what is to be said, and at last how it ended.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from dataclasses import asdict
from types import FrameType

from hpcps.campaign.batch import Batch, Ending, play
from hpcps.cores import Cores, bind
from hpcps.errors import HpcpsError
from hpcps.launch.guard import tie_to_parent


def main() -> int:
    """Play what the campaign sent; return 0, whatever became of it."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    tie_to_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    # Whatever else prints, prints elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    batch: Batch
    cores: Cores
    batch, cores = pickle.load(sys.stdin.buffer)
    bind(cores)
    try:
        ending = play(batch, lambda text: answer(say=text), lambda: None)
    except KeyboardInterrupt:
        ending = Ending(130, "stopped", over=True)
    except HpcpsError as error:
        ending = Ending(2, str(error), over=True)
    answer(ending=asdict(ending))
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

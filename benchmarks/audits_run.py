"""Execute a run with audits in this process; print the CPU seconds of audits, and of all: started by `audits.py`.

python audits_run.py hpcps run FILE --results FOLDER
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from hpcps.cli.main import main
from hpcps.roles.resources import Replicas
from hpcps.roles.sync.audit import Auditor, Commitments


class Spent:
    """The CPU time of calls; those inside of others count once."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def of(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts."""

        @functools.wraps(work)
        def timed(*args: Any, **keys: Any) -> Any:
            began, self._depth = time.thread_time(), self._depth + 1
            try:
                return work(*args, **keys)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.thread_time() - began

        return timed


def watched(spent: Spent) -> None:
    """Count what roles do for audits, without `ask`, `conclude`, and packing and sending the states of workers."""
    for kind, names in (
        (Commitments, ("begin", "commit", "hand_over")),
        (Auditor, ("compare_probe", "draws", "note", "take", "end_round", "_execute")),
    ):
        for name in names:
            setattr(kind, name, spent.of(getattr(kind, name)))
    probe = functools.cached_property(spent.of(Replicas.probe.func))
    probe.__set_name__(Replicas, "probe")
    Replicas.probe = probe  # type: ignore[method-assign]


if __name__ == "__main__":
    found = Spent()
    watched(found)
    sys.argv = sys.argv[1:]
    status = main()
    print(json.dumps({"audits": found.seconds, "all": time.process_time()}), flush=True)
    sys.exit(status)

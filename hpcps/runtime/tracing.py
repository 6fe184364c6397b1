"""The trace of one process of a launch, from before its run to after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcps.runtime.engagement import Engagement
from hpcps.trace.clocks import Clocks
from hpcps.trace.tracer import Tracer, names_of


@contextmanager
def tracing(part: Engagement, clocks: Clocks | None) -> Iterator[Tracer | None]:
    """Begin the process's trace, if the run is traced and it plays in it; close it at the end.

    Args:
        part: what the process is in the run.
        clocks: those of all processes, if the run is traced; all of them are here then.
    """
    if clocks is None:
        yield None
    elif part.peer is None:
        clocks.compare()
        yield None
    else:
        offset = clocks.compare()
        names = names_of(part.peer, part.run.topology.validators)
        folder, run_id, session = part.directory.path, part.planned.run_id, clocks.session
        with Tracer(folder, run_id, part.peer, part.host, session, names=names) as tracer:
            tracer.compare(offset)
            yield tracer


def compare(clocks: Clocks | None, tracer: Tracer | None) -> None:
    """Compare the clocks of all processes once more, if the run is traced; all of them do so together."""
    if clocks is not None:
        offset = clocks.compare()
        if tracer is not None:
            tracer.compare(offset)

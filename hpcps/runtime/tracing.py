"""The trace of one process of a launch, from before its run to after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcps.runtime.engagement import Engagement
from hpcps.trace.clocks import Clocks
from hpcps.trace.tracer import FileTracer, NoTracer, Tracer, names_of


@contextmanager
def tracing(part: Engagement, clocks: Clocks | None) -> Iterator[Tracer]:
    """Begin the process's trace, if the run is traced: then the processes have met over their clocks."""
    if clocks is None:
        yield NoTracer()
        return
    offset = clocks.compare()
    if part.peer is None:
        yield NoTracer()
        return
    names = names_of(part.peer, part.run.topology.validators)
    folder, run_id, session = part.directory.path, part.planned.run_id, clocks.session
    with FileTracer(folder, run_id, part.peer, part.host, session, names=names) as tracer:
        tracer.compare(offset)
        yield tracer

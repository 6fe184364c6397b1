"""The trace of one process of a launch, from before its run to after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpcps.messages import Peer
from hpcps.runtime.engagement import Engagement
from hpcps.trace.clocks import compare_clocks
from hpcps.trace.tracer import FileTracer, NoTracer, Tracer, names_of
from hpcps.transport.gathering import Gathering


@contextmanager
def tracing(part: Engagement, gathering: Gathering, *, on: bool) -> Iterator[Tracer]:
    """Begin the process's trace, if the run is traced: then all processes do, also those without a part in it."""
    if not on:
        yield NoTracer()
        return
    session = gathering.share(time.time_ns())
    if part.peer is None:
        compare(part, gathering, NoTracer())
        yield NoTracer()
        return
    names = names_of(part.peer, part.run.topology.validators)
    with FileTracer(part.directory.path, part.planned.run_id, part.peer, part.host, session, names=names) as tracer:
        compare(part, gathering, tracer)
        yield tracer


def compare(part: Engagement, gathering: Gathering, tracer: Tracer) -> None:
    """Compare the clocks of all processes, and note the outcome; once a run is over too, as no two run equally fast."""
    tracer.compare(compare_clocks(gathering, Peer(part.me.role, part.me.index)))

"""The trace of one process in one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcps.execution.process_context import ProcessContext
from hpcps.records.trace.clocks import Clocks
from hpcps.records.trace.tracer import Tracer, names_of


@contextmanager
def tracing(context: ProcessContext, clocks: Clocks | None) -> Iterator[Tracer | None]:
    """Open the trace of the process, if the run is traced and the process has a role in it; close it at the end.

    Args:
        context: the context of the process.
        clocks: the clocks of all processes if the run is traced, else None; every process of a traced run calls this.
    """
    if clocks is None:
        yield None
    elif context.peer is None:
        clocks.compare()
        yield None
    else:
        offset = clocks.compare()
        names = names_of(context.peer, context.run.topology.validators)
        folder, run_id, session = context.directory.path, context.planned.run_id, clocks.session
        with Tracer(folder, run_id, context.peer, context.host, session, names=names) as tracer:
            tracer.compare(offset)
            yield tracer


def compare(clocks: Clocks | None, tracer: Tracer | None) -> None:
    """Compare the clocks of all processes again, if the run is traced; every process calls this."""
    if clocks is not None:
        offset = clocks.compare()
        if tracer is not None:
            tracer.compare(offset)

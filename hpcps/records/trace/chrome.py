"""Merges the trace of a run into one file for ui.perfetto.dev (the Trace Event Format, JSON object form)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcps.records.files import replacing
from hpcps.records.trace.reader import Trace, files_of, read_trace

NAME = "trace.json"
"""Name of the file in the run's folder."""

_INSIDE = 0.001
"""Microseconds from the end of an arrow to the end of its span: at the end itself, the next span begins."""


def merge(run_directory: Path) -> Path:
    """Merge the traces of all processes into `trace.json`, atomically; return its path.

    In this format, a host is a process, and a process of the run is a thread. Each message is an arrow from `send` to
    `receive`. A second thread shows the background activities of a process.

    Raises:
        RunError: the run has no trace.
        OSError: the file cannot be written.
    """
    trace = read_trace(run_directory)
    path = run_directory / NAME
    facts = {
        "clock": trace.processes[0].clock,
        "clock_error_us": {str(process.peer): round(process.error * 1e6, 1) for process in trace.processes},
    }
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n')
        for number, event in enumerate(_events(trace)):
            file.write(",\n" * (number > 0) + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return path


def is_stale(run_directory: Path) -> bool:
    """Return whether the run has a trace that is newer than its `trace.json`."""
    parts = [path.stat().st_mtime for path in files_of(run_directory)]
    merged = run_directory / NAME
    return bool(parts) and (not merged.exists() or merged.stat().st_mtime < max(parts))


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of hosts and processes, the spans, and the ends of the arrows of messages."""
    hosts = list(dict.fromkeys(process.host for process in trace.processes))
    busy = set(trace.spans["process"][trace.spans["background"]])
    # Numbers of hosts and threads, from 1; the next thread of a process is for its background.
    order = enumerate(trace.processes)
    numbers = {str(process.peer): (hosts.index(process.host) + 1, 2 * n + 1) for n, process in order}
    for process in trace.processes:
        host, thread = numbers[str(process.peer)]
        yield {"name": "process_name", "ph": "M", "pid": host, "tid": thread, "args": {"name": process.host}}
        yield from _thread(str(process.peer), host, thread)
        if str(process.peer) in busy:
            yield from _thread(f"{process.peer} background", host, thread + 1)
    span: Any
    for span in trace.spans.itertuples(index=False):
        host, thread = numbers[span.process]
        yield from _span(span, {"pid": host, "tid": thread + span.background})


def _span(span: Any, place: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield a span as an event with a duration; and of a message, the end of an arrow."""
    sent = span.activity == "send"
    message = {"to" if sent else "from": span.other, "kind": span.kind, "bytes": span.bytes} if span.other else {}
    yield {
        "ph": "X", "name": span.activity, "cat": "hpcps", **place, "ts": round(span.start * 1e6, 3),
        "dur": round(span.seconds * 1e6, 3), "args": {"round": span.round, **message},
    }  # fmt: skip
    if message:
        source, target = (span.process, span.other) if sent else (span.other, span.process)
        # A message leaves at the start of `send`, and has arrived by the end of `receive`. The start of `receive` may
        # be earlier, if no core was free.
        at = span.start * 1e6 if sent else max(span.start * 1e6, span.stop * 1e6 - _INSIDE)
        arrow = {
            "name": span.kind, "cat": "message", "id": f"{source} {target} {span.number}", **place, "ts": round(at, 3)
        }  # fmt: skip
        yield {"ph": "s", **arrow} if sent else {"ph": "f", "bp": "e", **arrow}


def _thread(name: str, host: int, thread: int) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": host, "tid": thread}
    yield {"name": "thread_name", **common, "args": {"name": name}}
    yield {"name": "thread_sort_index", **common, "args": {"sort_index": thread}}

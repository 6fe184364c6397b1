"""Merges the trace of a run into one file for ui.perfetto.dev (the Trace Event Format, JSON object form)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcps.records.files import replacing
from hpcps.records.trace.lanes import Lane, Span, files_of, read_lanes

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
    lanes = read_lanes(run_directory)
    path = run_directory / NAME
    facts = {
        "clock": lanes[0].clock,
        "clock_error_us": {str(lane.peer): round(lane.error * 1e6, 1) for lane in lanes},
    }
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n')
        file.write(",\n".join(map(_dump, _named(lanes))))
        for lane, (host, thread) in _numbered(lanes):
            for event in _events(lane, host, thread):
                file.write(",\n" + _dump(event))
            for event in _background(lane, host, thread):
                file.write(",\n" + _dump(event))
        file.write("\n]}\n")
    return path


def is_stale(run_directory: Path) -> bool:
    """Return whether the run has a trace that is newer than its `trace.json`."""
    parts = [path.stat().st_mtime for path in files_of(run_directory)]
    merged = run_directory / NAME
    return bool(parts) and (not merged.exists() or merged.stat().st_mtime < max(parts))


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _numbered(lanes: list[Lane]) -> Iterator[tuple[Lane, tuple[int, int]]]:
    """Yield each lane with the numbers of its host and its thread, from 1; the next thread is for its background."""
    hosts = list(dict.fromkeys(lane.host for lane in lanes))
    for number, lane in enumerate(lanes):
        yield lane, (hosts.index(lane.host) + 1, 2 * number + 1)


def _named(lanes: list[Lane]) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of hosts and processes."""
    for lane, (host, thread) in _numbered(lanes):
        yield {"name": "process_name", "ph": "M", "pid": host, "tid": thread, "args": {"name": lane.host}}
        yield from _thread(str(lane.peer), host, thread)


def _events(lane: Lane, host: int, thread: int) -> Iterator[dict[str, Any]]:
    """Yield the spans of a lane, and the ends of the arrows of its messages.

    Messages from one process to another arrive in the order in which they were sent: the n-th message sent is the n-th
    message received.
    """
    numbers: Counter[tuple[str, str]] = Counter()
    me = str(lane.peer)
    for span in lane.spans():
        arguments: dict[str, Any] = {}
        if span.other:
            sent = span.activity == "send"
            pair = (me, span.other) if sent else (span.other, me)
            arguments |= {"to" if sent else "from": span.other, "kind": span.kind, "bytes": span.bytes}
        yield _complete(span, host, thread, arguments)
        if span.other:
            # A message leaves at the start of `send`, and has arrived by the end of `receive`. The start of `receive`
            # may be earlier, if no core was free.
            at = span.start * 1e6 if sent else max(span.start * 1e6, span.stop * 1e6 - _INSIDE)
            arrow = {
                "name": span.kind, "cat": "message", "id": f"{pair[0]} {pair[1]} {numbers[pair]}",
                "pid": host, "tid": thread, "ts": round(at, 3),
            }  # fmt: skip
            numbers[pair] += 1
            yield {"ph": "s", **arrow} if sent else {"ph": "f", "bp": "e", **arrow}


def _background(lane: Lane, host: int, thread: int) -> Iterator[dict[str, Any]]:
    """Yield the background activities of a lane and the name of their thread; nothing if there are none."""
    named = False
    for span in lane.background():
        if not named:
            named = True
            yield from _thread(f"{lane.peer} background", host, thread + 1)
        yield _complete(span, host, thread + 1)


def _complete(span: Span, host: int, thread: int, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a span as an event with a duration."""
    return {
        "ph": "X", "name": span.activity, "cat": "hpcps", "pid": host, "tid": thread, "ts": round(span.start * 1e6, 3),
        "dur": round(span.seconds * 1e6, 3), "args": {"round": span.round, **(more or {})},
    }  # fmt: skip


def _thread(name: str, host: int, thread: int) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": host, "tid": thread}
    yield {"name": "thread_name", **common, "args": {"name": name}}
    yield {"name": "thread_sort_index", **common, "args": {"sort_index": thread}}

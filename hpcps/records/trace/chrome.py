"""One file of a whole run for ui.perfetto.dev and chrome://tracing (the Trace Event Format, JSON object form)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcps.records.trace.lanes import Lane, Span, files_of, read_lanes

NAME = "trace.json"
"""What the file is called, in the run's folder."""

_INSIDE = 0.001
"""Microseconds before a span's end at which an arrow that belongs to it ends: at the end itself the next one begins."""


def merge(run_directory: Path) -> Path:
    """Merge the traces of all processes into `trace.json`, atomically; return its path.

    A process is a thread there, its host a process. Each message is an arrow from the `send` to the `receive`. A thread
    of its own, below that, has what went on beside a process's own work.

    Raises:
        RunError: the run has no trace.
        OSError: the file cannot be written.
    """
    lanes = read_lanes(run_directory)
    path = run_directory / NAME
    beside = path.with_name(f".{NAME}.{os.getpid()}")
    facts = {
        "clock": lanes[0].clock,
        "clock_error_us": {str(lane.peer): round(lane.error * 1e6, 1) for lane in lanes},
    }
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n')
            file.write(",\n".join(map(_dump, _named(lanes))))
            for lane, (host, thread) in _places(lanes):
                for event in _events(lane, host, thread):
                    file.write(",\n" + _dump(event))
                for event in _beside(lane, host, thread):
                    file.write(",\n" + _dump(event))
            file.write("\n]}\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def is_stale(run_directory: Path) -> bool:
    """Say whether the run has a trace that is newer than its `trace.json`."""
    parts = [path.stat().st_mtime for path in files_of(run_directory)]
    merged = run_directory / NAME
    return bool(parts) and (not merged.exists() or merged.stat().st_mtime < max(parts))


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _places(lanes: list[Lane]) -> Iterator[tuple[Lane, tuple[int, int]]]:
    """Yield each lane with the numbers of its host and of itself, from 1; those between are for what is beside it."""
    hosts = list(dict.fromkeys(lane.host for lane in lanes))
    for number, lane in enumerate(lanes):
        yield lane, (hosts.index(lane.host) + 1, 2 * number + 1)


def _named(lanes: list[Lane]) -> Iterator[dict[str, Any]]:
    """Yield what names and orders hosts and processes."""
    for lane, (host, thread) in _places(lanes):
        yield {"name": "process_name", "ph": "M", "pid": host, "tid": thread, "args": {"name": lane.host}}
        yield from _thread(str(lane.peer), host, thread)


def _events(lane: Lane, host: int, thread: int) -> Iterator[dict[str, Any]]:
    """Yield a lane's spans, and the ends of the arrows of its messages.

    From one process to another messages arrive in the order in which they were sent: the n-th sent is the n-th that
    comes.
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
            # It leaves as one span begins, and is here as the other ends, which began early if no core was free.
            at = span.start * 1e6 if sent else max(span.start * 1e6, span.stop * 1e6 - _INSIDE)
            arrow = {
                "name": span.kind, "cat": "message", "id": f"{pair[0]} {pair[1]} {numbers[pair]}",
                "pid": host, "tid": thread, "ts": round(at, 3),
            }  # fmt: skip
            numbers[pair] += 1
            yield {"ph": "s", **arrow} if sent else {"ph": "f", "bp": "e", **arrow}


def _beside(lane: Lane, host: int, thread: int) -> Iterator[dict[str, Any]]:
    """Yield what went on beside a lane, with the name of its thread; nothing if nothing did."""
    named = False
    for span in lane.beside():
        if not named:
            named = True
            yield from _thread(f"{lane.peer} beside", host, thread + 1)
        yield _complete(span, host, thread + 1)


def _complete(span: Span, host: int, thread: int, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a span as an event that has a duration."""
    return {
        "ph": "X", "name": span.activity, "cat": "hpcps", "pid": host, "tid": thread, "ts": round(span.start * 1e6, 3),
        "dur": round(span.seconds * 1e6, 3), "args": {"round": span.round, **(more or {})},
    }  # fmt: skip


def _thread(name: str, host: int, thread: int) -> Iterator[dict[str, Any]]:
    common = {"ph": "M", "pid": host, "tid": thread}
    yield {"name": "thread_name", **common, "args": {"name": name}}
    yield {"name": "thread_sort_index", **common, "args": {"sort_index": thread}}

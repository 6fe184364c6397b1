"""Reads the traces of all processes of a run, and merges them into one file for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_json, regular
from hpcps.protocol.messages import ROLES, Message, Peer
from hpcps.records.files import replacing
from hpcps.records.trace.tracer import ACTIVITIES, BACKGROUND, COMPARED, FORMAT, SUFFIX, UNPACKED, code

# A shorter time of a role's own code, or of waiting, is part of the next span; seconds.
_SHORT = 20e-6
_LONGEST_HEAD = 65536
_HEAD = {"session": int, "role": str, "index": int, "host": str, "clock": str, "began": float}

_NAMES = np.array(["", *ACTIVITIES], object)
_ROLES = dict(enumerate(ROLES))
_KINDS = {0: "MALFORMED", **{code: kind.kind for code, kind in Message.classes.items()}}
_HANDLE, _MESSAGES = code("handle"), [code("send"), code("receive")]


@dataclass(frozen=True)
class TracedProcess:
    """One process of a trace.

    Attributes:
        peer: the process.
        host: its host.
        clock: `monotonic` or `virtual`.
        origin: the start of its trace, in seconds on the clock of the process.
        began: the start of its trace, in seconds on the clock of rank 0.
        error: largest error of the offset between the clocks, in seconds.
        drift: change of that offset, in seconds per second.
    """

    peer: Peer
    host: str
    clock: str
    origin: float
    began: float
    error: float
    drift: float


@dataclass(frozen=True)
class Trace:
    """The trace of the last traced attempt of a run.

    Attributes:
        processes: its processes: servers, then validators, then workers.
        spans: a row for each activity without interruption. Those of a process follow one another, its background
            activities last. Columns: `process`; `role`; `activity` (`train`, `send`, `wait`, …); `background`; `round`
            (asynchronous: the cycle); `start`, `seconds` and `stop`, in seconds since the first process started; and
            for `send` and `receive` the `other` process, the `kind` of the message, the `bytes` of its payload, and its
            `number` among the messages of its sender to its receiver: the n-th message sent is the n-th one received.
    """

    processes: tuple[TracedProcess, ...]
    spans: pd.DataFrame


def files_of(run_directory: Path) -> list[Path]:
    """Return the trace files of a run, one for each process."""
    return list((run_directory / "trace").glob(f"*-*{SUFFIX}"))


def read_trace(run_directory: Path) -> Trace:
    """Read the last traced attempt.

    Raises:
        RunError: the run has no trace.
    """
    found = [(head, path) for path in files_of(run_directory) if (head := _head(path))]
    if not found:
        raise RunError(
            f"{run_directory} has no trace: run it with `hpcps run FILE --trace` (and --no-resume if it is done)"
        )
    session = max(head["session"] for head, _ in found)
    recorded = [(head, _recorded(path)) for head, path in found if head["session"] == session]
    processes = [(_process(head, spans), spans) for head, spans in recorded]
    processes.sort(key=lambda pair: (ROLES.index(pair[0].peer.role), pair[0].peer.index))
    zero = min(process.began for process, _ in processes)
    spans = pd.concat([_spans(process, recorded, zero) for process, recorded in processes], ignore_index=True)
    return Trace(tuple(process for process, _ in processes), spans)


def _head(path: Path) -> dict[str, Any]:
    """Return the values of the first line; none if it is incomplete or of another version."""
    with regular(path).open("rb") as file:
        try:
            head = parse_json(path, file.readline(_LONGEST_HEAD))
        except InputError:
            return {}
    ours = isinstance(head, dict) and head.get("format") == FORMAT and head.get("role") in ROLES
    return head if ours and all(isinstance(head.get(name), kind) for name, kind in _HEAD.items()) else {}


def _recorded(path: Path) -> pd.DataFrame:
    """Return all complete spans of a file."""
    with regular(path).open("rb") as file:
        file.readline()
        return pd.DataFrame(np.fromfile(file, UNPACKED))


def _process(head: dict[str, Any], recorded: pd.DataFrame) -> TracedProcess:
    origin, offset, error, drift = head["began"], 0.0, 0.0, 0.0
    compared = recorded[recorded["activity"] == COMPARED]
    if len(compared):
        at, offsets = (compared["start"] - origin).to_numpy(), compared["stop"].to_numpy()
        error = float(compared["bytes"].max()) * 1e-9
        if at[-1] > at[0]:
            drift = float((offsets[-1] - offsets[0]) / (at[-1] - at[0]))
        offset = float(offsets[0] - drift * at[0])
    peer = Peer(head["role"], head["index"])
    return TracedProcess(peer, head["host"], head["clock"], origin, origin + offset, error, drift)


def _spans(process: TracedProcess, recorded: pd.DataFrame, zero: float) -> pd.DataFrame:
    """Return the rows of a process, with times since `zero` on the clock of rank 0."""
    recorded = recorded.assign(background=recorded["activity"] & BACKGROUND > 0)
    recorded["activity"] &= ~BACKGROUND & 0xFF
    recorded = recorded[_valid(recorded)]
    background = recorded["background"]
    found = pd.concat([_main_thread(recorded[~background], process.origin), recorded[background]], ignore_index=True)
    message = found["activity"].isin(_MESSAGES) & ~found["background"]
    rate = 1.0 + process.drift
    spans = pd.DataFrame(
        {
            "process": str(process.peer),
            "role": process.peer.role,
            "activity": _NAMES[found["activity"]],
            "background": found["background"],
            "round": found["round"],
            "start": process.began - zero + (found["start"] - process.origin) * rate,
            "seconds": (found["stop"] - found["start"]) * rate,
        }
    )
    spans["stop"] = spans["start"] + spans["seconds"]
    spans["other"] = (found["role"].map(_ROLES) + "-" + found["index"].astype(str)).where(message, "")
    spans["kind"] = found["kind"].map(_KINDS).where(message, "")
    spans["bytes"] = found["bytes"].where(message, 0)
    spans["number"] = spans.groupby(["activity", "other"]).cumcount()
    return spans


def _valid(recorded: pd.DataFrame) -> pd.Series[bool]:
    """Return which spans are valid; comparisons of clocks are not."""
    codes, times = recorded[["activity", "before"]], recorded[["rested", "start", "stop"]]
    known = (recorded["activity"] > 0) & (codes <= len(ACTIVITIES)).all(axis=1)
    known &= recorded["kind"].isin(_KINDS) & recorded["role"].isin(_ROLES)
    return known & (times.abs() < np.inf).all(axis=1) & (recorded["start"] <= recorded["stop"])


def _main_thread(recorded: pd.DataFrame, origin: float) -> pd.DataFrame:
    """Return the spans of the main thread: those recorded, and the times between them.

    Such a time is `handle`, the role's own code, or a rest, such as `wait`. Consecutive parts of the same code or rest
    form one span. If that span is short, it is part of the next one.
    """
    rests = recorded["before"] > 0
    worked = recorded["rested"].where(rests, recorded["start"])
    own = recorded.assign(activity=_HANDLE, stop=worked)[worked > recorded["stop"].shift(fill_value=origin)]
    rest = recorded.assign(activity=recorded["before"], stop=recorded["start"])[rests]
    loose = [own.assign(loose=True), rest.assign(loose=True)]
    recorded = recorded.assign(loose=recorded["activity"] == _HANDLE)
    parts = pd.concat([*loose, recorded]).sort_index(kind="stable")
    key = parts[["loose", "activity", "round"]]
    parts = parts[~(parts["loose"] & (key == key.shift(-1)).all(axis=1))]
    starts, kept, since = [], [], origin
    for part, stop in zip(parts["loose"], parts["stop"], strict=True):
        starts.append(since)
        kept.append(not part or stop - since > _SHORT)
        since = stop if kept[-1] else since
    return parts.assign(start=starts)[kept]


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

"""The folder of one run: what is in it, and how each file appears there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcps.errors import RunError
from hpcps.records.checkpoint import Checkpoints
from hpcps.records.files import write_whole

FREE_SPACE_NEEDED = 64 * 2**20
"""Bytes that must be free before a run starts."""


@dataclass(frozen=True)
class Failure:
    """Why a process of a run gave up.

    Attributes:
        time: when, seconds since 1970.
        phase: what it was doing.
        error: the message.
    """

    time: float
    role: str
    index: int
    host: str
    round: int | None
    phase: str
    error: str

    def __str__(self) -> str:
        where = f"{self.role}-{self.index} on {self.host or 'an unknown host'}"
        when = f"in round {self.round}, " if self.round is not None else ""
        return f"{where} failed {when}phase {self.phase or 'unknown'}: {self.error}"


@dataclass(frozen=True)
class RunDirectory:
    """`results/<experiment>/runs/<run id>/`.

    `spec.json` (what runs), `provenance.json` and `uncommitted.diff` (from which code, on what), `records/` (a file per
    process), `checkpoints/` (from which it goes on), `final/` (the model), `failure/` (who gave up, and why; what ended
    the attempts before is in `earlier/`), `DONE` (last).
    """

    path: Path

    def create(self, spec: Mapping[str, object]) -> None:
        """Make the folder ready for an attempt: write `spec.json`, set the failures of the one before aside.

        Args:
            spec: `run_id`, `label`, `index` (place in the sweep), `swept` (dotted key to value) and `run` (the resolved
                spec), as JSON values.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            (self.path / "records").mkdir(parents=True, exist_ok=True)
            self._set_failures_aside()
            write_whole(self.path / "spec.json", json.dumps(spec, indent=1))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def check_writable(self, needed: int = FREE_SPACE_NEEDED) -> None:
        """Make sure that records can be written, before anything is trained.

        Args:
            needed: bytes that must be free.

        Raises:
            RunError: the folder cannot be made or written, or the disk is (nearly) full; the message says what to do.
        """
        probe = self.path / f".writable-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path).free
            if free < needed:
                raise RunError(
                    f"the disk of the results folder {self.path} has {free / 2**20:.0f} MiB free, "
                    f"{needed / 2**20:.0f} MiB are needed: make room, or choose another results folder"
                )
            try:
                # Free space says nothing about a quota, and some file systems refuse only when the data is flushed.
                with probe.open("wb") as file:
                    file.write(b"\0" * 65536)
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def claim(self) -> BinaryIO | None:
        """Reserve the run for this process, for as long as the file that is returned stays open.

        Two jobs that play one run would mix their records. Where the file system knows no locks nobody is refused.

        Returns:
            The open lock file; None if another process has it.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("ab")
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # no locks here
            pass
        return file

    def write_provenance(self, facts: Mapping[str, object], uncommitted: str = "") -> None:
        """Write `provenance.json`, and `uncommitted.diff` beside it if the code differs from its commit."""
        patch = self.path / "uncommitted.diff"
        if uncommitted:
            write_whole(patch, uncommitted)
        else:
            patch.unlink(missing_ok=True)
        write_whole(self.path / "provenance.json", json.dumps(facts, indent=1))

    @property
    def spec(self) -> dict[str, Any]:
        """What `create` was given; empty if it is missing or damaged."""
        return _read_object(self.path / "spec.json")

    @property
    def provenance(self) -> dict[str, Any]:
        """What `write_provenance` was given; empty if it is missing or damaged."""
        return _read_object(self.path / "provenance.json")

    @property
    def records(self) -> tuple[Path, ...]:
        """The record files there are, in order of role and index."""
        files = (self.path / "records").glob("*-*.jsonl")
        return tuple(sorted(files, key=lambda file: (file.stem.rpartition("-")[0], len(file.stem), file.stem)))

    def save(self, name: str, values: NDArray[Any]) -> str:
        """Keep an array as `<name>.npy`, such as `final/server-0.npy`; return the SHA-256 of its bytes."""
        path = self.path / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.ascontiguousarray(values)
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(values))
        # From where they lie: a model may be all that there is room for.
        bytes_ = values.data.cast("B") if values.size else memoryview(b"")
        write_whole(path, head.getbuffer(), bytes_)
        return hashlib.sha256(bytes_).hexdigest()

    @property
    def checkpoints(self) -> Checkpoints:
        """From which it goes on if it was interrupted."""
        return Checkpoints(self.path / "checkpoints")

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "DONE").exists()

    @property
    def wall(self) -> float | None:
        """The seconds that the finished run took; None if that is not known."""
        wall = _read_object(self.path / "DONE").get("wall")
        return float(wall) if isinstance(wall, (int, float)) else None

    def finish(self, wall: float) -> None:
        """Say that the run is finished.

        Args:
            wall: seconds that it took.
        """
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        write_whole(self.path / "DONE", json.dumps({"finished": finished, "wall": round(wall, 3)}))
        self.checkpoints.clear()

    def fail(
        self,
        role: str,
        index: int,
        host: str,
        round: int | None,
        phase: str,
        error: BaseException | str,
        *,
        at: float | None = None,
        pid: int | None = None,
    ) -> None:
        """Write `failure/<role>-<index>.json`: who gave up, where, in which round, doing what (`phase`), and why.

        `error` is the exception that ended the process, or what others know of its end; in that case they may also know
        when that was (`at`, as of `time.time`; default: now) and the process's `pid`.
        """
        if isinstance(error, BaseException):
            pid = os.getpid()
        at = time.time() if at is None else at
        report = {"time": at, "role": role, "index": index, "host": host, "pid": pid, "round": round}
        report |= {"phase": phase, "error": str(error), "traceback": ""}
        if isinstance(error, BaseException):
            report["error"] = f"{type(error).__name__}: {error}"
            report["traceback"] = "".join(traceback.format_exception(error))
        (self.path / "failure").mkdir(exist_ok=True)
        write_whole(self.path / "failure" / f"{role}-{index}.json", json.dumps(report, indent=1))

    def _set_failures_aside(self) -> None:
        """Move `failure/` to `earlier/failure-1`, `-2`, …: it shall say what ended this attempt, and no other."""
        if any((self.path / "failure").glob("*.json")):
            number = 1 + len(list((self.path / "earlier").glob("failure-*")))
            (self.path / "earlier").mkdir(exist_ok=True)
            (self.path / "failure").rename(self.path / "earlier" / f"failure-{number}")

    @property
    def earlier_failures(self) -> tuple[Failure, ...]:
        """Who gave up first in each attempt that failed before the last one, in order."""
        folders = sorted((self.path / "earlier").glob("failure-*"), key=lambda path: int(path.name.partition("-")[2]))
        return tuple(failures[0] for folder in folders if (failures := _failures(folder)))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Who gave up in the last attempt; the first one, most likely the cause, comes first."""
        return _failures(self.path / "failure")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _failures(folder: Path) -> tuple[Failure, ...]:
    reports = [_read_object(file) for file in folder.glob("*.json")]
    return tuple(sorted((_failure(report) for report in reports if report), key=lambda failure: failure.time))


def _failure(report: Mapping[str, Any]) -> Failure:
    text = {key: str(report.get(key) or "") for key in ("role", "host", "phase", "error")}
    round = report.get("round")
    return Failure(
        time=float(report.get("time") or 0.0),
        index=int(report.get("index") or 0),
        round=None if round is None else int(round),
        **text,
    )


def _unwritable(path: Path, error: OSError) -> RunError:
    advice = {
        errno.ENOSPC: "the disk is full: make room, or choose another results folder",
        errno.EDQUOT: "your quota is used up: make room, or choose another results folder",
        errno.EROFS: "the file system is read-only: choose another results folder",
        errno.EACCES: "you may not write there: change its permissions, or choose another results folder",
    }
    reason = advice.get(error.errno or 0, f"{error.strerror}: choose another results folder")
    return RunError(f"cannot write to the results folder {path}: {reason}")

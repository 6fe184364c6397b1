"""The folder of one run: its files, each of which is written atomically."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcps.errors import InputError, RunError, message_of, trace_of
from hpcps.inputs import finite, printable, read_json, read_text, regular, whole_number
from hpcps.records.checkpoint import Checkpoints
from hpcps.records.failure import Failure, failure_reports, failures_of, read_object
from hpcps.records.files import RECORDS, write_whole
from hpcps.records.inventory import Damage, damage, inventory

PLUGINS = "plugins"
"""The folder in a run's folder with copies of the plugin files that it uses."""

FREE_SPACE_NEEDED = 64 * 2**20
"""Bytes that must be free before a run starts."""

SPEC = "spec.json"
"""The file in a run's folder with its resolved spec."""

_RESTART = ".restart"
"""The file in a run's folder while the run is to start from the beginning, though it may be done."""

_RESIZE = "resize.json"
"""The file in a run's folder with the number of workers with which it is to go on where an epoch ends."""

_STAYS = ("earlier", "failure")

_SPEC = {"run_id": str, "label": str, "index": int, "swept": dict, "run": dict}


@dataclass(frozen=True)
class RunDirectory:
    """`results/<experiment>/runs/<run id>/`.

    `spec.json` (the resolved spec), `plugins/` (the plugin files that it uses), `provenance.json` and
    `uncommitted.diff` (code and machine), `records/` (a file per process), `checkpoints/`, `final/` (the model),
    `failure/` (the processes that failed, and why; those of earlier attempts, and the files of a damaged
    run that was executed again, are in `earlier/`), `DONE` (written last; it has the checksums of these files).
    """

    path: Path

    def create(self, spec: Mapping[str, Any]) -> None:
        """Prepare the folder for an attempt: reopen it, write `spec.json`, and move the last attempt's failures.

        If the run is to start from the beginning, remove its checkpoints.

        Args:
            spec: `run_id`, `label`, `index` (position in the sweep), `swept` (dotted key to value), `run` (the resolved
                spec), `components` and `plugins` (see `spec.point.Point`), as JSON values; the texts of plugins go into
                separate files.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self.set_failures_aside()
            self.reopen()
            if self.restarts:
                self.checkpoints.clear()
                self.request_resize(None)
                (self.path / _RESTART).unlink()
            (self.path / "records").mkdir(parents=True, exist_ok=True)
            plugins = spec.get("plugins", ())
            for plugin in plugins:
                (self.path / PLUGINS).mkdir(exist_ok=True)
                write_whole(self.path / PLUGINS / plugin["file"], plugin["text"])
            listed = [{"file": plugin["file"], "sha256": plugin["sha256"]} for plugin in plugins]
            spec = {**spec, "plugins": listed} if plugins else spec
            write_whole(self.path / SPEC, json.dumps(spec, indent=1))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    @property
    def restarts(self) -> bool:
        """Whether the next attempt starts from the beginning, even if the run is done."""
        return (self.path / _RESTART).exists()

    def request_restart(self, *, restarts: bool) -> None:
        """Have the next attempt start from the beginning, or go on as usual."""
        if restarts:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / _RESTART).touch()
        else:
            (self.path / _RESTART).unlink(missing_ok=True)

    @property
    def resize_requested(self) -> int | None:
        """The number of workers with which the run is to go on where an epoch ends; None without a request."""
        wanted = read_object(self.path / _RESIZE).get("workers")
        return wanted if isinstance(wanted, int) and wanted > 0 else None

    def request_resize(self, workers: int | None) -> None:
        """Have the run go on with another number of workers where an epoch ends; None withdraws that.

        Raises:
            OSError: the folder cannot be written.
        """
        if workers is None:
            (self.path / _RESIZE).unlink(missing_ok=True)
        else:
            write_whole(self.path / _RESIZE, json.dumps({"workers": workers}))

    def write_members(self, members: Sequence[Mapping[str, int]]) -> None:
        """State in `spec.json` how many workers the run has, and from which position on; see `spec.members`."""
        spec = read_object(self.path / SPEC)
        write_whole(self.path / SPEC, json.dumps({**spec, "members": list(members)}, indent=1))

    @property
    def plugins(self) -> tuple[tuple[str, str], ...]:
        """The file name and the text of each plugin file that the run uses."""
        files = sorted((self.path / PLUGINS).glob("*.py"))
        return tuple((file.name, read_text(file)) for file in files)

    def check_writable(self, needed: int = FREE_SPACE_NEEDED) -> None:
        """Check before training that records can be written.

        Args:
            needed: bytes that must be free.

        Raises:
            RunError: the folder cannot be created or written, or the disk is (nearly) full; says what to do.
        """
        probe = self.path / f".writable-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.path).free
            if free < needed:
                raise RunError(
                    f"the disk of the results folder {self.path} has {free / 2**20:.0f} MiB free, "
                    f"{needed / 2**20:.0f} MiB are needed: free disk space, or choose another results folder"
                )
            try:
                # A quota may be lower than the free space, and some file systems report it only at a flush.
                with probe.open("wb") as file:
                    file.write(b"\0" * 65536)
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def claim(self) -> BinaryIO | None:
        """Lock the run for this process while the returned file is open.

        Two jobs that execute one run would mix their records. On a file system without locks every process succeeds.

        Returns:
            The open lock file; None if another process has it.

        Raises:
            RunError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
            file = os.fdopen(lock, "wb")
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # the file system has no locks
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

    def extend_provenance(self, facts: Mapping[str, object]) -> None:
        """Add facts to `provenance.json`, such as those that are known once the roles are made."""
        write_whole(self.path / "provenance.json", json.dumps(self.provenance | dict(facts), indent=1))

    @property
    def spec(self) -> dict[str, Any]:
        """The argument of `create`, with a label that can be printed; empty if the file is missing or damaged."""
        spec = read_object(self.path / SPEC)
        if not all(spec.get(name) is None or isinstance(spec[name], kind) for name, kind in _SPEC.items()):
            return {}
        return {**spec, "label": printable(spec["label"])} if spec.get("label") else spec

    @property
    def provenance(self) -> dict[str, Any]:
        """The facts of `write_provenance`; empty if the file is missing or damaged."""
        return read_object(self.path / "provenance.json")

    @property
    def records(self) -> tuple[Path, ...]:
        """The existing record files, in order of role and index."""
        files = self.path.glob(RECORDS)
        return tuple(sorted(files, key=lambda file: (file.stem.rpartition("-")[0], len(file.stem), file.stem)))

    def save(self, name: str, values: NDArray[Any]) -> str:
        """Keep an array as `<name>.npy`, such as `final/server-0.npy`; return the SHA-256 of its bytes.

        Raises:
            RunError: the run's folder is gone.
        """
        path = self.path / f"{name}.npy"
        values = np.ascontiguousarray(values)
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(values))
        # Write from the array itself: there may be no memory for a copy of the model.
        bytes_ = values.data.cast("B") if values.size else memoryview(b"")
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, head.getbuffer(), bytes_)
        except FileNotFoundError as error:
            raise _gone(self.path) from error
        return hashlib.sha256(bytes_).hexdigest()

    @property
    def images(self) -> Path:
        """The images of servers for their new standbys, each of which is removed when it is read."""
        return self.path / "standbys"

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints from which an interrupted run resumes."""
        return Checkpoints(self.path / "checkpoints")

    @property
    def done(self) -> bool:
        """Whether the run has finished and all its files are there, in their sizes; see `damage` for their contents."""
        return (self.path / "DONE").exists() and not self.damage()

    @property
    def pending(self) -> bool:
        """Whether the run is still to be executed: it is not done, or is to start from the beginning."""
        return self.restarts or not self.done

    def damage(self, *, contents: bool = False) -> Damage:
        """Return which files of the run are missing or have changed; a damaged run must be executed again.

        Args:
            contents: whether to compare the checksums of a run that is done, which reads all its files.
        """
        unreadable = () if self.spec or not (self.path / SPEC).exists() else (f"a readable {SPEC}",)
        if not (self.path / "DONE").exists():
            return Damage(unreadable if self.records else (), done=False)
        try:
            found = damage(self.path, read_json(self.path / "DONE"), contents=contents)
        except InputError:
            found = Damage(("a readable DONE",))
        if not unreadable:
            return found
        missing, changed = (tuple(n for n in names if n != SPEC) for names in (found.missing, found.changed))
        return Damage((*unreadable, *missing), changed)

    def final_model(self) -> NDArray[np.float32]:
        """Read the model of the finished run, `[d]`.

        Raises:
            RunError: the run is not finished, or its files are damaged.
        """
        label = self.spec.get("label")
        name = f"run {self.path.name} ({label})" if label else f"run {self.path.name}"
        parts = sorted((self.path / "final").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
        if not (self.path / "DONE").exists() or not parts:
            raise RunError(f"{name} is not done: run the experiment first")
        if found := self.damage(contents=True):
            raise RunError(f"{name}: {found}: run the experiment again")
        return np.concatenate([np.load(regular(part)) for part in parts])

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file of a finished run; empty if an earlier version finished it."""
        known = read_object(self.path / "DONE").get("sha256")
        return known if isinstance(known, dict) else {}

    def reopen(self) -> Path | None:
        """Prepare a run that is done for another attempt: remove its `DONE`.

        All files of a damaged run move to `earlier/damaged-1`, `-2`, …: what is left of them may be of use.

        Returns:
            The folder with the files of a damaged run.
        """
        if not (self.path / "DONE").exists():
            return None
        if not self.damage(contents=True):
            (self.path / "DONE").unlink()
            return None
        folder = self.path / "earlier" / f"damaged-{1 + max(self._earlier('damaged'), default=0)}"
        folder.mkdir(parents=True)
        moved = [file for file in self.path.iterdir() if file.name not in _STAYS and not file.name.startswith(".")]
        # DONE is last, so that a move that was interrupted continues.
        for file in sorted(moved, key=lambda file: file.name == "DONE"):
            file.rename(folder / file.name)
        return folder

    @property
    def wall(self) -> float | None:
        """The seconds that the finished run took; None if that is not known."""
        wall = read_object(self.path / "DONE").get("wall")
        return finite(wall) if isinstance(wall, (int, float)) else None

    def finish(self, wall: float, processes: Iterable[str] = ()) -> None:
        """Check that all files of the run exist, and write `DONE`, which lists them with their checksums.

        Args:
            wall: seconds that the run took.
            processes: the processes of the run, such as `worker-3`.

        Raises:
            RunError: a file is missing, or a process has not finished; or the folder cannot be written.
        """
        done = {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "wall": round(wall, 3)}
        try:
            write_whole(self.path / "DONE", json.dumps({**done, **inventory(self.path, processes)}))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.checkpoints.clear()
        shutil.rmtree(self.images, ignore_errors=True)
        with suppress(OSError):
            self.request_resize(None)

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
        """Write `failure/<role>-<index>.json`: the process, its host, round, activity (`phase`) and error.

        `error` is the exception that ended the process, or a text of another process about it; that process may also
        give the time (`at`, as of `time.time`; default: now) and the `pid`.
        """
        if isinstance(error, BaseException):
            pid, said, trace = os.getpid(), f"{type(error).__name__}: {message_of(error)}", trace_of(error)
        else:
            said, trace = error, ""
        when = time.time() if at is None else at
        report = {"time": when, "role": role, "index": index, "host": host, "pid": pid, "round": round}
        report |= {"phase": phase, "error": said, "traceback": trace}
        folder = self.path / "failure"
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"{role}-{index}.json", json.dumps(report, indent=1))

    def has_failure(self, role: str, index: int) -> bool:
        """Return whether there is a report of a process's failure."""
        return (self.path / "failure" / f"{role}-{index}.json").exists()

    def set_failures_aside(self, only: Collection[Failure] | None = None) -> None:
        """Move the reports in `failure/` to `earlier/failure-1`, `-2`, …: each attempt has its own folder.

        Args:
            only: the failures to move; by default all.
        """
        reports = [file for file, failure in failure_reports(self.path / "failure") if only is None or failure in only]
        if reports:
            folder = self.path / "earlier" / f"failure-{1 + max(self._earlier('failure'), default=0)}"
            folder.mkdir(parents=True)
            for file in reports:
                file.rename(folder / file.name)

    def _earlier(self, kind: str) -> dict[int, Path]:
        """Return the folders of earlier attempts of a kind, such as `failure`, by number, the newest first."""
        folders = {path: path.name.partition("-")[2] for path in (self.path / "earlier").glob(f"{kind}-*")}
        numbered = {whole_number(number, 1, 10**9): path for path, number in folders.items()}
        return dict(sorted(((number, path) for number, path in numbered.items() if number), reverse=True))

    @property
    def earlier_failures(self) -> tuple[Failure, ...]:
        """The first failure of each failed attempt before the last one, the newest attempt first."""
        return tuple(failures[0] for folder in self._earlier("failure").values() if (failures := failures_of(folder)))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures of the last attempt in order of time; the first one is probably the cause."""
        return failures_of(self.path / "failure")


def _gone(path: Path) -> RunError:
    return RunError(f"the run's folder {path} was deleted or moved during the run; run it again")


def _unwritable(path: Path, error: OSError) -> RunError:
    advice = {
        errno.ENOSPC: "the disk is full: free disk space, or choose another results folder",
        errno.EDQUOT: "your quota is used up: free disk space, or choose another results folder",
        errno.EROFS: "the file system is read-only: choose another results folder",
        errno.EACCES: "permission denied: change its permissions, or choose another results folder",
    }
    reason = advice.get(error.errno or 0, f"{error.strerror}: choose another results folder")
    return RunError(f"cannot write to the results folder {path}: {reason}")

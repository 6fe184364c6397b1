"""The checkpoints of a run: a folder for each position with a file for each process and a manifest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.errors import InputError, RunError, message_of
from hpcps.inputs import MiB, parse_json, read_bytes, read_json, whole_number
from hpcps.numerics.state import State
from hpcps.records.files import RECORDS, Prefix, prefix_of, read_lines, record_file, sync_file, sync_folder, write_whole
from hpcps.records.memory import RunMemory

FORMAT = 1
"""Version of the files; other versions are rejected."""

_FACTS = "facts"
_MANIFEST = "manifest.json"
_LINK = "memory"
"""The link in the folder of a checkpoint to its files in memory."""
_LAST = 10**18

SECONDS_ON_DISK = 60.0
"""After so many seconds without a checkpoint on disk, the next one is written there, whatever it was made for."""


@dataclass(frozen=True)
class CheckpointPart:
    """The part of one process.

    Attributes:
        state: the state of its role.
        record: the lines that its record had.
        elapsed: seconds since the start of its record, without the time between attempts.
        of_lost: whether the process was lost, and this was made of the part of another one; or it joins the run here.
    """

    state: State
    record: Prefix
    elapsed: float
    of_lost: bool = False


@dataclass(frozen=True)
class Checkpoints:
    """`results/<experiment>/runs/<run id>/checkpoints/`.

    A part is a `.npz` file: numbers and text, no pickle. A folder without a manifest is not a checkpoint: the manifest
    is written last, and has the checksum of every part. A part has the number and the checksum of the lines that the
    record of its process had; the manifest has those of the records of processes without a part.

    While the run has memory (see `RunMemory`), parts are written there; those that find no room are on disk. The
    process that seals the checkpoint copies it to the disk if it is to last. Only the host where the memory is can read
    the others; for all others, and after a restart of the machine, they are folders without a manifest.
    """

    path: Path

    def write(
        self, position: int, process: str, part: CheckpointPart, sync_record: Callable[[], None] = lambda: None
    ) -> str:
        """Write the part of a process, such as `worker-3`; return its SHA-256.

        Args:
            position: that of the checkpoint.
            process: the process.
            part: its part.
            sync_record: waits until its record is on disk; called if the checkpoint is not in memory.

        Raises:
            RunError: it cannot be written.
        """
        facts = {"format": FORMAT, "facts": part.state.facts, **asdict(part.record), "elapsed": part.elapsed}
        assert _FACTS not in part.state.arrays
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        content = io.BytesIO()
        arrays: dict[str, Any] = {_FACTS: text, **part.state.arrays}
        np.savez(content, **arrays)
        folder, name, bytes_ = self._folder(position), f"{process}.npz", content.getbuffer()
        try:
            self.path.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
            self._memory.link(folder / _LINK)
            if not self.in_memory(position):
                sync_record()
            if self._write_in_memory(position, name, bytes_):
                (folder / name).unlink(missing_ok=True)  # the process before this one may have found no room
            else:
                write_whole(folder / name, bytes_)
        except FileNotFoundError as error:
            raise self._gone() from error
        except OSError as error:
            what = f"cannot write the checkpoint {folder / name}: {error.strerror}; free disk space and run again"
            raise RunError(what) from error
        return hashlib.sha256(bytes_).hexdigest()

    def in_memory(self, position: int) -> bool:
        """Return whether a checkpoint is in memory, and not on disk."""
        return self._target(position) is not None and not self._is_on_disk(position)

    def _write_in_memory(self, position: int, name: str, content: memoryview) -> bool:
        """Write a file in memory, if the checkpoint is there and has room; return whether it is written."""
        folder = self._target(position)
        if folder is None or self._is_on_disk(position) or not self._memory.has_room(len(content)):
            return False
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(folder / name, content)
        except OSError:  # it is full, or somebody has removed it
            return False
        return True

    def seal(
        self, position: int, run_id: str, checksums: Mapping[str, str], keep: int, *, lasting: bool = True
    ) -> None:
        """Write the manifest, which completes the checkpoint; remove all but the last `keep`, and the last on disk.

        Args:
            position: that of the checkpoint.
            run_id: the run.
            checksums: the checksum of every part.
            keep: the number of checkpoints to keep.
            lasting: whether it must survive a power failure. Else it may stay in memory, if it is there.

        Raises:
            RunError: it cannot be written.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = {"format": FORMAT, "run_id": run_id, "moment": position, "written": now, "parts": dict(checksums)}
        others = [file for file in self.path.parent.glob(RECORDS) if file.stem not in checksums]
        memory = self._target(position)
        try:
            manifest["records"] = {file.stem: asdict(prefix_of(file)) for file in others}
            text = json.dumps(manifest, indent=1)
            linked = (self._folder(position) / _LINK).is_symlink()
            if linked and not all(self._file(position, f"{process}.npz").exists() for process in checksums):
                self._remove(position)  # somebody has emptied the memory: the checkpoint before this one counts
                return
            if memory is None:
                self._write_manifest(position, text)
            elif (
                lasting
                or self._is_time_for_disk()
                or not self._write_in_memory(position, _MANIFEST, memoryview(text.encode()))
            ):
                self._copy_to_disk(position, checksums, text)
        except FileNotFoundError as error:
            raise self._gone() from error
        except OSError as error:
            raise RunError(f"cannot complete a checkpoint in {self.path}: {error.strerror}; free disk space") from error
        kept = self.positions()[:keep]
        if not kept:  # the folder was deleted after the manifest was written
            raise self._gone()
        on_disk = next(filter(self._is_on_disk, self.positions()), None)
        for other in self._folders():
            if other < kept[-1] and other != on_disk:
                self._remove(other)

    def _write_manifest(self, position: int, text: str) -> None:
        """Complete a checkpoint on disk."""
        sync_folder(self._folder(position))
        write_whole(self._folder(position) / _MANIFEST, text)
        sync_folder(self._folder(position))
        sync_folder(self.path)

    def _copy_to_disk(self, position: int, processes: Iterable[str], manifest: str) -> None:
        """Copy a checkpoint from memory to the disk, with the lines of records that it counts, and complete it there.

        Raises:
            OSError: it cannot be written.
        """
        folder, memory = self._folder(position), self._target(position)
        assert memory is not None, "the checkpoint is in memory"
        records = [file for name in processes if (file := record_file(self.path.parent, name)).exists()]
        for file in records:
            sync_file(file)
        for parent in {file.parent for file in records}:
            sync_folder(parent)
        for file in memory.glob("*.npz"):
            write_whole(folder / file.name, file.read_bytes())
        self._write_manifest(position, manifest)
        self._forget_memory(position)

    def _forget_memory(self, position: int) -> None:
        """Remove what a checkpoint has in memory."""
        memory = self._target(position)
        with suppress(OSError):
            os.unlink(self._folder(position) / _LINK)
        if memory is not None:
            shutil.rmtree(memory, ignore_errors=True)

    def _is_time_for_disk(self) -> bool:
        """Return whether the last checkpoint on disk is `SECONDS_ON_DISK` old, or there is none."""
        last = next(filter(self._is_on_disk, self.positions()), None)
        with suppress(KeyError, TypeError, ValueError):
            if last is not None:
                # By the clock of this machine, which that of the file system may not follow.
                age = time.time() - datetime.fromisoformat(self._manifest(last)["written"]).timestamp()
                return not 0.0 <= age < SECONDS_ON_DISK
        return True

    def use_memory(self, most: float) -> None:
        """Have the processes of the next attempts write checkpoints into the memory of this host until `leave_memory`.

        Args:
            most: the bytes that they may use.
        """
        self._memory.open(most)

    def leave_memory(self) -> None:
        """Copy the newest checkpoint to the disk if it is in memory only, and remove all that the run has in memory.

        No process of the run may be there.

        Raises:
            RunError: it cannot be copied; then the memory stays as it is.
        """
        if not self._memory.is_open:
            return
        newest = next((m for m in self.positions() if self._manifest(m)), None)
        if newest is not None and self.in_memory(newest):
            try:
                parts = self._manifest(newest)["parts"]
                self._copy_to_disk(newest, parts, self._file(newest, _MANIFEST).read_text())
            except OSError as error:
                reason = f"{error.strerror}; free disk space and run again"
                raise RunError(
                    f"cannot copy the checkpoint at {newest} from /dev/shm to {self.path}: {reason}"
                ) from error
        for position in self._folders():
            if self.in_memory(position):
                self._remove(position)
        self._memory.close()

    def positions(self) -> list[int]:
        """Return the positions of all complete checkpoints, the newest first."""
        return sorted((m for m in self._folders() if self._file(m, _MANIFEST).is_file()), reverse=True)

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is being written: the newest one is not complete."""
        return max(self._folders(), default=-1) > max(self.positions(), default=-1)

    def check(
        self, position: int, run_id: str, everyone: frozenset[str], replaceable: frozenset[str] = frozenset()
    ) -> None:
        """Check that a checkpoint belongs to this run and has a part of every process, but for lost ones.

        Args:
            position: that of the checkpoint.
            run_id: the run.
            everyone: the processes of the run.
            replaceable: those that it may have lost.

        Raises:
            RunError: it is damaged or belongs to another run; the message gives the reason.
        """
        manifest = self._manifest(position)
        if manifest.get("format") != FORMAT:
            raise self._rejected(position, "its manifest is damaged or of another version of hpcps")
        if manifest.get("run_id") != run_id:
            raise self._rejected(position, f"it belongs to run {manifest.get('run_id')}")
        if set(manifest["parts"]) | replaceable != everyone:
            raise self._rejected(position, f"it only has parts of {', '.join(sorted(manifest['parts']))}")

    def has(self, position: int, process: str) -> bool:
        """Return whether a checkpoint has a part of a process."""
        return process in self._manifest(position).get("parts", {})

    def read(self, position: int, process: str) -> CheckpointPart:
        """Read the part of a process.

        Raises:
            RunError: it is missing or was changed, or the record of the process lacks lines that it counts.
        """
        content = self._content(position, process)
        if hashlib.sha256(content).hexdigest() != self._manifest(position).get("parts", {}).get(process):
            raise self._rejected(position, f"{process}.npz is damaged: its checksum differs from the manifest")
        part = self._part(position, process, content)
        self._check_record(position, process, part.record)
        return part

    def state(self, position: int, process: str) -> State:
        """Return the state in the part of a process, also of a checkpoint that is not complete.

        Raises:
            RunError: it is missing or damaged.
        """
        return self._part(position, process, self._content(position, process)).state

    def _content(self, position: int, process: str) -> bytes:
        try:
            return read_bytes(self._file(position, f"{process}.npz"))
        except InputError as error:
            raise self._rejected(position, f"{process}.npz cannot be read: {error.reason}") from error

    def _part(self, position: int, process: str, content: bytes) -> CheckpointPart:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                if sum(entry.file_size for entry in file.zip.infolist()) > len(content):
                    raise ValueError("it is compressed")
                arrays = {name: file[name] for name in file.files}
            stated = parse_json(f"{process}.npz", arrays.pop(_FACTS).tobytes())
            match stated:
                case {"facts": dict(facts), "lines": int(), "elapsed": int(elapsed) | float(elapsed)}:
                    return CheckpointPart(State(arrays, facts), _prefix(stated), elapsed)
                case _:
                    raise ValueError("it lacks facts, lines or elapsed")
        except Exception as error:  # a damaged archive can raise anything
            raise self._rejected(position, f"{process}.npz has invalid content: {message_of(error)}") from error

    def record_of(self, position: int, process: str) -> Prefix:
        """Return the lines that the record of a process without a part has now; all of them stay valid.

        Raises:
            RunError: the record lacks some that it had at a checkpoint.
        """
        records = self._manifest(position).get("records")
        counted = records.get(process) if isinstance(records, dict) else None
        if isinstance(counted, dict):  # there is none in a manifest of an earlier version
            self._check_record(position, process, _prefix(counted))
        with suppress(OSError):
            return prefix_of(record_file(self.path.parent, process))
        return Prefix(0)

    def record_at(self, position: int, process: str) -> Prefix:
        """Return the lines that the record of a process without a part had at a checkpoint."""
        counted = self._manifest(position).get("records", {}).get(process)
        return _prefix(counted) if isinstance(counted, dict) else Prefix(0)

    def record_until(self, step: int, process: str, memberships: int) -> Prefix:
        """Return the lines that the record of a lost process has of its first local steps; see `Lines.until_step`."""
        file = record_file(self.path.parent, process)
        try:
            return prefix_of(file, read_lines(file).until_step(step, memberships))
        except OSError:
            return Prefix(0)  # it was lost before its first line

    def _check_record(self, position: int, process: str, counted: Prefix) -> None:
        """Check that the record of a process begins with the lines that a checkpoint counts.

        Raises:
            RunError: it does not.
        """
        if not counted.lines:
            return
        file = record_file(self.path.parent, process)
        name = f"records/{file.name}"
        try:
            found = prefix_of(file, counted.lines)
        except OSError as error:
            raise self._rejected(position, f"{name} cannot be read: {error.strerror or error}") from error
        if found.lines < counted.lines:
            reason = f"{name} has {found.lines} lines, and the checkpoint counts {counted.lines}: some are lost"
            raise self._rejected(position, reason)
        if counted.sha256 not in ("", found.sha256):
            reason = f"{name} is damaged: the checksum of its first {found.lines} lines differs from the checkpoint"
            raise self._rejected(position, reason)

    def forget_after(self, position: int) -> None:
        """Remove the checkpoints after a position: the run resumes from there and writes them again."""
        for other in self._folders():
            if other > position:
                self._remove(other)
        self._memory.keep_only([memory for other in self._folders() if (memory := self._target(other))])

    def clear(self) -> None:
        """Remove all checkpoints: the run is done or starts again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._memory.keep_only(())

    def _folders(self) -> list[int]:
        names: list[str] = []
        with suppress(OSError):  # there is none yet, or the run's folder was deleted
            names = os.listdir(self.path)
        # A user may have put a copy beside them, under another name.
        numbers = (whole_number(name, 0, _LAST) for name in names)
        return [number for number in numbers if number is not None]

    def _folder(self, position: int) -> Path:
        return self.path / f"{position:09}"

    @property
    def _memory(self) -> RunMemory:
        return RunMemory(self.path.parent)

    def _target(self, position: int) -> Path | None:
        """Return the folder of a checkpoint in memory, which may not be there; None if it is on disk only."""
        return self._memory.resolve(self._folder(position) / _LINK)

    def _is_on_disk(self, position: int) -> bool:
        return (self._folder(position) / _MANIFEST).is_file()

    def _file(self, position: int, name: str) -> Path:
        """Return the path of a file of a checkpoint: on disk, or in memory if it is not there."""
        on_disk = self._folder(position) / name
        if not on_disk.exists() and (memory := self._target(position)) is not None:
            return memory / name
        return on_disk

    def _manifest(self, position: int) -> dict[str, Any]:
        with suppress(InputError):
            manifest = read_json(self._file(position, _MANIFEST), 16 * MiB)
            if isinstance(manifest, dict) and isinstance(manifest.get("parts"), dict):
                return manifest
        return {}

    def _remove(self, position: int) -> None:
        """Remove a checkpoint, starting with its manifest, so that a partly removed one is not a checkpoint."""
        with suppress(OSError):
            os.unlink(self._folder(position) / _MANIFEST)
        self._forget_memory(position)
        shutil.rmtree(self._folder(position), ignore_errors=True)

    def _gone(self) -> RunError:
        return RunError(f"the run's folder {self.path.parent} was deleted or moved during the run; run it again")

    def _rejected(self, position: int, reason: str) -> RunError:
        return RunError(f"the checkpoint {self._folder(position)} is rejected: {reason}")


def _prefix(facts: Mapping[str, Any]) -> Prefix:
    """Return the lines of a record that a checkpoint counts; one of an earlier version has no checksum."""
    lines, checksum = facts.get("lines"), facts.get("sha256")
    return Prefix(lines if isinstance(lines, int) else 0, checksum if isinstance(checksum, str) else "")

"""The checkpoints of a run: a folder for each moment, a file for each process, and a manifest that makes it one."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.errors import RunError
from hpcps.records.files import write_whole
from hpcps.state import State

FORMAT = 1
"""Version of the files; another one is refused."""

_FACTS = "facts"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Part:
    """What one process wrote.

    Attributes:
        state: its role's.
        lines: lines that its record had.
        elapsed: seconds since its record began, without the time between attempts.
    """

    state: State
    lines: int
    elapsed: float


@dataclass(frozen=True)
class Checkpoints:
    """`results/<experiment>/runs/<run id>/checkpoints/`.

    A part is a `.npz` file: numbers and text, no pickle. A folder without a manifest is no checkpoint: the manifest is
    written last, and has the checksum of every part.
    """

    path: Path

    def write(self, moment: int, process: str, part: Part) -> str:
        """Write the part of a process, such as `worker-3`; return its SHA-256.

        Raises:
            RunError: it cannot be written.
        """
        facts = {"format": FORMAT, "facts": part.state.facts, "lines": part.lines, "elapsed": part.elapsed}
        assert _FACTS not in part.state.arrays
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        content = io.BytesIO()
        arrays: dict[str, Any] = {_FACTS: text, **part.state.arrays}
        np.savez(content, **arrays)
        path = self._folder(moment) / f"{process}.npz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content.getbuffer())
        except OSError as error:
            raise RunError(f"cannot write the checkpoint {path}: {error.strerror}; make room and run again") from error
        return hashlib.sha256(content.getbuffer()).hexdigest()

    def seal(self, moment: int, run_id: str, checksums: Mapping[str, str], keep: int) -> None:
        """Write the manifest, so that the checkpoint exists; remove those before the last `keep`.

        Raises:
            RunError: it cannot be written.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        manifest = {"format": FORMAT, "run_id": run_id, "moment": moment, "written": now, "parts": dict(checksums)}
        try:
            write_whole(self._folder(moment) / _MANIFEST, json.dumps(manifest, indent=1))
        except OSError as error:
            raise RunError(f"cannot seal a checkpoint in {self.path}: {error.strerror}; make room") from error
        oldest = min(self.moments()[:keep])
        for other in self._folders():
            if other < oldest:
                self._remove(other)

    def moments(self) -> list[int]:
        """Return the moments of all sealed checkpoints, the newest first."""
        return sorted((m for m in self._folders() if (self._folder(m) / _MANIFEST).is_file()), reverse=True)

    def check(self, moment: int, run_id: str, everyone: frozenset[str]) -> None:
        """Make sure that a checkpoint is one of this run and has a part of every process.

        Raises:
            RunError: it is damaged or another run's; says what is wrong.
        """
        manifest = self._manifest(moment)
        if manifest.get("format") != FORMAT:
            raise self._refused(moment, "its manifest is damaged or of another version of hpcps")
        if manifest.get("run_id") != run_id:
            raise self._refused(moment, f"it belongs to run {manifest.get('run_id')}")
        if set(manifest["parts"]) != everyone:
            raise self._refused(moment, f"it has parts of {', '.join(sorted(manifest['parts']))} only")

    def read(self, moment: int, process: str) -> Part:
        """Read the part of a process.

        Raises:
            RunError: it is missing, or is not what was written.
        """
        path = self._folder(moment) / f"{process}.npz"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self._refused(moment, f"{path.name} cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != self._manifest(moment).get("parts", {}).get(process):
            raise self._refused(moment, f"{path.name} is damaged: it is not what its manifest says")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            head = json.loads(arrays.pop(_FACTS).tobytes())
            return Part(State(arrays, head["facts"]), head["lines"], head["elapsed"])
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise self._refused(moment, f"{path.name} cannot be understood: {error}") from error

    def forget_after(self, moment: int) -> None:
        """Remove what was written after a moment: the run goes on from there, and will write it anew."""
        for other in self._folders():
            if other > moment:
                self._remove(other)

    def clear(self) -> None:
        """Remove all of them: the run is done, or begins anew."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _folders(self) -> list[int]:
        # Somebody may have put a copy beside them, under a name of his own.
        return [int(folder.name) for folder in self.path.glob("[0-9]*") if folder.name.isdigit()]

    def _folder(self, moment: int) -> Path:
        return self.path / f"{moment:09}"

    def _manifest(self, moment: int) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            manifest = json.loads((self._folder(moment) / _MANIFEST).read_bytes())
            if isinstance(manifest, dict) and isinstance(manifest.get("parts"), dict):
                return manifest
        return {}

    def _remove(self, moment: int) -> None:
        """Remove one; first of all its manifest, so that half of it is none."""
        with suppress(OSError):
            os.unlink(self._folder(moment) / _MANIFEST)
        shutil.rmtree(self._folder(moment), ignore_errors=True)

    def _refused(self, moment: int, reason: str) -> RunError:
        return RunError(f"the checkpoint {self._folder(moment)} is refused: {reason}")

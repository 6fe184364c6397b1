"""The folder of a run in `/dev/shm`, where its checkpoints survive its processes, but not a power failure."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")

_MOST = "most"
"""The file in a run's folder there with the number of bytes that the run may use."""


@dataclass(frozen=True)
class RunMemory:
    """`/dev/shm/hpcps-<user>-<run id>-<hash of the path>/`; the run writes checkpoints there while this folder exists.

    Every user may write into `/dev/shm`. So the folder only counts if it belongs to this user and is closed to others.

    Attributes:
        run: the folder of the run in the results.
    """

    run: Path

    @property
    def folder(self) -> Path:
        """Its path."""
        path = os.path.realpath(self.run)
        return FOLDER / f"hpcps-{os.getuid()}-{self.run.name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"

    def open(self, most: float) -> None:
        """Have the run write checkpoints into memory, if that is possible here.

        Args:
            most: the bytes that it may use.
        """
        folder = self.folder
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if self._is_own(folder):
                (folder / _MOST).write_text(str(int(most)))

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        if self._is_own(folder := self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def is_open(self) -> bool:
        """Whether the run writes checkpoints into memory."""
        return self._is_own(self.folder)

    def link(self, path: Path) -> None:
        """Make a symbolic link to a new folder in memory, if the run has memory; another process may make it, too."""
        folder = self.folder
        if self._is_own(folder):
            with suppress(OSError):  # the link is there; or the file system has none
                os.symlink(folder / f"{path.parent.name}-{secrets.token_hex(4)}", path)

    def resolve(self, link: Path) -> Path | None:
        """Return the folder of a link; None if there is no link, or if it leads elsewhere than to this run's memory."""
        try:
            target = Path(os.readlink(link))
        except OSError:
            return None
        return target if target.parent == self.folder and self._is_own(target.parent) else None

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes more leave MPI its room.

        Half of `/dev/shm` stays free, and the run uses no more than it may.
        """
        folder = self.folder
        try:
            most = int((folder / _MOST).read_text())
            space = os.statvfs(folder)
            used = sum(file.stat().st_size for file in folder.glob("*/*"))
        except (OSError, ValueError):
            return False
        left = space.f_bavail * space.f_frsize - size
        return used + size <= most and left >= space.f_blocks * space.f_frsize / 2

    def keep_only(self, targets: Collection[Path]) -> None:
        """Remove the folders of checkpoints to which no link leads, such as those of an attempt on another host."""
        folder = self.folder
        paths = folder.iterdir() if self._is_own(folder) else ()
        for path in list(paths):
            if path not in targets and path.name != _MOST:
                shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def _is_own(folder: Path) -> bool:
        try:
            found = folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

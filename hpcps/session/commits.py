"""The files of what a script has committed, from which it goes on when it is started again.

Each process has a file of each commit. A commit counts once the files of all processes are there; a process removes
its file of the commit before only then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import RunError, SpecError
from hpcps.inputs import read_json
from hpcps.records.files import write_whole, writing

FOLDER = "state"
"""The folder of a launch's commits in the folder of its run."""

_NAME = re.compile(r"rank-(\d{1,9})-of-(\d{1,9})-(\d{1,18})\.pt")
_ANY = re.compile(r"(\.?)rank-(\d{1,9})-of-\d{1,9}-(\d{1,18})\.(?:pt|json)(?:\.\d+)?")
"""Also what a process that was killed has not finished."""


@dataclass(frozen=True)
class Commits:
    """The commits of a script in a folder that all of its processes can read.

    Attributes:
        folder: the folder; it need not exist.
        size: the number of processes.
    """

    folder: Path
    size: int

    def prepare(self) -> None:
        """Create the folder, if it does not exist.

        Raises:
            RunError: it cannot be created.
        """
        with writing(f"to the folder {self.folder}", "give a folder= that all processes can read and write"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> int:
        """Return the number of the newest commit of all processes, from 1; 0 if there is none.

        Raises:
            SpecError: another number of processes has written the files.
        """
        found: dict[int, set[int]] = {}
        for file in self._files():
            rank, size, number = self._numbers(file)
            if size != self.size:
                raise SpecError(
                    f"{self.folder} has the state of {size} processes, and {self.size} have been started: start "
                    f"{size}, or remove the folder to begin again"
                )
            found.setdefault(number, set()).add(rank)
        return max((number for number, ranks in found.items() if len(ranks) == self.size), default=0)

    def file(self, rank: int, number: int) -> Path:
        """Return the file of a process for a commit."""
        return self.folder / f"rank-{rank}-of-{self.size}-{number}.pt"

    def write(self, rank: int, number: int, content: memoryview, recorded: Mapping[str, Any]) -> None:
        """Write the files of a process for a commit.

        Args:
            rank: the process.
            number: the number of the commit.
            content: what the script keeps.
            recorded: what continues its record; see `ScriptRecord.committed`.

        Raises:
            RunError: they cannot be written.
        """
        file = self.file(rank, number)
        with writing(f"the state {file}", "free disk space, or give another folder="):
            write_whole(file.with_suffix(".json"), json.dumps(dict(recorded)))
            write_whole(file, content)

    def recorded(self, rank: int, number: int) -> Mapping[str, Any]:
        """Return what continues the record of a process from a commit.

        Raises:
            InputError: the file is damaged.
        """
        return dict(read_json(self.file(rank, number).with_suffix(".json")))

    def keep(self, rank: int, number: int) -> None:
        """Remove the files of a process for all other commits, and what it has not finished."""
        for file in self._files(_ANY):
            found = _ANY.fullmatch(file.name)
            assert found is not None, "it has been found by this expression"
            unfinished, mine, other = found.groups()
            if int(mine) == rank and (unfinished or int(other) != number):
                with suppress(OSError):  # it is removed with the next commit
                    file.unlink()

    def _files(self, name: re.Pattern[str] = _NAME) -> list[Path]:
        try:
            return [file for file in self.folder.iterdir() if name.fullmatch(file.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"the state in {self.folder} cannot be read: {error.strerror}") from error

    @staticmethod
    def _numbers(file: Path) -> tuple[int, int, int]:
        found = _NAME.fullmatch(file.name)
        assert found is not None, "it is a file of this class"
        rank, size, number = map(int, found.groups())
        return rank, size, number

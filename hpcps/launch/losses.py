"""The processes that a script has lost and goes on after: the files that say so, and who is started again."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcps.inputs import whole_number
from hpcps.launch.plan import Rank
from hpcps.records.files import write_whole

_MOST = 5


@dataclass(frozen=True)
class Loss:
    """A lost process.

    Attributes:
        role: its role.
        index: its index among those of its role.
        host: its host.
        why: how it ended.
    """

    role: str
    index: int
    host: str
    why: str


class Losses:
    """The files of a launch: its losses, the last generation with a commit, and its end, in the folder of the plan."""

    def __init__(self, plan_file: Path) -> None:
        """Set the folder of the files; it need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.losses")
        self._committed = plan_file.with_name(f"{plan_file.name}.committed")
        self._over = plan_file.with_name(f"{plan_file.name}.over")

    def add(self, name: str, loss: Loss) -> None:
        """Write the file of a loss."""
        self.path.mkdir(exist_ok=True)
        write_whole(self.path / name, json.dumps(asdict(loss)))

    def names(self) -> list[str]:
        """Return the names of the files; listing the folder also refreshes what a network file system caches."""
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self.path) if name[0] != "."]
        return []

    def read(self, name: str) -> Loss:
        """Return the loss of which a file says."""
        return Loss(**json.loads((self.path / name).read_text()))

    def note_commit(self, generation: int) -> None:
        """Note that the processes have committed in a generation; without this, losses count as fruitless."""
        with suppress(OSError):
            write_whole(self._committed, str(generation))

    def note_over(self) -> None:
        """Note that all processes have done what they repeat after a loss: none that is lost later is replaced."""
        with suppress(OSError):
            self._over.touch()

    def over(self) -> bool:
        """Return whether nothing is repeated any more."""
        return self._over.exists()

    def committed(self) -> int | None:
        """Return the last generation with a commit; None if there is none."""
        with suppress(OSError):
            return whole_number(self._committed.read_text(), 0, 1 << 30)
        return None


class Replacements:
    """Decides, in a starter, whether a process of a script is started again when it is lost.

    One whose rank is lost again and again, without a commit in between, is not: the script, or its host, may be the
    reason.
    """

    def __init__(self, plan_file: Path) -> None:
        """Begin without losses."""
        self._losses = Losses(plan_file)
        # Of each rank: the last generation with a commit when it was lost, and how often it was lost since that.
        self._fruitless: dict[int, tuple[int | None, int]] = {}

    def refusal(self, rank: Rank, number: int, why: str) -> str:
        """Note the loss of a process, unless it is not started again; return why, or an empty text if it is.

        Args:
            rank: its rank.
            number: how many processes had this rank before it.
            why: how it ended.
        """
        if self._losses.over():
            return f"{rank} is lost after the end of the training, and is not replaced"
        committed = self._losses.committed()
        before, count = self._fruitless.get(rank.rank, (committed, 0))
        self._fruitless[rank.rank] = committed, count = committed, count + 1 if committed == before else 1
        if count > _MOST:
            return f"{rank} has been lost {count} times without a commit in between, and is not replaced any more"
        try:
            self._losses.add(f"{rank}.{number}", Loss(rank.role, rank.index, socket.gethostname(), why))
        except OSError as error:
            return f"{rank} is not replaced: cannot write {self._losses.path}: {error.strerror}"
        return ""

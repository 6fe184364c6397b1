"""The processes that a script has lost and goes on after, and the resizes of it: the files that say so.

Also who is started again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hpcps.inputs import whole_number
from hpcps.launch.plan import Plan, Rank
from hpcps.records.files import write_whole

_MOST = 5
_RESIZE = "resize"
"""The name of the file of a resize begins with this; those of losses begin with the name of a process."""


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


@dataclass(frozen=True)
class Resize:
    """Other processes of a script, from a generation on, because it has asked for another number.

    Attributes:
        world: all processes, by rank.
        joined: the processes that were not there before.
        left: the processes that are not there any more.
    """

    world: tuple[Rank, ...]
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @staticmethod
    def of(before: Sequence[Rank], world: Sequence[Rank]) -> Resize:
        """Return the resize from some processes to others."""
        old, new = [*map(str, before)], [*map(str, world)]
        joined, left = (tuple(name for name in names if name not in there) for names, there in ((new, old), (old, new)))
        return Resize(tuple(world), joined, left)

    @property
    def workers(self) -> int:
        """The number of workers."""
        return count_of(self.world, "worker")

    @property
    def servers(self) -> int:
        """The number of servers."""
        return count_of(self.world, "server")

    def __str__(self) -> str:
        size = size_of(self.workers, self.servers)
        changes = ((names, verb) for names, verb in ((self.joined, "join"), (self.left, "leave")) if names)
        which = "; ".join(f"{', '.join(names)} {verb}{'s' * (len(names) == 1)}" for names, verb in changes)
        return f"{size}: {which}" if which else size


class Losses:
    """The files of a launch in the folder of the plan: losses, resizes, the last generation with a commit, its end."""

    def __init__(self, plan_file: Path) -> None:
        """Set the folder of the files; it need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.losses")
        self._committed = plan_file.with_name(f"{plan_file.name}.committed")
        self._over = plan_file.with_name(f"{plan_file.name}.over")

    def add(self, name: str, change: Loss | Resize) -> None:
        """Write the file of a loss or a resize."""
        self.path.mkdir(exist_ok=True)
        write_whole(self.path / name, json.dumps(asdict(change)))

    def lose(self, process: str, number: int, loss: Loss) -> None:
        """Write the file of a loss.

        Args:
            process: the name of the lost process.
            number: the number of processes that had its rank before it, since this rank joined.
            loss: the loss.
        """
        names = self.names()
        # A process that has left and joined again is another one: its loss begins another generation, too.
        while f"{process}.{number}" in names:
            number += 1
        self.add(f"{process}.{number}", loss)

    def resize(self, resize: Resize) -> None:
        """Write the file of a resize.

        Raises:
            OSError: it cannot be written.
        """
        self.add(f"{_RESIZE}.{1 + len(resizes(self.names()))}", resize)

    def present(self, plan: Plan) -> tuple[Plan, frozenset[str]]:
        """Return the present processes of a launch.

        A network file system may show the name of a file first: a resize is new once its file can be read.

        Args:
            plan: the plan of the launch.

        Returns:
            The plan with the processes of the newest resize, and the names of the files, up to that resize.
        """
        names = frozenset(self.names())
        for name in reversed(resizes(names)):
            try:
                newest = self.read(name)
            except OSError:
                names -= {name}
                continue
            assert isinstance(newest, Resize), "its name says so"
            return replace(plan, world=newest.world), names
        return plan, names

    def names(self) -> list[str]:
        """Return the names of the files; listing the folder also refreshes what a network file system caches."""
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self.path) if name[0] != "."]
        return []

    def read(self, name: str) -> Loss | Resize:
        """Return the loss or the resize of which a file says."""
        found = json.loads((self.path / name).read_text())
        if not name.startswith(_RESIZE):
            return Loss(**found)
        return Resize(tuple(Rank(**rank) for rank in found["world"]), tuple(found["joined"]), tuple(found["left"]))

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
        # A network file system caches for up to a minute that a file is missing; listing its folder refreshes it.
        with suppress(OSError):
            os.listdir(self._over.parent)
        return self._over.exists()

    def committed(self) -> int | None:
        """Return the last generation with a commit; None if there is none."""
        with suppress(OSError):
            return whole_number(self._committed.read_text(), 0, 1 << 30)
        return None


def size_of(workers: int, servers: int) -> str:
    """Return the numbers of the processes of a script in words: servers only if there are any."""
    counts = (workers, "worker"), (servers, "server")
    return " and ".join(f"{count} {role}{'s' * (count != 1)}" for count, role in counts if count)


def count_of(world: Sequence[Rank], role: str) -> int:
    """Return the number of processes of a role."""
    return sum(rank.role == role for rank in world)


def resizes(names: Collection[str]) -> list[str]:
    """Return those of the names of files that are of resizes, in their order."""
    found = {int(name.partition(".")[2]): name for name in names if name.startswith(f"{_RESIZE}.")}
    return [found[number] for number in sorted(found)]


class Replacements:
    """Decides, in a starter, whether a process of a script is started again when it is lost.

    One whose rank is lost again and again, without a commit in between, is not: the script, or its host, may be the
    reason.
    """

    def __init__(self, plan_file: Path) -> None:
        """Begin without losses."""
        self._losses = Losses(plan_file)
        # Of each process: the last generation with a commit when it was lost, and how often it was lost since that.
        self._fruitless: dict[str, tuple[int | None, int]] = {}

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
        before, count = self._fruitless.get(str(rank), (committed, 0))
        self._fruitless[str(rank)] = committed, count = committed, count + 1 if committed == before else 1
        if count > _MOST:
            return f"{rank} has been lost {count} times without a commit in between, and is not replaced any more"
        try:
            self._losses.lose(str(rank), number, Loss(rank.role, rank.index, socket.gethostname(), why))
        except OSError as error:
            return f"{rank} is not replaced: cannot write {self._losses.path}: {error.strerror}"
        return ""

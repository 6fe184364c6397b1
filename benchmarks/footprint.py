"""Watches how much memory the ranks of a launch use, shared memory counted once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_FIELDS = {"Pss": "pss", "Private_Dirty": "own", "Private_Clean": "own"}
_SHARED = {"RssShmem": "shared"}


class Footprint:
    """The peak of every rank, in bytes.

    `pss` counts a page that k processes have mapped as the k-th part of one in each of them, so that a sum over the
    processes is what the machine needs. `own` counts what only that process has. Both say of memory that a process
    maps, but did not make, that it has some of it, or all once nobody else maps it any more: so nothing counts from
    when the first rank lets go of what it shares.
    """

    def __init__(self, plan: Path) -> None:
        """Watch a launch.

        Args:
            plan: its plan, by which its ranks are found: all of them have it on their command line.
        """
        self._plan = str(plan)
        self._ranks: dict[int, str] = {}
        self._asked = 0
        self._shared: dict[int, int] = {}
        self.peaks: dict[int, dict[str, int]] = {}
        self.total = 0

    def look(self) -> None:
        """Read what the ranks use now."""
        self._asked += 1
        if self._asked % 10 == 1:
            self._ranks.update(_ranks(self._plan))
        usages = {pid: _bytes(pid, "smaps_rollup", _FIELDS) for pid in self._ranks}
        # Looked at afterwards: one may have let go while others were read.
        shared = {pid: _bytes(pid, "status", _SHARED)["shared"] for pid in self._ranks}
        if any(now < self._shared.get(pid, 0) for pid, now in shared.items()):
            return
        self._shared.update(shared)
        if not all(now["pss"] for now in usages.values()):
            return
        total = 0
        for pid, now in usages.items():
            before = self.peaks.setdefault(pid, dict.fromkeys(now, 0))
            self.peaks[pid] = {name: max(before[name], value) for name, value in now.items()}
            total += now["pss"]
        self.total = max(self.total, total)

    def of(self, role: str) -> dict[str, int]:
        """Return the largest peaks of the processes of a role."""
        peaks = [self.peaks[pid] for pid, its in self._ranks.items() if its == role and pid in self.peaks]
        return {name: max((peak[name] for peak in peaks), default=0) for name in ("pss", "own")}


def _ranks(plan: str) -> Iterator[tuple[int, str]]:
    """Yield the process id and role of every rank, and of its guard: that has the rank's command line at first."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if len(words) > 2 and words[-2] == plan and "-m" in words:
                    yield int(folder.name), words[-1]


def _bytes(pid: int, file: str, fields: Mapping[str, str]) -> dict[str, int]:
    """Return bytes that a file of `/proc` has of a process, some of its lines added up; none of one that is gone."""
    found = dict.fromkeys(fields.values(), 0)
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in fields:
                found[fields[name]] += int(value.split()[0]) * 1024
    return found

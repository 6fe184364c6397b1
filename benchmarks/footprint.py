"""Measures the memory of the ranks of a launch; shared memory is counted once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_FIELDS = {"Pss": "pss", "Private_Dirty": "own", "Private_Clean": "own"}
_SHARED = {"RssShmem": "shared"}


class Footprint:
    """The peak of every rank, in bytes.

    `pss` counts 1/k of a page that k processes have mapped, so that the sum over the processes is the memory of the
    machine. `own` counts pages that only that process has mapped. Both also count pages that a process maps but did
    not allocate, and count them fully when no other process maps them any more. So measurements stop when the first
    rank releases its shared memory.
    """

    def __init__(self, plan: Path) -> None:
        """Watch a launch.

        Args:
            plan: its plan, which all its ranks have on their command line.
        """
        self._plan = str(plan)
        self._ranks: dict[int, str] = {}
        self._asked = 0
        self._shared: dict[int, int] = {}
        self.peaks: dict[int, dict[str, int]] = {}
        self.total = 0

    def look(self) -> None:
        """Read the current memory of the ranks."""
        self._asked += 1
        if self._asked % 10 == 1:
            self._ranks.update(_ranks(self._plan))
        usages = {pid: _bytes(pid, "smaps_rollup", _FIELDS) for pid in self._ranks}
        # This check comes last, because a rank may have released its memory while others were read.
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
    """Yield the process id and role of every rank, and of its guard, which at first has the same command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if len(words) > 2 and words[-2] == plan and "-m" in words:
                    yield int(folder.name), words[-1]


def _bytes(pid: int, file: str, fields: Mapping[str, str]) -> dict[str, int]:
    """Return the sum in bytes of some lines of a process's file in `/proc`; 0 if the process has ended."""
    found = dict.fromkeys(fields.values(), 0)
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in fields:
                found[fields[name]] += int(value.split()[0]) * 1024
    return found

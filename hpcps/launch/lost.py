"""The files that show which processes of a launch had a guard, and whose guards were killed.

They are files because every host can read the folder of the plan. The output of a process is not reliable: the process
that was killed may have been the one that forwards it.
"""

from __future__ import annotations

import shutil
from pathlib import Path


class LostGuards:
    """One file per process in the folder of the plan, empty as long as the guard of the process lives.

    It stays if the launcher ends the process.
    """

    def __init__(self, plan_file: Path) -> None:
        """Set the folder of the files; it need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.lost")

    def file(self, process: str) -> Path:
        """Return the file of a process, such as `worker-3`."""
        return self.path / process

    def processes(self) -> list[str]:
        """Return the processes that lost their guards, in order of time."""
        found = [(file.stat(), file.name) for file in self.path.glob("*")]
        return [name for facts, name in sorted(found, key=lambda each: each[0].st_mtime_ns) if facts.st_size]

    def guarded(self) -> set[str]:
        """Return the processes that had a guard and were ended by the launcher."""
        return {file.name for file in self.path.glob("*")}

    def clear(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.path, ignore_errors=True)

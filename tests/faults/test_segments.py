"""A rank that is killed while MPI starts leaves nothing in `/dev/shm`, and what other launches have there stays."""

import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import Play
from running_processes import within

from hpcps.launch import guard

pytestmark = pytest.mark.usefixtures("starts_processes")

SHM = Path("/dev/shm")


def mapped(play: Play) -> tuple[int, set[str]] | None:
    """Return a process of the launch that has mapped segments of MPICH, and their paths."""
    for pid in play.left():
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        if paths := {line.split()[5] for line in lines if "/dev/shm/mpich_shm_" in line}:
            return pid, paths
    return None


def test_a_rank_that_is_killed_while_mpi_starts_leaves_no_segment(start: Callable[..., Play]) -> None:
    other = SHM / f"mpich_shm_of_another_launch_{os.getpid()}"
    other.touch()
    try:
        for _ in range(3):
            play = start("--set", "topology.workers=3")
            pid, paths = within(200, lambda play=play: mapped(play), "a segment")
            # Its guard, which looks all the time, has seen the segment before the signal arrives.
            os.kill(pid, signal.SIGSTOP)
            within(60, lambda pid=pid: "T" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2], "its stop")
            if all(map(os.path.exists, paths)):
                break
            play.kill()
        within(60, lambda: guard_has_looked(pid), "a look of its guard")
        os.kill(pid, signal.SIGKILL)
        assert play.end(100) == 1
        assert not [path for path in paths if os.path.exists(path)], play.text
        assert other.exists()
    finally:
        other.unlink()


@pytest.mark.parametrize("kind", ["mpich_shm_", "Intel_MPI_", "ucx_shm_posix_"])
def test_the_segments_that_a_process_has_mapped_are_found_and_removed(kind: str) -> None:
    path = SHM / f"{kind}of_a_test_{os.getpid()}"
    path.write_bytes(bytes(mmap.PAGESIZE))
    started, begun = os.pipe()
    os.write(begun, b"1")
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
            found = guard._watch_start(os.getpid(), started)
        assert found[str(path)] == path.stat().st_ino
        guard._remove_segments({str(path): found[str(path)] + 1})
        assert path.exists(), "another launch has made it anew"
        guard._remove_segments({str(path): found[str(path)]})
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)
        os.close(started)
        os.close(begun)


def guard_has_looked(pid: int) -> bool:
    """Return whether the guard of a process has run for some looks since this began."""
    guard = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]

    def switches() -> int:
        lines = Path(f"/proc/{guard}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))

    before = switches()
    return bool(within(60, lambda: switches() > before + 2, "two looks"))

"""The guard: a parent process of every rank that reports how the rank ended.

Launchers do not report it. When a rank is killed, MPICH and Intel MPI kill the other ranks and then report any of them:
MPICH names the one that it reaps first, Intel MPI names all. A rank therefore forks before MPI starts and continues in
the child. The parent, which the launcher watches, becomes this small program. It waits for the child, prints which
process ended and how, and then ends in the same way. The launcher thus sees the end after the message is printed. The
guard prints the message as a sentence for people and as JSON for `hpcps.launch.cause`.

While MPI connects a process with the others, nothing in the process can run, and MPI sets no time limit. The kernel
therefore ends the process by SIGALRM after some seconds, and its guard says for whom it waited (`mpi_start`).

If the guard itself is killed, the kernel sends the child a signal, and the child writes a file when it ends
(`LostGuards`), because launchers do not report which guard was killed. A launcher then kills the other guards
together with their children, and these write no file.

If its child fails, a guard removes the segments in `/dev/shm` that MPI had made until it had started, and no others.

At regular times, the guard looks whether its child has run since the last time, and shows this to the other processes
by the time of that file (`hpcps.launch.signs_of_life`). A process that waits polls, so it also runs. The others end if
one is silent for too long. If they do not wait for it, or cannot notice while MPI starts, its guard ends it later.

The guard of the first rank of a host also stops the MPS daemon that this rank has started. All guards remove a file in
/tmp that MPICH's proxy leaves behind if the proxy is killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "HPCPS_GUARDED"
"""The variable in a guard's environment with the name of its process, such as `worker-3`; empty if unknown."""

EXPLAINED = (0, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
"""Statuses that need no report: success, a launch error that the process has printed, or a stop signal."""

ENDED = ".ended"
"""Suffix of the file of a process that has ended before it has joined the others of its script."""

_STARTING = ".starting"
"""Suffix of the file of a process that MPI connects with the others; it contains the seconds that this may take."""

_WITHOUT_SRUN = (
    ": srun loses parts of long addresses of MPICH; start the ranks with the MPI's own mpirun (--mpirun mpirun, "
    "HPCPS_MPIRUN=mpirun), or give srun another type of MPI, such as --mpirun-options=--mpi=pmix"
)

_LOST = "HPCPS_LOST"
_JOINING = "HPCPS_JOINING"
_REPLACED = "HPCPS_REPLACED"
_PROGRAM = [sys.executable, "-I", "-S"]

MARK = "hpcps-death: "
"""The prefix of the JSON in the output of a launch."""

_TOPOLOGY = "/tmp/hydra_hwloc_xmlfile_"
"""Prefix of the file in which MPICH's proxy (since 4.1) describes the host's cores to its ranks; it is fixed."""

_SEGMENTS = "/dev/shm/mpich_shm_", "/dev/shm/Intel_MPI_", "/dev/shm/ucx_shm_posix_"
"""Prefixes of the segments through which ranks under MPICH's and Intel's launchers, and UCX, find each other."""

_LOOK_EVERY = 0.05
_OF_MEMORY = (signal.SIGBUS, signal.SIGSEGV)
_STOPPED = b"T", b"t"
_LOOKS = 16
_LONGEST_LOOK = 5.0
_STOPPED_FACTOR, _IDLE_FACTOR = 1.5, 2.0
"""Times the timeout after which a guard ends its child: one that is idle may wait for one that is stopped."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def stand_guard(
    name: str,
    lost: Path,
    timeout: float,
    mps: Path | None = None,
    linger: float = 0.0,
    joining: Path | None = None,
    replaced: bool = False,
) -> Callable[[], None]:
    """Start a guard for this process; call this before any thread is started and before MPI is imported.

    Args:
        name: the name to report, such as `worker-3`; empty if unknown.
        lost: the file in which this process writes when its guard is killed; its time is that of the last sign of life.
        timeout: seconds without a sign of life after which the other processes end.
        mps: the folder of the MPS daemon that the guard has to stop, if there is one.
        linger: seconds between the report of a failure and the end of the guard, at which the launcher ends the other
            processes: they can say meanwhile that they waited for this one.
        joining: the file that this process writes when it joins the others of its script, and removes when it has left
            them. If it ends before it has written the file, the guard says so in a file beside it; if it has not
            removed the file, it has failed, also with status 0. None if it runs no script.
        replaced: whether its script goes on with another process in its place, if a signal ends it: the guard then ends
            at once, and does not say that it has not joined the others.

    Returns:
        A function to call once MPI has started, at least on this host.
    """
    guard = os.getpid()
    started, starting = os.pipe()
    child = os.fork()
    if child:
        os.close(starting)
        # The guard's command line does not contain the role: a search for the processes of a role finds only them.
        os.environ.update({NAME: name, _LOST: str(lost), _JOINING: str(joining or ""), _REPLACED: "1" * replaced})
        os.set_inheritable(started, True)
        arguments = [str(each) for each in (child, started, mps or "", linger, timeout)]
        os.execv(sys.executable, [*_PROGRAM, __file__, *arguments])
    os.close(started)
    _leave_trace(lost)
    if os.getppid() != guard:
        os._exit(1)
    return lambda: os.close(starting)


def _leave_trace(lost: Path) -> None:
    """Make this process end when its guard is killed, and write to this file before it ends.

    `faulthandler` writes immediately. A Python handler would wait for a running C call, which may never return.
    """
    if sys.platform != "linux":
        return
    number = signal.SIGRTMIN + 7
    try:
        lost.parent.mkdir(exist_ok=True)
        faulthandler.register(number, lost.open("wb"), all_threads=False, chain=True)
    except OSError:  # for example, the disk is full
        number = signal.SIGKILL
    tie_to_parent(number)


@contextmanager
def mpi_start(lost: Path, seconds: float, *, begin: bool = True) -> Iterator[None]:
    """End this process if MPI does not connect it with the others in this context, within some seconds.

    SIGALRM keeps its default action, which needs no thread of Python: MPI's initialization holds all of them. A program
    that uses SIGALRM itself has no limit.

    Args:
        lost: the file of this process in `LostGuards`; the guard finds another one beside it.
        seconds: the time limit.
        begin: whether the time begins now; else another process sends SIGALRM.
    """
    file = lost.with_name(lost.name + _STARTING)
    with suppress(OSError):  # the guard then reports the signal only
        lost.parent.mkdir(exist_ok=True)
        file.write_text(f"{seconds:g}")
    unused = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]
    limited = begin and unused
    try:
        if limited:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_REAL, 0)
        file.unlink(missing_ok=True)


def tie_to_parent(number: int) -> None:
    """Make the kernel send this process a signal when its parent ends for any reason."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans(adopt: bool) -> None:
    """Make the kernel use this process, not init, as the parent of orphaned descendants; or switch this off."""
    _prctl(_PR_SET_CHILD_SUBREAPER, adopt)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def look_interval(timeout: float) -> float:
    """Return the seconds between two looks of a guard at its process."""
    return min(max(timeout / _LOOKS, _LOOK_EVERY), _LONGEST_LOOK)


class _Pulse:
    """Looks at a child at regular times, and ends it if it gives no sign of life.

    A child that is stopped gives none. Once MPI has started, a child gives none either if no thread of it, or of a
    process that it has started, has run since the last look; but a script may sleep as long as it wants. Time passes by
    looks, so that it does not pass while a batch system has suspended the guard too.

    Attributes:
        end: why the child was ended; empty if it was not.
    """

    def __init__(self, child: int, started: int, lost: str, timeout: float, script: bool) -> None:
        self._child, self._started, self._lost = child, started, lost
        self._timeout, self._script = timeout, script
        self._interval, self._silent = look_interval(timeout), 0.0
        self._ran: list[str] | None = None
        self.end = ""
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, self._interval, self._interval)

    def stop(self) -> None:
        """Look no more."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _look(self, number: int, frame: FrameType | None) -> None:
        stopped, ran = _is_stopped(self._child), _what_ran(self._child)
        started = bool(select.select([self._started], [], [], 0)[0])
        idle = started and not self._script and ran is not None and ran == self._ran
        self._ran = ran
        if not stopped and not idle:
            self._silent = 0.0
            with suppress(OSError):
                os.utime(self._lost)
            return
        self._silent += self._interval
        # The others are the first to notice a silent process, if they can: their messages say who waited.
        if self._silent > self._timeout * (_STOPPED_FACTOR if stopped else _IDLE_FACTOR):
            why = "was stopped, such as by SIGSTOP," if stopped else "did nothing"
            self.end = f"{why} for {self._silent:.3g} s, and its guard has killed it"
            os.kill(self._child, signal.SIGKILL)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False also if it has ended, or if this system does not tell."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        # The state follows the name, which may contain any character.
        return file.read().rpartition(b") ")[2][:1] in _STOPPED
    return False


def _what_ran(pid: int) -> list[str] | None:
    """Return texts that change whenever a thread of a process runs, or one of a process that it has started.

    None: it has ended, or this system does not tell.
    """
    found: list[str] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", errors="replace") as file:
                found += [line for line in file if "ctxt_switches" in line]
            with open(f"/proc/{pid}/task/{thread}/stat", errors="replace") as file:
                found += file.read().rpartition(")")[2].split()[11:13]
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children = file.read().split()
            for child in children:
                found += _what_ran(int(child)) or []
        return found
    return None


def _watch(
    child: int, name: str, started: int, lost: str, joining: str, mps: str, linger: float, timeout: float
) -> None:
    """Wait for the child, report how it ended, stop the MPS daemon of this folder, and end in the same way."""
    under_hydra = _parent_name().startswith("hydra")
    if under_hydra:
        # Hydra starts every rank in its own session. A batch system that ends the sessions it knows (those of the
        # proxies) would leave the ranks running. Not under other launchers: they may fork from a thread, and the
        # kernel would treat the end of that thread as the end of the parent.
        tie_to_parent(signal.SIGKILL)

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # the child may just have ended
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    pulse = _Pulse(child, started, lost, timeout, bool(joining))
    segments = _watch_start(child, started) if under_hydra else {}
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    pulse.stop()
    if status:
        _remove_segments(segments)
    shm = _space() if -status in _OF_MEMORY else None
    unfinished = bool(joining) and os.path.exists(joining)
    end = pulse.end or _end_of(status, lost)
    if unfinished and status == 0:
        end += " without shutdown(), such as by os._exit()"
    replaced = bool(os.environ[_REPLACED]) and status < 0
    if joining and not unfinished and not replaced:
        with suppress(OSError):
            os.makedirs(os.path.dirname(joining), exist_ok=True)
            with open(f"{joining}.new", "w") as file:
                file.write(end)
            os.rename(f"{joining}.new", joining + ENDED)  # readers only ever find a complete file
    if told := status not in EXPLAINED or (unfinished and status in (0, 2)):
        host = socket.gethostname()
        text = f"\nhpcps: {name or 'a process of unknown rank'} (pid {child}) on {host} {end}\n"
        if name:
            text += death_line(name, host, end, child, shm)
        # One write, with a line break first: another process may have left an unfinished line.
        os.write(2, text.encode())
    if (told and not replaced) or status == 2:
        time.sleep(linger)
    if status == 0 or status not in EXPLAINED:  # otherwise the launcher ended it: the file shows that it had a guard
        with suppress(OSError):
            os.unlink(lost)
            os.rmdir(os.path.dirname(lost))
    if mps:
        program = os.path.join(os.path.dirname(__file__), "mps.py")
        os.spawnv(os.P_WAIT, sys.executable, [*_PROGRAM, program, mps])
    if status < 0:
        _die_of(-status)
    os._exit(status or unfinished)


def _end_of(status: int, lost: str) -> str:
    """Return how a process ended; if it ended while MPI connected it with the others, also that, and a remedy."""
    try:
        with open(lost + _STARTING) as file:
            seconds = file.read()
        names = os.listdir(os.path.dirname(lost))
    except OSError:
        return describe(status)
    late = sorted(name for name in names if "." not in name and name + _STARTING not in names)
    end, timed_out = f"{describe(status)} in MPI's start", status == -signal.SIGALRM
    if timed_out:
        end = f"waited {seconds} s in MPI's start " + (
            f"for {', '.join(late)}" if late else "although all others had begun it"
        )
    if _parent_name().startswith("slurmstepd"):
        return end + _WITHOUT_SRUN
    if timed_out and not late:
        return end + ": check that the hosts reach each other over the network that MPI uses (--mpirun-options)"
    return end


def _space() -> tuple[int, int] | None:
    """Return the size of /dev/shm and its free bytes; `dev_shm` says what they mean, which a guard does not load."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def death_line(name: str, host: str, end: str, pid: int | None = None, shm: tuple[int, int] | None = None) -> str:
    """Return a line for the output of a launch: a process, such as `worker-3`, and how it ended."""
    return MARK + json.dumps({"name": name, "pid": pid, "host": host, "end": end, "shm": shm}) + "\n"


def _watch_start(child: int, started: int) -> dict[str, int]:
    """Remove the proxy's file as soon as it exists, until MPI has started or the child has ended.

    The proxy removes the file when it ends, but not if it is killed. A rank that does not find the file inspects the
    host itself.

    Returns:
        The segments in `/dev/shm` that MPI has mapped in the child, with their inodes. MPI removes them when all ranks
        have mapped them, or when it ends, so those of a rank that is killed before that would remain.
    """
    proxy, over, segments = os.getppid(), False, dict[str, int]()
    while not over:
        over = bool(select.select([started], [], [], _LOOK_EVERY)[0])
        with suppress(OSError), open(f"/proc/{child}/maps", errors="replace") as file:
            for line in file:
                if any(prefix in line for prefix in _SEGMENTS):
                    inode, path = line.rstrip("\n").split(None, 5)[4:]
                    segments[path] = int(inode)
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{proxy}/fd"):
                path = os.readlink(entry.path)
                if path.startswith(_TOPOLOGY):
                    # The proxy opens the file twice by name: if we remove it in between, the proxy creates it again.
                    os.unlink(path.removesuffix(" (deleted)"))
    return segments


def _remove_segments(segments: dict[str, int]) -> None:
    """Remove those segments that are still there; another launch may have made one of the same name."""
    for path, inode in segments.items():
        with suppress(OSError):
            if os.stat(path).st_ino == inode:
                os.unlink(path)


def _parent_name() -> str:
    try:
        with open(f"/proc/{os.getppid()}/comm") as file:
            return file.read()
    except OSError:
        return ""


def describe(status: int) -> str:
    """Return how a process ended: with an exit status or, if the status is negative, killed by a signal."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"was killed by signal {-status}"


def _die_of(number: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class LostGuards:
    """The files that show which processes of a launch had a guard, and whose guards were killed.

    There is one file per process in the folder of the plan, empty as long as the guard of the process lives. It stays
    if the launcher ends the process. They are files because every host can read the folder of the plan. The output of a
    process is not reliable: the process that was killed may have been the one that forwards it.
    """

    def __init__(self, plan_file: Path) -> None:
        """Set the folder of the files; it need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.lost")

    def file(self, process: str) -> Path:
        """Return the file of a process, such as `worker-3`."""
        return self.path / process

    def processes(self) -> list[str]:
        """Return the processes that lost their guards, in order of time."""
        found = []
        for file in self._files():
            with suppress(OSError):  # its guard has just removed it
                found.append((file.stat(), file.name))
        return [name for facts, name in sorted(found, key=lambda each: each[0].st_mtime_ns) if facts.st_size]

    def guarded(self) -> set[str]:
        """Return the processes that had a guard and were ended by the launcher."""
        return {file.name for file in self._files()}

    def _files(self) -> list[Path]:
        return [file for file in self.path.glob("*") if file.suffix != _STARTING]

    def clear(self) -> None:
        """Remove the files."""
        import shutil  # here, because guards do not need it

        shutil.rmtree(self.path, ignore_errors=True)


if __name__ == "__main__":
    files = os.environ[_LOST], os.environ[_JOINING]
    _watch(int(sys.argv[1]), os.environ[NAME], int(sys.argv[2]), *files, sys.argv[3], *map(float, sys.argv[4:]))

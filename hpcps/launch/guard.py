"""A parent for every rank, which says how the rank died.

Launchers do not: when a rank is killed, MPICH and Intel MPI kill the others at once and then report any of them (MPICH
names the one that it reaps first, Intel MPI all). So a rank forks before MPI starts and goes on in the child; the
parent, which is what the launcher watches, becomes this small program. It waits, says who died of what, and only then
ends the same way, so that the launcher learns of the death after the message is out. If the parent itself is killed, as
the launcher does when it cleans up, the kernel ends the child.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

_NAME = "HPCPS_GUARDED"
# Ends that need no report: the process explained itself (launch errors), or it was told to stop.
_EXPLAINED = (0, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def stand_guard(name: str) -> None:
    """Put a guard over this process; call it first, before any thread is started and before MPI is imported.

    Args:
        name: whom it is to report, such as `worker-3`.
    """
    guard = os.getpid()
    child = os.fork()
    if child:
        # An own command line, without the role in it: who looks for the processes of a role finds the roles only.
        os.environ[_NAME] = name
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(child)])
    tie_to_parent(signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)


def tie_to_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies, however that dies."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans(adopt: bool) -> None:
    """Have the kernel make this process the parent of descendants that lose theirs, in place of init; or no longer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, adopt)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _watch(child: int, name: str) -> None:
    """Wait for the child, report its death and die of the same."""
    if _parent_name().startswith("hydra"):
        # Hydra gives every rank a session of its own, so a batch system that ends the sessions it knows (those of the
        # proxies) would leave the ranks behind. Other launchers may fork from threads, whose end would count as theirs.
        tie_to_parent(signal.SIGKILL)

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # it may have ended just now
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end = f"was killed by {_describe(-status)}" if status < 0 else f"exited with status {status}"
    if status not in _EXPLAINED:
        # One write, on a line of its own whatever others left unfinished.
        os.write(2, f"\nhpcps: {name} (pid {child}) on {socket.gethostname()} {end}\n".encode())
    if status < 0:
        _die_of(-status)
    os._exit(status)


def _parent_name() -> str:
    try:
        with open(f"/proc/{os.getppid()}/comm") as file:
            return file.read()
    except OSError:
        return ""


def _describe(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _die_of(number: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), os.environ.get(_NAME, "a process"))

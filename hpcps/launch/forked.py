"""Roles that the starter forks, in place of a new interpreter for each.

Most of the start of a role is the import of its modules: that of torch alone takes a second of a core. The starter
imports them once, and its forks have them. A forked role goes on as `python -m hpcps.execution`: with its own
environment, its own guard, and its own command line, by which people find it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import dropwhile
from pathlib import Path

from hpcps.launch.guard import tie_to_parent
from hpcps.launch.local_rank import close_input
from hpcps.launch.plan import Plan

_PROGRAM = ("-m", "hpcps.execution")


class ForkedRole(BaseException):
    """This process is a forked role: whoever has started the starter's program ends, and executes it.

    Attributes:
        words: the arguments of `python -m hpcps.execution`.
    """

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self.words = words

    def execute(self) -> int:
        """Execute the role; return its exit status."""
        sys.argv = [*_PROGRAM[1:], *self.words]
        status: int = import_module(f"{_PROGRAM[1]}.__main__").main()
        return status


class Fork:
    """A forked process, with the part of the interface of `subprocess.Popen` that the starter uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        self._reap(os.WNOHANG)
        return self._status

    def wait(self) -> None:
        """Wait for the end."""
        self._reap(0)

    def _reap(self, options: int) -> None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Forks:
    """Forks the roles that a starter is to start.

    Args:
        plan_file: the plan of the launch.
        commands: the commands of the roles of this host.
    """

    def __init__(self, plan_file: Path, commands: Sequence[Sequence[str]]) -> None:
        roles = [words for command in commands if (words := self._words(command)) is not None]
        self._ready = False
        # What cannot be imported here cannot be imported by a role either, which reports it.
        with suppress(Exception):
            if roles:
                plan = Plan.read(plan_file)
                import_module(f"{_PROGRAM[1]}.__main__").load(plan, {words[-1] for words in roles})
                self._ready = True

    def fork(self, command: Sequence[str], environment: Mapping[str, str]) -> Fork | None:
        """Fork a role; return None if its command is another one, or its modules cannot be imported.

        Args:
            command: the command of the role.
            environment: variables that this role gets in addition.

        Raises:
            ForkedRole: in the forked process.
        """
        words = self._words(command) if self._ready else None
        if words is None:
            return None
        starter = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            with suppress(OSError):  # the process may have done it, and have ended
                os.setpgid(pid, pid)
            return Fork(pid)
        os.setpgid(0, 0)
        tie_to_parent(signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        close_input()
        os.environ.update(environment)
        _show(command)
        raise ForkedRole(words)

    @staticmethod
    def _words(command: Sequence[str]) -> Sequence[str] | None:
        """Return the arguments of a role; None if the command needs another environment, or is not that of a role."""
        own = without_settings(command)
        settings = (word.partition("=") for word in command[: len(command) - len(own)] if word != "env")
        if any(os.environ.get(name) != value for name, _, value in settings):
            return None
        return own[3:] if own[:1] == [sys.executable] and tuple(own[1:3]) == _PROGRAM else None


def without_settings(command: Sequence[str]) -> list[str]:
    """Return a command without `env` and the variables that it sets."""
    return list(dropwhile(lambda word: "=" in word, command[1:])) if command[0] == "env" else list(command)


def _show(command: Sequence[str]) -> None:
    """Show this command, without its environment, as that of this process, if it is not longer than the present one."""
    text = "".join(f"{word}\0" for word in without_settings(command)).encode()
    with suppress(OSError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if len(text) <= end - start:
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)

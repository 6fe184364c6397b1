"""How a process tells the others of its session how its script ends, whatever ends it."""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn
from weakref import WeakSet

from hpcps.errors import RunError, message_of
from hpcps.launch.local_rank import PLAN
from hpcps.launch.plan import Plan
from hpcps.records.run_directory import RunDirectory
from hpcps.session.join import LaunchedSession, StepSession, print_error, report_loss
from hpcps.session.session import Session, report
from hpcps.session.wrapped import original


class _Exit(SystemExit):
    """What `sys.exit` raises; calls a function with its status if nobody catches it, so that it ends the script."""

    def __init__(self, ends: Callable[[object], None], status: object = None) -> None:
        super().__init__(status)
        self._ends = ends

    def __del__(self) -> None:
        # Python drops the exception that ends a script when the script has left all its functions. One that is caught
        # is dropped in the function that has caught it, and one of another thread ends only that thread.
        outermost = sys._getframe().f_back is None
        if outermost and threading.current_thread() is threading.main_thread():
            self._ends(self.code)


_Exit.__name__ = SystemExit.__name__  # in messages about a script or a plugin that exits
_EXITS = ((sys, "exit"), (builtins, "exit"), (builtins, "quit"))
"""The functions that end a script."""


class _Forks(threading.local):
    """Makes the processes that a script forks leave its sessions; each thread has the signals that its fork blocks.

    SIGTERM is blocked during a fork: a child that gets it before Python is ready there loses it if it has a handler,
    and a pool that ends its processes would wait for ever.
    """

    mask: set[int | signal.Signals]

    @staticmethod
    @cache
    def _endings() -> WeakSet[ScriptEnding]:
        forks = _Forks()
        os.register_at_fork(before=forks.block, after_in_parent=forks.unblock, after_in_child=forks.leave)
        return WeakSet()

    @staticmethod
    def watch(ending: ScriptEnding) -> None:
        """Make forked processes leave this session too."""
        _Forks._endings().add(ending)

    def block(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def leave(self) -> None:
        for ending in self._endings():
            ending.forget()
        self.unblock()


class ScriptEnding:
    """Tells the other processes how the script of this one ends.

    An exception that ends the script goes to the others, so that they fail too and say whom they waited for. A launcher
    that ends this process with SIGTERM gets the same answer.
    """

    def __init__(self, session: Session) -> None:
        """Watch over the end of this process from now on."""
        self._session = session
        self._before = sys.excepthook
        self._error: BaseException | None = None
        self._over = False
        sys.excepthook = self.failed
        # `python -S` has no builtin functions that exit.
        self._exits = [(module, name, vars(module)[name]) for module, name in _EXITS if name in vars(module)]
        for module, name, _ in self._exits:
            setattr(module, name, self._leave)
        atexit.register(self.end)
        if multiprocessing.parent_process() is not None:
            # A forked child calls no function of atexit, and in no child does an exception reach `sys.excepthook`.
            Finalize(None, self._end_child, exitpriority=1)
        with suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._terminate)
        _Forks.watch(self)

    def follow(self, session: Session) -> None:
        """Watch over the end of this process in the session of the next generation."""
        self._session = session
        atexit.unregister(self.end)
        atexit.register(self.end)  # Python calls it before that which closes the new session

    def leave(self) -> None:
        """Let this process end without a word: the script goes on without it."""
        self._over = True
        self._release()

    def forget(self) -> None:
        """Leave the session to the parent, in a process that the script has forked."""
        self._over = True
        self._session.disown()
        atexit.unregister(self.end)
        if signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def shutdown(self) -> None:
        """End the session before the end of the script."""
        if not self._over:
            try:
                self._session.shutdown()
            except RunError as error:
                self._error = error  # also if the script goes on: the others have been told
                raise
            self._over = True
            self._release()

    def _release(self) -> None:
        """Watch no more, so that a process that goes on keeps nothing of the session."""
        atexit.unregister(self.end)
        if sys.excepthook == self.failed:
            sys.excepthook = self._before
        for module, name, leave in self._exits:
            if getattr(module, name) == self._leave:
                setattr(module, name, leave)
        with suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGTERM) == self._terminate:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print an exception that ends the script, and note it for the others."""
        self._error = error = original(error)
        print_error(self._before, self._session.name, type(error), error, trace)

    def end(self) -> None:
        """End the session with the script."""
        if self._over:
            return
        self._over = True
        late = False  # whether the error arises here, from where Python does not take an exit status
        if self._error is None:
            try:
                self._session.shutdown()
            except RunError as error:
                late = True
                self.failed(type(error), error, None)
        if self._error is None:
            return
        what = f"{type(self._error).__name__}: {message_of(self._error)}"
        self._report(self._error)
        self._session.shutdown(error=what[:1000])
        if late or isinstance(self._session, StepSession):
            # MPI would wait for the others at the end of this process.
            sys.stdout.flush()
            sys.stderr.flush()
            status = self._error.code if isinstance(self._error, SystemExit) else 1
            os._exit(status if isinstance(status, int) else 1)

    def _end_child(self) -> None:
        """End the session with a child of multiprocessing, which has this exception if it has failed."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            self._note_exit(error.code)
        elif error is not None and not self._over:
            self._error = original(error)
        self.end()

    def _leave(self, status: str | int | None = None, /) -> NoReturn:
        """Exit; note the status if it ends the script: `sys.excepthook` does not see `SystemExit`."""
        raise _Exit(self._note_exit, status)

    def _note_exit(self, status: object) -> None:
        if status and not self._over:
            self._error = SystemExit(status)

    def _report(self, error: BaseException) -> None:
        """Write the report that `hpcps launch` reads, to name the process that failed first."""
        if isinstance(self._session, LaunchedSession):
            peer = self._session.member.peer
            with suppress(OSError):
                run = RunDirectory(Path(Plan.read(Path(os.environ[PLAN])).runs[0].directory))
                report_loss(run, error)
                run.fail(peer.role, peer.index, self._session.host, None, "script", error)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if waits := self._session.describe():
            report(self._session.name, f"stopped by SIGTERM while it waited for {waits}")
        if self._session.record is not None:
            self._session.record.end("stopped")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def serve_to_end(session: LaunchedSession) -> int:
    """Serve until all workers have left; return the exit status."""
    ending = ScriptEnding(session)
    while True:
        try:
            session.serve()
            break
        except Exception as error:
            if session.is_over():
                if (renewed := session.again()) is None:
                    ending.leave()
                    return 0
                session = renewed
                ending.follow(session)
                continue
            ending.failed(type(error), error, None)
            ending.end()
    ending.shutdown()
    return 0

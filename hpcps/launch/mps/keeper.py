"""`python keeper.py FOLDER LOCK TIMEOUT GPU...`: run MPS for the ranks of one host, from the first to the last.

A rank starts the keeper, which then becomes an independent process, so that it outlives every rank and every guard that
is killed. It writes to `FOLDER/answer` how CUDA finds MPS, or why MPS is not used. Every rank holds a shared lock on
`FOLDER/users`. The keeper requests an exclusive lock, which it gets when the last rank has ended. It then ends the
daemon that it has started and removes the folder. It uses a daemon that was already running as it is, and leaves it
running.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
DEFAULT_PIPE = "/tmp/nvidia-mps"
QUIT_WITHIN, GONE_WITHIN = 3.0, 1.0
"""Seconds for the daemon to end by itself, and then for its processes until they are killed. The sum is less than the
time that a launch waits for us at its end (`supervise`); after that time it kills us, and the folder would remain."""

_PIPE, _LOG, _VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
_PR_SET_CHILD_SUBREAPER = 36
_TICK = 0.02


class Mps:
    """The MPS daemon of this host: the one that is running, or one that we start.

    Attributes:
        ours: the environment of the daemon that we have started; None if we have started none.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], timeout: float) -> None:
        """Prepare; `offer` starts the daemon.

        Args:
            folder: the folder for the pipes and logs of a daemon that we start.
            environment: the environment of the ranks.
            timeout: seconds until MPS has to work.
        """
        self._folder = folder
        self._environment = dict(environment)
        self._control = shutil.which(CONTROL, path=environment.get("PATH"))
        self._deadline = time.monotonic() + timeout
        self.ours: dict[str, str] | None = None

    def offer(self, gpus: Sequence[str]) -> tuple[dict[str, str], str]:
        """Return the variables for CUDA, and why it cannot use MPS on these GPUs; an empty text if it can."""
        there = self._environment.get(_PIPE) or DEFAULT_PIPE
        if self._runs(there, self._environment):
            why = self._probe(gpus, self._environment, "")
            if not why:
                return {}, ""
            # CUDA would still find this daemon, and wait if it serves another user: we point CUDA to an empty folder.
            why = f"with the MPS daemon of {there}, which was already running, {why}"
            return {_PIPE: str(self._folder / "nobody")}, why
        if not self._control:
            return {}, f"there is no {CONTROL} on PATH"
        variables = {_PIPE: str(self._folder / "pipe"), _LOG: str(self._folder / "log")}
        why = self._start(variables) or self._probe(gpus, self._environment | variables, self._control)
        if why:
            self.stop()
            return {}, f"{why}; logs in {variables[_LOG]}"
        return variables, ""

    def stop(self) -> None:
        """End the daemon that we have started, and all processes that it has started."""
        if self.ours is None:
            return
        # The daemon waits for its last clients; clients that were killed will end soon.
        self._ask("quit", self.ours, QUIT_WITHIN)
        deadline = time.monotonic() + GONE_WITHIN
        while left := _children():
            if time.monotonic() > deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline + QUIT_WITHIN:
                break  # the driver does not release the process
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(_TICK)
        self.ours = None

    def _start(self, variables: dict[str, str]) -> str:
        """Start a daemon that sees all GPUs, because ranks number them from the first; return why that fails."""
        assert self._control
        for path in variables.values():
            Path(path).mkdir(exist_ok=True)
        environment = self._environment | variables
        environment.pop(_VISIBLE, None)
        self.ours = environment
        if self._runs(variables[_PIPE], environment):
            return ""  # the daemon of a keeper that was killed
        output = Path(variables[_LOG]) / "start"
        try:
            # Into a file: the daemon keeps its output open, and a pipe would stay open until the daemon ends.
            with output.open("wb") as file:
                done = subprocess.run(
                    [self._control, "-d"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=self._left(),
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{CONTROL} -d: {_explain(error)}"
        if done.returncode:
            return f"{CONTROL} -d: {_last_line(output.read_text(errors='replace')) or f'status {done.returncode}'}"
        while not self._runs(variables[_PIPE], environment):
            if not self._left():
                return f"the daemon that {CONTROL} -d started does not answer"
            time.sleep(_TICK)
        return ""

    def _runs(self, pipe: str, environment: Mapping[str, str]) -> bool:
        """Return whether a daemon serves this folder; it may belong to another user and refuse our commands."""
        with suppress(OSError, ValueError):
            pid = int((Path(pipe) / f"{CONTROL}.pid").read_text())
            if Path(f"/proc/{pid}/comm").read_text().strip() == CONTROL[:15]:
                return True
        return Path(pipe).is_dir() and self._ask("get_server_list", dict(environment), self._left())

    def _ask(self, command: str, environment: dict[str, str], seconds: float) -> bool:
        """Send a command to the daemon; return whether a daemon accepted it."""
        if not self._control:
            return False
        try:
            done = subprocess.run(
                [self._control],
                input=f"{command}\n".encode(),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and b"Cannot find" not in done.stdout

    def _probe(self, gpus: Sequence[str], environment: dict[str, str], control: str) -> str:
        """Create a CUDA context on every GPU; return the error of the first GPU that fails, or an empty text."""
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("probe.py")), control]
        probes = {}
        try:
            for gpu in gpus:
                own = environment | {_VISIBLE: gpu}
                probes[gpu] = subprocess.Popen(
                    program, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
            for gpu, process in probes.items():
                try:
                    errors = process.communicate(timeout=self._left())[1].decode(errors="replace")
                except subprocess.TimeoutExpired:
                    return f"GPU {gpu} cannot be used: a process that tests it does not end"
                if process.returncode:
                    return f"GPU {gpu} cannot be used: {_last_line(errors) or f'status {process.returncode}'}"
        finally:
            for process in probes.values():
                process.kill()
                process.wait()
        return ""

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _explain(error: Exception) -> str:
    return "it does not end" if isinstance(error, subprocess.TimeoutExpired) else str(error)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _children() -> list[int]:
    """Find our children, including orphaned descendants, which the kernel makes our children."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(path.parent.name))
    return found


def keep(folder: Path, timeout: float, gpus: Sequence[str]) -> None:
    """Offer MPS until the last user has ended, then remove everything except the logs of a failure."""
    mps = Mps(folder, os.environ, timeout)
    with open(folder / "users", "a") as users:
        try:
            variables, why = mps.offer(gpus)
        except Exception as error:  # the ranks wait for an answer in any case
            mps.stop()
            variables, why = {}, f"{type(error).__name__}: {error}"
        beside = folder / "answer.new"
        beside.write_text(json.dumps({"keeper": os.getpid(), "variables": variables, "why": why}), encoding="utf-8")
        beside.replace(folder / "answer")
        fcntl.flock(users, fcntl.LOCK_EX)
        mps.stop()
        shutil.rmtree(folder / "pipe", ignore_errors=True)
        if not why:
            shutil.rmtree(folder / "log", ignore_errors=True)
        # `users` last: while it exists and is locked, no new rank reads the other files.
        for name in ("answer", "keeper", "users"):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def main(argv: Sequence[str]) -> None:
    """Become an independent process and run MPS."""
    if os.fork():
        os._exit(0)
    os.chdir("/")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A batch system signals all processes of a job: the keeper goes on until the ranks have ended. It sets a handler,
    # because the daemon would inherit an ignored signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    folder, _lock, timeout, *gpus = argv
    keep(Path(folder), float(timeout), gpus)


if __name__ == "__main__":
    main(sys.argv[1:])

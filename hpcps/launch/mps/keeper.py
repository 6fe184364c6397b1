"""`python keeper.py FOLDER LOCK PATIENCE GPU...`: MPS for the ranks of one host, from the first to the last.

A rank starts it, but it belongs to none: it goes on as a process of its own, so that it outlives whichever rank, and
whichever guard, is killed. It answers in `FOLDER/answer` how CUDA finds MPS, or why it does not. Every rank holds a
shared lock on `FOLDER/users`; the keeper wants it to itself, which it gets when the last of them is gone. Then it ends
the daemon that it has started and takes the folder away. A daemon that was there before is used as it is, and stays.
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
"""Seconds for the daemon to end by itself, and then for its processes until they are killed; together less than what a
launch waits for us at its end (`supervise`), or we were killed with the folder still there."""

_PIPE, _LOG, _VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
_PR_SET_CHILD_SUBREAPER = 36
_TICK = 0.02


class Mps:
    """MPS as it is on this host, with a daemon of our own if there is none.

    Attributes:
        ours: the environment of the daemon that we have started; None without one.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], patience: float) -> None:
        """Start nothing yet.

        Args:
            folder: where a daemon of our own has its pipes and its logs.
            environment: that of the ranks.
            patience: seconds until it works, or does not.
        """
        self._folder = folder
        self._environment = dict(environment)
        self._control = shutil.which(CONTROL, path=environment.get("PATH"))
        self._deadline = time.monotonic() + patience
        self.ours: dict[str, str] | None = None

    def offer(self, gpus: Sequence[str]) -> tuple[dict[str, str], str]:
        """Return what a rank's environment needs so that CUDA uses MPS on these GPUs or does without, and why that."""
        there = self._environment.get(_PIPE) or DEFAULT_PIPE
        if self._runs(there, self._environment):
            why = self._probe(gpus, self._environment, "")
            if not why:
                return {}, ""
            # CUDA would find it all the same, and wait where it serves somebody else: it is sent where nobody is.
            why = f"with the MPS daemon of {there}, which was there before, {why}"
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
        """End the daemon that we have started, and all that it has started."""
        if self.ours is None:
            return
        # It waits for its last clients; those that were killed are about to go.
        self._ask("quit", self.ours, QUIT_WITHIN)
        deadline = time.monotonic() + GONE_WITHIN
        while left := _children():
            if time.monotonic() > deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline + QUIT_WITHIN:
                break  # the driver does not let it go
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(_TICK)
        self.ours = None

    def _start(self, variables: dict[str, str]) -> str:
        """Start a daemon that sees all GPUs, as ranks count them from the first; return why that fails."""
        assert self._control
        for path in variables.values():
            Path(path).mkdir(exist_ok=True)
        environment = self._environment | variables
        environment.pop(_VISIBLE, None)
        self.ours = environment
        if self._runs(variables[_PIPE], environment):
            return ""  # that of a keeper that was killed
        said = Path(variables[_LOG]) / "start"
        try:
            # Into a file: the daemon keeps what it is given, and a pipe would not end before it does.
            with said.open("wb") as file:
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
            return f"{CONTROL} -d: {_last_line(said.read_text(errors='replace')) or f'status {done.returncode}'}"
        while not self._runs(variables[_PIPE], environment):
            if not self._left():
                return f"the daemon that {CONTROL} -d started does not answer"
            time.sleep(_TICK)
        return ""

    def _runs(self, pipe: str, environment: Mapping[str, str]) -> bool:
        """Say whether a daemon serves this folder, somebody else's included, who may not want to talk to us."""
        with suppress(OSError, ValueError):
            pid = int((Path(pipe) / f"{CONTROL}.pid").read_text())
            if Path(f"/proc/{pid}/comm").read_text().strip() == CONTROL[:15]:
                return True
        return Path(pipe).is_dir() and self._ask("get_server_list", dict(environment), self._left())

    def _ask(self, command: str, environment: dict[str, str], seconds: float) -> bool:
        """Send the daemon a command; say whether there is one that took it."""
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
        """Make a CUDA context on every GPU; return what is wrong with the first where that fails."""
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
                    said = process.communicate(timeout=self._left())[1].decode(errors="replace")
                except subprocess.TimeoutExpired:
                    return f"GPU {gpu} cannot be used: a process that tries does not come back"
                if process.returncode:
                    return f"GPU {gpu} cannot be used: {_last_line(said) or f'status {process.returncode}'}"
        finally:
            for process in probes.values():
                process.kill()
                process.wait()
        return ""

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _explain(error: Exception) -> str:
    return "it does not come back" if isinstance(error, subprocess.TimeoutExpired) else str(error)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _children() -> list[int]:
    """Find our children, and what they left behind when they ended: that becomes ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(path.parent.name))
    return found


def keep(folder: Path, patience: float, gpus: Sequence[str]) -> None:
    """Offer MPS until the last user has gone, then leave nothing behind but the logs of a failure."""
    mps = Mps(folder, os.environ, patience)
    with open(folder / "users", "a") as users:
        try:
            variables, why = mps.offer(gpus)
        except Exception as error:  # whatever it is, the ranks are waiting
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
        # `users` last: as long as it is there, and locked, nobody new looks at the rest.
        for name in ("answer", "keeper", "users"):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def main(argv: Sequence[str]) -> None:
    """Become a process of its own and keep MPS."""
    if os.fork():
        os._exit(0)
    os.chdir("/")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A batch system tells all processes of a job to end: it stays as long as ranks do. A handler, as what is ignored
    # would be by the daemon too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    folder, _lock, patience, *gpus = argv
    keep(Path(folder), float(patience), gpus)


if __name__ == "__main__":
    main(sys.argv[1:])

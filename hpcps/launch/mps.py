"""MPS, NVIDIA's Multi-Process Service: processes of one host share a GPU through it, so their kernels run at once.

If processes of a host share a GPU, the first of them starts the daemon before it becomes the guard of its rank; the
guard stops the daemon after its rank has ended. `FOLDER/answer` tells the other ranks how CUDA finds the daemon, or why
MPS is not used. The guard holds a lock on that file. A guard that is killed leaves its daemon running: the next launch
finds the folder, whose file has no lock, and stops the daemon. A daemon that hpcps has not started is used as it is.

`python mps.py FOLDER` stops the daemon of a folder. It needs only Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
DEFAULT_PIPE = "/tmp/nvidia-mps"

CLIENTS = 48
"""Maximum number of processes that MPS supports on one GPU (Volta and later)."""

TIMEOUT = 30.0
"""Seconds that the service may take until a first process can use the GPU through it."""

_QUIT = 4.0
"""Seconds that the daemon may wait for its last clients until it is killed."""

_PIPE, _LOG, _VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
_LONGEST = 80  # bytes: the path of a socket may have 107, with the longest name that the daemon adds to its folder
_TICK = 0.02

Found = tuple[dict[str, str], str]
"""The variables with which CUDA finds a daemon, and why MPS is not used; an empty text if it is used."""


def share(
    gpus: Sequence[str], first: bool, plan_file: Path, environment: MutableMapping[str, str]
) -> tuple[bool, Path | None]:
    """Make this process use its GPU through MPS; the first process of the host prints the reason if that fails.

    Args:
        gpus: the GPU of each process of this host that uses one.
        first: whether this is the first of these processes.
        plan_file: the path of the plan; ranks of one host with the same path share the daemon.
        environment: the environment variables to set for CUDA.

    Returns:
        Whether it uses MPS, and the folder of the daemon that its guard has to stop.
    """
    folder = folder_of(plan_file, environment)
    gpu, most = Counter(gpus).most_common(1)[0]
    if most > CLIENTS:
        # In this folder, CUDA does not find a daemon that is already running.
        found: Found = {_PIPE: str(folder / "none")}, f"{most} processes share GPU {gpu}, MPS supports {CLIENTS}"
    else:
        try:
            found = _serve(folder, sorted(set(gpus)), environment) if first else _wait(folder / "answer")
        except OSError as error:
            found = {}, str(error)
    variables, why = found
    environment.update(variables)
    if why and first:
        # One write: other processes may print at the same time.
        sys.stderr.write(
            f"hpcps: processes of {socket.gethostname()} share a GPU without MPS, which is slower: {why}\n"
        )
    return not why, folder if first and (folder / "answer").exists() else None


def folder_of(plan_file: Path, environment: Mapping[str, str]) -> Path:
    """Return the folder of the daemon, one per launch and host: a launch that ends must not stop another's daemon."""
    name = hashlib.sha256(f"{socket.gethostname()} {plan_file.resolve()}".encode()).hexdigest()[:12]
    folder = Path(environment.get("TMPDIR") or "/tmp") / f"hpcps-mps-{os.getuid()}-{name}"
    return folder if len(os.fsencode(folder)) <= _LONGEST else Path("/tmp") / folder.name


def start(folder: Path, gpus: Sequence[str], environment: Mapping[str, str], timeout: float) -> Found:
    """Find a daemon that runs, or start one in this folder, and try each GPU; `stop` stops the started daemon.

    Args:
        folder: for the pipes and logs of a daemon that this starts.
        gpus: the GPUs to try.
        environment: the environment of the ranks.
        timeout: seconds until MPS has to work.
    """
    control = shutil.which(CONTROL, path=environment.get("PATH"))
    if not control:
        return {}, f"there is no {CONTROL} on PATH"
    deadline = time.monotonic() + timeout
    there = environment.get(_PIPE) or DEFAULT_PIPE
    if Path(there).is_dir() and not _call([control], {**environment, _PIPE: there}, "get_server_list", deadline):
        why = _try(gpus, environment, "", deadline)
        # CUDA would still find this daemon, and wait if it serves another user: we point CUDA to an empty folder.
        running = f"with the MPS daemon of {there}, which was already running, {why}"
        return ({_PIPE: str(folder / "none")}, running) if why else ({}, "")
    variables = {_PIPE: str(folder / "pipe"), _LOG: str(folder / "log")}
    for path in variables.values():
        Path(path).mkdir(exist_ok=True)
    # The daemon sees all GPUs, because ranks number them from the first.
    environment = {name: value for name, value in environment.items() if name != _VISIBLE} | variables
    problem = _call([control, "-d"], environment, "", deadline)
    why = f"{CONTROL} -d: {problem}" if problem else _try(gpus, environment, control, deadline)
    if not why:
        return variables, ""
    _end(folder, environment)
    return {}, f"{why}; logs in {variables[_LOG]}"


def stop(folder: Path) -> None:
    """Stop the daemon of a folder if one runs, and remove the folder, except for the logs of a daemon that failed."""
    if (folder / "pipe").exists():
        _end(folder, os.environ)
        shutil.rmtree(folder / "log", ignore_errors=True)
    with suppress(OSError):
        (folder / "answer").unlink()
        folder.rmdir()


def _serve(folder: Path, gpus: Sequence[str], environment: Mapping[str, str]) -> Found:
    """Stop the daemons of killed guards, start ours, and answer the other ranks."""
    for answer in folder.parent.glob(f"hpcps-mps-{os.getuid()}-*/answer"):
        with suppress(PermissionError):
            if _read(answer) is None:
                stop(answer.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder)
    lock = os.open(folder / "answer.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock, True)  # it stays open until the guard has ended
    os.replace(folder / "answer.new", folder / "answer")
    try:
        found: Found = start(folder, gpus, environment, TIMEOUT)
    except OSError as error:
        found = {}, str(error)
    os.write(lock, json.dumps(found).encode())
    return found


def _wait(answer: Path) -> Found:
    """Return the answer of the first rank of this host."""
    deadline = time.monotonic() + TIMEOUT + 5.0
    while time.monotonic() < deadline:
        if text := _read(answer):
            variables, why = json.loads(text)
            return variables, why
        time.sleep(_TICK)
    raise TimeoutError(f"nothing in {answer.parent} answers")


def _read(answer: Path) -> str | None:
    """Return the text of an answer; None if no living guard has written it."""
    with suppress(FileNotFoundError):
        _check_private(answer.parent)
        with answer.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read()
    return None


def _check_private(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user: remove it")


def _end(folder: Path, environment: Mapping[str, str]) -> None:
    """End the daemon of a folder and its servers, which have its environment; kill those that do not end in time."""
    pipe, deadline = folder / "pipe", time.monotonic() + _QUIT
    if control := shutil.which(CONTROL, path=environment.get("PATH")):
        _call([control], {**environment, _PIPE: str(pipe)}, "quit", deadline)
    while left := [process for process in Path("/proc").glob("[0-9]*") if _serves(process, pipe)]:
        if time.monotonic() > deadline:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
            break
        time.sleep(_TICK)
    shutil.rmtree(pipe, ignore_errors=True)


def _serves(process: Path, pipe: Path) -> bool:
    with suppress(OSError):
        named = (process / "comm").read_text().strip() == CONTROL[:15]
        return named and f"{_PIPE}={pipe}\0".encode() in (process / "environ").read_bytes()
    return False


def _try(gpus: Sequence[str], environment: Mapping[str, str], control: str, deadline: float) -> str:
    """Create a CUDA context on every GPU at the same time; return the first problem, or an empty text."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("cuda.py")), control]
    with ThreadPoolExecutor() as pool:
        problems = pool.map(lambda gpu: _call(command, {**environment, _VISIBLE: gpu}, "", deadline), gpus)
        failed = [
            f"GPU {gpu} cannot be used: {problem}" for gpu, problem in zip(gpus, problems, strict=True) if problem
        ]
    return failed[0] if failed else ""


def _call(command: Sequence[str], environment: Mapping[str, str], text: str, deadline: float) -> str:
    """Run a command with a text as its input; return the last line that it prints if it fails, else an empty text."""
    # The output goes into a file: the daemon keeps it open, and a pipe would stay open until the daemon ends.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            done = subprocess.run(
                command,
                input=f"{text}\n",
                text=True,
                env=environment,
                stdout=output,
                stderr=output,
                timeout=max(0.0, deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            return "it does not end"
        output.seek(0)
        printed = output.read().strip()
    failed = done.returncode != 0 or "Cannot find" in printed
    return printed.rpartition("\n")[2] or f"status {done.returncode}" if failed else ""


if __name__ == "__main__":
    stop(Path(sys.argv[1]))

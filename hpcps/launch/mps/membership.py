"""Connect a rank to MPS if it shares its GPU with other ranks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpcps.launch.local_rank import planned_rank
from hpcps.launch.plan import Plan, Rank

TIMEOUT = 30.0
"""Seconds that the service may take until a first process can use the GPU through it."""

CLIENTS = 48
"""Maximum number of processes that MPS supports on one GPU (Volta and later)."""

_TRAINERS = ("worker", "validator")
_ON_DEVICES = (*_TRAINERS, "server")
"""The roles that use a GPU where updates and models stay in its memory: MPS shares memory between its own processes."""
_VISIBLE, _PIPE = "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"
_NO_GPU = ("", "-1", "NoDevFiles")
# The path of a socket may have 107 bytes, including the longest name that the daemon adds to its folder.
_LONGEST = 80
_TICK = 0.01


@dataclass(frozen=True)
class Membership:
    """The connection of this process to MPS; keep it until the process ends: the service ends with the last one.

    Attributes:
        used: whether this process uses its GPU through MPS.
        hold: an open file whose lock shows the keeper that this process lives.
    """

    used: bool = False
    hold: IO[str] | None = None


def join(plan: Plan, plan_file: Path, environment: MutableMapping[str, str]) -> Membership:
    """Make this process use its GPU through MPS if several processes of its host train on one GPU; print why if not.

    Call this before `preset_gpu`, MPI and the framework. It has no effect on servers unless updates may stay on
    devices, and none on any role with `train.device = "cpu"` or `train.mps = "off"`.

    Args:
        plan: the role of every rank, and the runs.
        plan_file: the path of the plan; ranks of one host with the same path share the service.
        environment: the environment variables to set for CUDA.
    """
    me = planned_rank(plan, environment)
    here = _trainers(plan, me, environment) if me else {}
    if me not in here or len(set(here.values())) == len(here):
        return Membership()
    hold, folder = None, _folder(plan_file, environment)
    gpu, most = Counter(here.values()).most_common(1)[0]
    if most > CLIENTS:
        why = f"{most} processes share GPU {gpu}, MPS supports {CLIENTS}"
        # With this folder, CUDA does not find a daemon that is already running.
        environment[_PIPE] = str(folder / "nobody")
    else:
        try:
            hold, answer = _ask(folder, sorted(set(here.values())), environment)
            why = answer["why"]
            environment.update(answer["variables"])
        except OSError as error:
            why = str(error)
    if why and me is next(iter(here)):
        # One write: other processes may print at the same time.
        sys.stderr.write(
            f"hpcps: processes of {socket.gethostname()} share a GPU without MPS, which is slower: {why}\n"
        )
    return Membership(not why, hold)


def _trainers(plan: Plan, me: Rank, environment: Mapping[str, str]) -> dict[Rank, str]:
    """Return the GPU of each process of this host that uses one; the first visible one if the plan does not name it."""
    trains = [run.spec["run"]["train"] for run in plan.runs]
    if all(train["device"] == "cpu" for train in trains) or any(train["mps"] == "off" for train in trains):
        return {}
    first = environment.get(_VISIBLE, "0").split(",")[0]
    buffers = {run.spec["run"].get("transport", {}).get("device_buffers", "staged") for run in plan.runs}
    roles = _TRAINERS if buffers <= {"staged"} else _ON_DEVICES
    here = [member for member in plan.world if member.host == me.host and member.role in roles]
    gpus = {member: first if member.gpu is None else member.gpu for member in here}
    return {member: gpu for member, gpu in gpus.items() if gpu not in _NO_GPU}


def _folder(plan_file: Path, environment: Mapping[str, str]) -> Path:
    """Return the folder of the service, one per launch and host: a launch that ends must not end another's service."""
    name = hashlib.sha256(f"{socket.gethostname()} {plan_file.resolve()}".encode()).hexdigest()[:12]
    folder = Path(environment.get("TMPDIR") or "/tmp") / f"hpcps-{os.getuid()}-{name}"
    return folder if len(os.fsencode(folder)) <= _LONGEST else Path("/tmp") / folder.name


def _ask(folder: Path, gpus: Sequence[str], environment: Mapping[str, str]) -> tuple[IO[str], dict[str, Any]]:
    """Wait for the answer of the keeper; start the keeper if none runs.

    Returns:
        The file that must stay open, and the answer: `variables` for the environment, and `why` MPS is not used.

    Raises:
        OSError: the keeper does not answer, or its folder cannot be created.
    """
    deadline = time.monotonic() + TIMEOUT + 5.0
    hold, started = None, False
    with ExitStack() as stack:
        while time.monotonic() < deadline:
            if hold is None:
                if hold := _enter(folder):
                    stack.enter_context(hold)
            elif answer := _read(folder / "answer"):
                stack.pop_all()
                return hold, answer
            elif _start_keeper(folder, gpus, environment, again=started):
                started = True
            time.sleep(_TICK)
    raise TimeoutError(f"nothing in {folder} answers")


def _enter(folder: Path) -> IO[str] | None:
    """Take a shared lock on the file of users; None if the keeper of earlier users is cleaning up.

    The keeper removes the folder while it holds the exclusive lock, so the lock counts only if the file still exists.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    with suppress(FileNotFoundError, BlockingIOError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a private folder of this user: remove it")
        with ExitStack() as stack:
            file = stack.enter_context(open(folder / "users", "a"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), (folder / "users").stat()):
                stack.pop_all()
                return file
    return None


def _read(path: Path) -> dict[str, Any] | None:
    """Read the answer, unless it is from a keeper that was killed; a zombie may still have the pid of that keeper."""
    with suppress(FileNotFoundError, ProcessLookupError):
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        state = Path(f"/proc/{answer['keeper']}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return answer if state not in "ZX" else None
    return None


def _start_keeper(folder: Path, gpus: Sequence[str], environment: Mapping[str, str], again: bool) -> bool:
    """Start a keeper, whose lock shows that it lives; False if one is running."""
    import subprocess  # here, because the import takes 10 ms, and ranks without a GPU do not need it

    with open(folder / "keeper", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if again:
            raise OSError(f"the process that should start MPS has ended without an answer; see {folder / 'log'}")
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))]
        # This returns at once: the keeper continues as an independent process, with the lock.
        subprocess.run(
            [*program, str(folder), str(lock.fileno()), str(TIMEOUT), *gpus],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
    return True

"""Brings a rank under MPS, where it shares its GPU with others."""

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

PATIENCE = 30.0
"""Seconds that the service may take until a first process could use the GPU through it."""

CLIENTS = 48
"""How many processes MPS takes on one GPU (Volta and later)."""

_TRAINERS = ("worker", "validator")
_VISIBLE, _PIPE = "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"
_NO_GPU = ("", "-1", "NoDevFiles")
# Of a socket's path there may be 107 bytes, the longest name that the daemon adds to its folder's included.
_LONGEST = 80
_TICK = 0.01


@dataclass(frozen=True)
class Membership:
    """What became of it; keep it until the process ends, as the service ends with the last one.

    Attributes:
        used: whether this process uses its GPU through MPS.
        hold: an open file, whose lock tells the keeper that this process lives.
    """

    used: bool = False
    hold: IO[str] | None = None


def join(plan: Plan, plan_file: Path, environment: MutableMapping[str, str]) -> Membership:
    """Let this process use its GPU through MPS if several of its host train on one; say why not if that fails.

    Call it before `preset_gpu`, MPI and the framework. Nothing happens to servers, and to nobody with `train.device =
    "cpu"` or `train.mps = "off"`.

    Args:
        plan: who every rank is, and what they play.
        plan_file: where it was read; ranks of one host that read the same file share the service.
        environment: where it is told to CUDA.
    """
    me = planned_rank(plan, environment)
    here = _trainers(plan, me, environment) if me else {}
    if me not in here or len(set(here.values())) == len(here):
        return Membership()
    hold, folder = None, _folder(plan_file, environment)
    gpu, most = Counter(here.values()).most_common(1)[0]
    if most > CLIENTS:
        why = f"{most} processes share GPU {gpu}, MPS takes {CLIENTS}"
        # A daemon that is there already is out of CUDA's sight then.
        environment[_PIPE] = str(folder / "nobody")
    else:
        try:
            hold, answer = _ask(folder, sorted(set(here.values())), environment)
            why = answer["why"]
            environment.update(answer["variables"])
        except OSError as error:
            why = str(error)
    if why and me is next(iter(here)):
        # One write: others may say something at the same time.
        sys.stderr.write(
            f"hpcps: processes of {socket.gethostname()} share a GPU without MPS, which is slower: {why}\n"
        )
    return Membership(not why, hold)


def _trainers(plan: Plan, me: Rank, environment: Mapping[str, str]) -> dict[Rank, str]:
    """Return which GPU each process of this host trains on, the first that it sees where the plan leaves that open."""
    trains = [run.spec["run"]["train"] for run in plan.runs]
    if all(train["device"] == "cpu" for train in trains) or any(train["mps"] == "off" for train in trains):
        return {}
    first = environment.get(_VISIBLE, "0").split(",")[0]
    here = [member for member in plan.world if member.host == me.host and member.role in _TRAINERS]
    gpus = {member: first if member.gpu is None else member.gpu for member in here}
    return {member: gpu for member, gpu in gpus.items() if gpu not in _NO_GPU}


def _folder(plan_file: Path, environment: Mapping[str, str]) -> Path:
    """Return where the service of this launch and host lives: a launch that goes must not end that of another."""
    name = hashlib.sha256(f"{socket.gethostname()} {plan_file.resolve()}".encode()).hexdigest()[:12]
    room = Path(environment.get("TMPDIR") or "/tmp") / f"hpcps-{os.getuid()}-{name}"
    return room if len(os.fsencode(room)) <= _LONGEST else Path("/tmp") / room.name


def _ask(folder: Path, gpus: Sequence[str], environment: Mapping[str, str]) -> tuple[IO[str], dict[str, Any]]:
    """Wait until the keeper says how MPS is used here, or why not; start it if there is none.

    Returns:
        The file that is to stay open, and the answer: `variables` for the environment and `why` not.

    Raises:
        OSError: it does not answer, or there is no place for it.
    """
    deadline = time.monotonic() + PATIENCE + 5.0
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
    """Be counted among the users; None if the keeper of earlier ones is just cleaning up.

    It takes the folder away while it has the file to itself, so the lock counts only if the file is still there.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    with suppress(FileNotFoundError, BlockingIOError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not ours alone: remove it")
        with ExitStack() as stack:
            file = stack.enter_context(open(folder / "users", "a"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), (folder / "users").stat()):
                stack.pop_all()
                return file
    return None


def _read(path: Path) -> dict[str, Any] | None:
    """Read the answer, unless it is from a keeper that was killed; what is left of that may still have its number."""
    with suppress(FileNotFoundError, ProcessLookupError):
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        state = Path(f"/proc/{answer['keeper']}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return answer if state not in "ZX" else None
    return None


def _start_keeper(folder: Path, gpus: Sequence[str], environment: Mapping[str, str], again: bool) -> bool:
    """Start a keeper, whose lock shows that it lives; False if there is one."""
    import subprocess  # 10 ms, which ranks without a GPU need not wait for

    with open(folder / "keeper", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if again:
            raise OSError(f"what was to start it has ended without a word; see {folder / 'log'}")
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))]
        # It comes back at once: the keeper goes on as a process of its own, with the lock.
        subprocess.run(
            [*program, str(folder), str(lock.fileno()), str(PATIENCE), *gpus],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
    return True

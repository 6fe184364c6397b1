"""Submits commands of hpcps as jobs: to PBS, to Slurm, or as processes of this machine, and follows the jobs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import hpcps
from hpcps.errors import LaunchError
from hpcps.launch.bounded import ask

JobStatus = Literal["pending", "running", "ended", "preempted", "unknown", "silent"]
"""What a batch system says of a job; `unknown`: it does not know the job any more; `silent`: it does not answer."""

_TIMEOUT = 60.0
"""Seconds for a command of a batch system to answer."""
_SUCCESSOR = r"^\S+ {job}(?:\.\S+)? stopped .* continues as (\S+) \(number \d+ after the first job\)$"
"""The line with which a job names its successor (`succeed` in launcher/job.sh)."""


@dataclass(frozen=True)
class JobRequest:
    """A command to execute as a job.

    Attributes:
        words: the command of hpcps, such as `run experiments/mine.toml`; job scripts take no word with a blank.
        hosts: the number of hosts that the default resources have.
        cores: the cores of each of them.
        options: options of `qsub` or `sbatch` in place of the default resources.
        log: the file for what the job prints.
    """

    words: tuple[str, ...]
    hosts: int
    cores: int
    options: tuple[str, ...] | None
    log: Path


class Executor(ABC):
    """Executes commands as jobs, which its methods name by their ids."""

    name: ClassVar[str]

    @abstractmethod
    def submit(self, request: JobRequest) -> str:
        """Submit a job; return its id.

        Raises:
            LaunchError: it is refused; the message has the reason.
        """

    @abstractmethod
    def status(self, job: str) -> JobStatus:
        """Return the status of a job."""

    @abstractmethod
    def cancel(self, job: str) -> None:
        """End a job, or remove it from the queue; a job that has ended stays as it is."""

    def log_of(self, job: str) -> Path | None:
        """Return the file in which the batch system writes the output of a successor; None if it has none."""
        return None


class PbsExecutor(Executor):
    """Jobs of PBS, submitted with `launcher/pbs/submit.sh` and the site profile."""

    name = "pbs"

    def submit(self, request: JobRequest) -> str:
        resources = ("-l", f"select={request.hosts}:ncpus={request.cores}")
        options = resources if request.options is None else request.options
        # Only the names: qsub reads the values from its environment, with their blanks.
        names = ("-v", ",".join(_variables(request)), "-j", "oe", "-o", str(request.log))
        return _submit("pbs", [*options, *names], request).split()[-1]

    def status(self, job: str) -> JobStatus:
        answer = ask(["qstat", "-x", "-f", job], _TIMEOUT)
        text = re.sub(r"\n\t", "", answer.output)
        state = re.search(r"^ *job_state = (\w)", text, re.MULTILINE)
        if answer.problem and "Unknown Job" not in answer.errors:
            return "silent"
        if answer.problem or state is None:
            return "unknown"
        if state[1] in "FXM":
            status = re.search(r"^ *Exit_status = (-?\d+)", text, re.MULTILINE)
            comment = re.search(r"^ *comment = (.*)", text, re.MULTILINE)
            # PBS gives a job that it could not execute to its end, because of a host, a negative status; -29: walltime.
            lost = status is not None and int(status[1]) < 0 and int(status[1]) != -29
            return "preempted" if lost or (comment and "preempt" in comment[1].lower()) else "ended"
        return "running" if state[1] in "REBS" else "pending"

    def cancel(self, job: str) -> None:
        ask(["qdel", job], _TIMEOUT)

    def log_of(self, job: str) -> Path | None:
        return home() / "logs" / f"{job}.OU"


class SlurmExecutor(Executor):
    """Jobs of Slurm, submitted with `launcher/slurm/submit.sh` and the site profile."""

    name = "slurm"

    def submit(self, request: JobRequest) -> str:
        resources = (f"--nodes={request.hosts}", "--ntasks-per-node=1", f"--cpus-per-task={request.cores}")
        options = resources if request.options is None else request.options
        log = ("--parsable", f"--output={request.log}", "--open-mode=append")
        return _submit("slurm", [*options, *log], request).split()[-1].partition(";")[0]

    def status(self, job: str) -> JobStatus:
        answer = ask(["squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%T"], _TIMEOUT)
        if answer.problem and "Invalid job id" not in answer.errors:
            return "silent"
        states = answer.output.split()
        if answer.problem or not states:  # it ended some minutes ago: accounting knows it, if the site has it
            answer = ask(["sacct", "--noheader", "--parsable2", "-X", "--jobs", job, "--format", "State"], _TIMEOUT)
            states = answer.output.split()
        if answer.problem or not states:
            return "unknown"
        if states[0] in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL"):
            return "preempted"
        if states[0] in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"):
            return "pending"
        running = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
        return "running" if states[0] in running else "ended"

    def cancel(self, job: str) -> None:
        ask(["scancel", job], _TIMEOUT)

    def log_of(self, job: str) -> Path | None:
        return home() / f"slurm-{job}.out"


class LocalExecutor(Executor):
    """Processes of this machine; they wait for each other, so that one runs at a time."""

    name = "local"
    _children: ClassVar[dict[str, subprocess.Popen[bytes]]] = {}

    def submit(self, request: JobRequest) -> str:
        lock = request.log.with_name("local.lock")
        command = ["flock", "--no-fork", str(lock), sys.executable, "-m", "hpcps", *request.words]
        with request.log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise LaunchError(f"flock cannot be started: {error.strerror}: install util-linux") from error
        self._children[str(child.pid)] = child
        return str(child.pid)

    def status(self, job: str) -> JobStatus:
        child = self._children.get(job)
        if child is None or child.poll() is not None:
            return "ended"
        try:
            program = Path(f"/proc/{job}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            return "ended"
        return "pending" if program.endswith(b"flock") else "running"

    def cancel(self, job: str) -> None:
        child = self._children.get(job)
        if child is not None and child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)


EXECUTORS: Mapping[str, type[Executor]] = {each.name: each for each in (PbsExecutor, SlurmExecutor, LocalExecutor)}
"""The executors by name."""


def home() -> Path:
    """Return the folder with the job scripts: the repository, or what the wheel has installed.

    Raises:
        LaunchError: there are no job scripts.
    """
    folders = [Path(hpcps.__file__).parent.parent, Path(sysconfig.get_path("data")) / "share" / "hpcps"]
    for folder in folders:
        if (folder / "launcher" / "job.sh").is_file():
            return folder
    raise LaunchError(f"there are no job scripts: neither {folders[0]} nor {folders[1]} has launcher/job.sh")


def successor_in(log: str, job: str) -> str | None:
    """Return the job that continues another one, according to a log, in which other jobs may have written, too."""
    number = job.partition(".")[0]  # PBS may leave out its server
    found = re.search(_SUCCESSOR.format(job=re.escape(number)), log, re.MULTILINE)
    return found[1] if found else None


def _variables(request: JobRequest) -> dict[str, str]:
    return {
        "HPCPS_COMMAND": " ".join(request.words),
        "HPCPS_HOME": str(home()),
        "HPCPS_PYTHON": sys.executable,
        **{name: value for name, value in os.environ.items() if name in ("HPCPS_DATA", "HPCPS_RESULTS")},
    }


def _submit(batch: str, options: Sequence[str], request: JobRequest) -> str:
    """Submit `command.sh` of a batch system; return what `qsub` or `sbatch` prints."""
    if len(" ".join(request.words).split()) > len(request.words):
        raise LaunchError(f"the folder {request.log.parent} has a blank in its path, which job scripts do not pass on")
    scripts = home() / "launcher" / batch
    command = ["bash", str(scripts / "submit.sh"), str(scripts / "command.sh"), *options]
    answer = ask(command, _TIMEOUT, {**os.environ, **_variables(request)})
    if answer.problem or not answer.output.split():
        said = [line for line in answer.errors.splitlines() if line and not line.startswith("no site profile")]
        raise LaunchError(f"{batch}: the job was not submitted: {' '.join(said)[:500] or answer.problem}")
    return answer.output

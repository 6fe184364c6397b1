"""The plan of a launch: one JSON file with the role of every rank and the runs; each rank reads it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError, LaunchError
from hpcps.inputs import read_json
from hpcps.records.files import write_whole

FORMAT = 8
"""Version of the file format; a rank refuses other versions."""

_LONGEST_WAIT = 120.0
"""Seconds that rounds wait for replacements, unless the run says otherwise."""
UNTRIED = "through MPI: not tried, because `hpcps run` did not start this launch on a host with a device"
ACCEPTED = "accepted"
"""The `Plan.device_memory` of a launch whose MPI takes device memory; other values say why it does not."""


@dataclass(frozen=True)
class Rank:
    """One process of the launch.

    Attributes:
        rank: its number in MPI's world.
        role: `worker`, `validator`, `server`, `adversary` or `evaluator`; `standby`, of a server; or the further role
            of the transport, such as `scheduler`.
        index: its index among the processes of its role.
        host: the machine that it runs on, as the host file names it; `localhost` without a host file.
        gpu: the GPU that it uses there, if the host file names GPUs.
        gpu_index: the position of its GPU among those that it sees there, if a batch system gives the host GPUs.
    """

    rank: int
    role: str
    index: int
    host: str
    gpu: str | None = None
    gpu_index: int | None = None

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class PlannedRun:
    """One run of the launch.

    Attributes:
        run_id: its id.
        label: the values that distinguish it from the other runs, for people.
        directory: its folder in the results, absolute.
        spec: the content of its `spec.json`, as JSON values; `spec["run"]` is the resolved run.
    """

    run_id: str
    label: str
    directory: str
    spec: Mapping[str, Any]

    @property
    def plugins(self) -> list[tuple[str, str]]:
        """The file name and the text of each of its plugins."""
        return [(plugin["file"], plugin["text"]) for plugin in self.spec.get("plugins", ())]


@dataclass(frozen=True)
class Script:
    """A person's own program, which every worker executes in place of runs.

    Attributes:
        command: the program and its arguments.
        folder: the folder in which it starts, absolute.
        port: a port of worker 0's host, on which torch.distributed may start.
        shares: how much of each tensor every rank combines, relative to the others; empty if the servers combine equal
            parts, or the workers if there are no servers.
        bind: whether each process is bound to a NUMA node.
        survives: whether it goes on without a process that is lost, and with its replacement.
        hosts: the fields of each `hostfile.Host` on which `hpcps.torch.resume` may place its processes.
    """

    command: tuple[str, ...]
    folder: str
    port: int
    shares: tuple[int, ...] = ()
    bind: bool = False
    survives: bool = False
    hosts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Plan:
    """The role of every rank, and the runs that the ranks execute one after another, or the script.

    Attributes:
        world: the processes, by rank.
        runs: the runs, which share topology and threads.
        mpi: whether the processes are ranks of MPI.
        trace: whether every rank writes a trace.
        progress: whether the coordinator prints the progress of the runs, because no `hpcps run` supervises the launch.
        rank_variables: the environment variables in which the launcher stores the rank of a process before MPI starts.
        device_memory: whether MPI takes device memory, as `gpu_mpi` found out.
        script: the program that workers execute; None for runs.
        umask: the file permissions that every rank denies: batch systems start the ranks of other hosts with their own.
    """

    world: tuple[Rank, ...]
    runs: tuple[PlannedRun, ...]
    mpi: bool = True
    trace: bool = False
    progress: bool = False
    rank_variables: tuple[str, ...] = ()
    device_memory: str = UNTRIED
    umask: int | None = None
    script: Script | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of the content of the plan: ranks with equal fingerprints have read the same plan."""
        return _fingerprint(self._body())

    @property
    def timeout(self) -> float:
        """The longest `transport.timeout` of the runs, in seconds."""
        return max((float(run.spec["run"]["transport"]["timeout"]) for run in self.runs), default=math.inf)

    @property
    def replaceable(self) -> frozenset[int]:
        """The ranks that the launch may lose: those of `Roster.replaceable`, servers and their standbys; or all."""
        if self.script is not None:
            return frozenset(rank.rank for rank in self.world) if self.script.survives else frozenset()
        if not self.runs:
            return frozenset()
        named = [role for role in ("worker", "validator", "server") if self._survive.get(f"{role}s")]
        named.append("standby")
        validated = any(member.role == "validator" for member in self.world)
        named += ["evaluator"] if ("validator" if validated else "worker") in named else []
        return frozenset(member.rank for member in self.world if member.role in named)

    def may_lose(self, process: str) -> bool:
        """Return whether the launch may lose a process, also one that a resize of its script has added."""
        if self.script is not None:
            return self.script.survives
        return process in {str(self.world[rank]) for rank in self.replaceable}

    @property
    def leader(self) -> int:
        """The first rank that it may not lose."""
        return next((member.rank for member in self.world if member.rank not in self.replaceable), 0)

    @property
    def spares(self) -> tuple[str, ...]:
        """The hosts that take the place of hosts that are gone, in this order."""
        return tuple(self._survive.get("spares", ())) if self.replaceable else ()

    def silence(self, member: Rank | None) -> float:
        """Return the seconds without a sign of life after which the guard of a process ends it."""
        replaceable = member is not None and member.rank in self.replaceable
        return float(self._survive["after"]) if replaceable else self.timeout

    @property
    def longest_wait(self) -> float | None:
        """The seconds that a round may wait for replacements before its run stops; None if no round does."""
        if not self.runs or not self.replaceable:
            return None
        wait = self._survive.get("wait")
        return float(wait) if wait is not None else min(_LONGEST_WAIT, self.timeout / 2)

    @property
    def _survive(self) -> Mapping[str, Any]:
        run: Mapping[str, Any] = self.runs[0].spec["run"]
        settings: Mapping[str, Any] = run.get("survive", {})  # a plan of an earlier version has none
        return settings

    @property
    def text(self) -> str:
        """The content of its file."""
        body = self._body()
        return json.dumps({"fingerprint": _fingerprint(body), **body}, indent=1)

    def write(self, path: Path) -> None:
        """Write the plan atomically: under its name, readers only ever find a complete file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self.text)
        except OSError as error:
            raise LaunchError(f"the plan cannot be written to {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan back.

        Raises:
            LaunchError: the file is missing, or `write` has not written it in this form.
        """
        try:
            body = read_json(path)
        except InputError as error:
            if isinstance(error.__cause__, OSError):
                what = f"the plan {path} cannot be read: {error.reason}; every host must be able to read that folder"
                raise LaunchError(what) from error
            raise LaunchError(f"{path} is no plan: {error.reason}; generate it again") from error
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise LaunchError(f"{path} is no plan of this version of hpcps; generate it again")
        if body.pop("fingerprint", None) != _fingerprint(body):
            raise LaunchError(f"the plan {path} was changed after it was generated; generate it again")
        world = tuple(Rank(**rank) for rank in body.pop("world"))
        runs = tuple(PlannedRun(**run) for run in body.pop("runs"))
        del body["format"]
        if (script := body.pop("script")) is not None:
            lists = {name: tuple(script[name]) for name in ("command", "shares", "hosts")}
            script = Script(**{**script, **lists})
        return cls(world, runs, script=script, rank_variables=tuple(body.pop("rank_variables")), **body)

    def _body(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


def _fingerprint(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

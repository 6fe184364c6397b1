"""The plan of a launch: one JSON file that says who every rank is and which runs it plays; each rank reads it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcps.errors import LaunchError

FORMAT = 1
"""Version of the file; a rank refuses another one."""


@dataclass(frozen=True)
class Rank:
    """One process of the launch.

    Attributes:
        rank: its number in MPI's world.
        role: `worker`, `validator` or `server`; of ps-lite nodes also `scheduler`, through which they meet.
        index: which of its role it is.
        host: the machine it belongs on, as the host file calls it; `localhost` without one.
        gpu: the GPU it uses there, if the host file gives any.
    """

    rank: int
    role: str
    index: int
    host: str
    gpu: str | None = None

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class PlannedRun:
    """One run of the launch.

    Attributes:
        run_id: what it is known by.
        label: what sets it apart, for people.
        directory: its folder in the results, absolute.
        spec: what its `spec.json` holds, as JSON values; `spec["run"]` is the resolved run.
    """

    run_id: str
    label: str
    directory: str
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """Who every rank is, and the runs that they play one after another.

    Attributes:
        world: the processes, by rank.
        runs: the runs, which share topology and threads.
        nodes: the `DMLC_*` and `PS_*` variables that all ps-lite nodes share; empty over MPI.
        trace: whether every rank notes what it does when.
    """

    world: tuple[Rank, ...]
    runs: tuple[PlannedRun, ...]
    nodes: Mapping[str, str] = field(default_factory=dict)
    trace: bool = False

    @property
    def fingerprint(self) -> str:
        """A hash of everything in the plan: ranks that read the same plan have the same one."""
        return _fingerprint(self._body())

    def write(self, path: Path) -> None:
        """Write the plan so that it appears under its name complete."""
        body = self._body()
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"fingerprint": _fingerprint(body), **body}, indent=1), encoding="utf-8")
            beside.replace(path)
        except OSError as error:
            raise LaunchError(f"the plan cannot be written to {path}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                beside.unlink()

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan back.

        Raises:
            LaunchError: the file is not there, or is not a plan as `write` leaves it.
        """
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            what = f"the plan {path} cannot be read: {error.strerror}; every host needs to see that folder"
            raise LaunchError(what) from error
        except ValueError as error:
            raise LaunchError(f"{path} is no plan: {error}; generate it again") from error
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise LaunchError(f"{path} is no plan of this version of hpcps; generate it again")
        if body.pop("fingerprint", None) != _fingerprint(body):
            raise LaunchError(f"the plan {path} was changed after it was generated; generate it again")
        world = tuple(Rank(**rank) for rank in body["world"])
        runs = tuple(PlannedRun(**run) for run in body["runs"])
        return cls(world, runs, body.get("nodes", {}), body.get("trace", False))

    def _body(self) -> dict[str, Any]:
        world, runs = [asdict(rank) for rank in self.world], [asdict(run) for run in self.runs]
        more: dict[str, Any] = {"nodes": dict(self.nodes)} if self.nodes else {}
        return {"format": FORMAT, "world": world, "runs": runs, **more, **({"trace": True} if self.trace else {})}


def _fingerprint(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

"""The differences between the environment of a recorded run and the present one that can change its bits."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpcps.protocol.messages import Peer
from hpcps.records.provenance import installed_code, machine, packages

_PACKAGES = ("numpy", "torch", "mxnet", "gluoncv")

_OF_A_PROCESS = {
    "threads": "threads",
    "device": "device",
    "memory_format": "memory format",
    "cpu_model": "processor",
}
"""Fields of a `start` line, and their names."""


def of_provenance(recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences from the provenance of a run: code, packages, Python."""
    here = packages()
    known = _mapping(recorded.get("packages"))
    python = str(recorded.get("python", "unknown")).partition(" ")[0]
    pairs = [("Python", python, sys.version.partition(" ")[0])]
    pairs += [(name, str(known.get(name, "none")), here.get(name, "none")) for name in _PACKAGES]
    code = str(_mapping(_mapping(recorded.get("installed")).get("hpcps")).get("sha256", "unknown"))
    pairs.append(("SHA-256 of hpcps", code[:10], installed_code()["hpcps"]["sha256"][:10]))
    for name, there, now in pairs:
        if there != now:
            yield _sentence(name, there, now)


def of_starts(starts: Iterable[tuple[Peer, Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the differences between the `start` lines of each process, in a run and in a replay."""
    found: dict[str, list[str]] = {}
    here = {"cpu_model": machine()["cpu"]}
    for peer, there, now in starts:
        for field, name in _OF_A_PROCESS.items():
            value = now.get(field, here.get(field))
            if field in there and there[field] != value:
                found.setdefault(_sentence(name, there[field], value), []).append(str(peer))
    for sentence, processes in found.items():
        yield f"{sentence} ({', '.join(processes)})"


def _sentence(name: str, there: object, now: object) -> str:
    return f"{name}: {there} in the run, {now} here"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

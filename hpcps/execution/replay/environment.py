"""The differences between the environment of a recorded run and the present one that can change its bits."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpcps.protocol.messages import Peer
from hpcps.records.provenance import installed_code, machine, packages
from hpcps.spec.identity import revisions, run_id
from hpcps.spec.plugins import used
from hpcps.spec.schema import Run

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


def of_settings(spec: Mapping[str, Any], run: Run) -> str | None:
    """Describe that the settings of a run do not belong to its id, which is a hash of them; None if they do.

    The ids of runs with plugins, or before a revision that affects them, may differ here for other reasons.

    Args:
        spec: the content of `spec.json`.
        run: its settings; its plugins are in use.
    """
    recorded, here = spec.get("run_id"), run_id(run)
    foreign = any(entry.origin.identity for entry in used(run).values())
    if here == recorded or foreign or spec.get("revisions", []) != revisions(run):
        return None
    return (
        f"the settings do not belong to the run id {recorded}, but to {here}: they were changed after the run, or "
        "another version of hpcps wrote them; the records are not compared"
    )


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

"""Host files: the machines, the number of processes on each, and the GPUs of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcps.errors import InputError, LaunchError
from hpcps.inputs import MiB, read_text, whole_number
from hpcps.registry.config import MOST_ROLES

Style = Literal["hpcps", "zenops"]
STYLES: tuple[Style, ...] = ("hpcps", "zenops")

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9/-]*")


@dataclass(frozen=True)
class Host:
    """A machine to place roles on.

    Attributes:
        name: its name for the launcher.
        slots: the number of roles that it holds; a validator colocated with its server shares the slot of the server.
        gpus: the ids of its GPUs, as in `CUDA_VISIBLE_DEVICES`; its processes use them in turn.
        slot_gpus: the GPU of each slot, or None for a slot without one; empty if the file assigns no GPUs to slots.
    """

    name: str
    slots: int
    gpus: tuple[str, ...] = ()
    slot_gpus: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class _Line:
    """The content of one line of the file; `slots` is None if the line does not give a number."""

    number: int
    name: str
    slots: int | None
    gpus: tuple[str, ...]


def read_hostfile(path: Path, style: Style = "hpcps") -> tuple[Host, ...]:
    """Read a host file; hosts keep the order in which the file first names them.

    Style `hpcps` has one host per line: `name`, `name:4` or `name slots=4`, optionally followed by `gpus=0,1`. A name
    without settings may be repeated, as in `$PBS_NODEFILE`; it has one slot per line. A host with GPUs and without a
    number of slots has one slot per GPU. Style `zenops` has one process per line: `name:gpu`, with the GPU of that
    process. `#` starts a comment.

    Raises:
        LaunchError: the file is missing or empty, or lines in it are wrong; the message lists all of them.
    """
    try:
        text = read_text(path, 16 * MiB)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            what = f"there is no host file {path}: name one, or leave it out to run on this machine"
            raise LaunchError(what) from None
        raise LaunchError(f"the host file {path} cannot be read: {error.reason}") from error
    lines: list[_Line] = []
    mistakes: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        if content:
            try:
                lines.append(_parse_zenops(number, content) if style == "zenops" else _parse(number, content))
            except ValueError as error:
                mistakes.append((number, str(error)))
    mistakes += _repetitions(lines, style) + _loopback_names(lines)
    if mistakes:
        raise LaunchError("\n".join(f"{path}:{number}: {what}" for number, what in sorted(mistakes)))
    if not lines:
        raise LaunchError(f"the host file {path} is empty: write a host per line, such as `node01 slots=2 gpus=0,1`")
    return _merge(lines, style)


def _parse(number: int, content: str) -> _Line:
    first, *settings = content.split()
    name, colon, count = first.partition(":")
    slots = _slots(count) if colon else None
    gpus: tuple[str, ...] | None = None
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in ("slots", "gpus"):
            what = f"unknown setting {setting[:60]!r}"
            raise ValueError(f"{what}: a line is `host`, `host:4` or `host slots=4 gpus=0,1`")
        if key == "slots":
            if slots is not None:
                raise ValueError("the number of slots is given twice")
            slots = _slots(value)
        else:
            if gpus is not None:
                raise ValueError("gpus= is given twice; list all ids in one: gpus=0,1")
            gpus = tuple(_gpu(gpu) for gpu in value.split(","))
    return _Line(number, _host(name), slots, gpus or ())


def _parse_zenops(number: int, content: str) -> _Line:
    name, colon, gpu = content.partition(":")
    return _Line(number, _host(name), None, (_gpu(gpu),) if colon else ())


def _host(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is no host name or address")
    return name


def _slots(text: str) -> int:
    slots = whole_number(text, 1, MOST_ROLES)
    if slots is None:
        what = f"{text[:60]!r} is no number of slots (1 to {MOST_ROLES})"
        raise ValueError(f"{what}; for a GPU write gpus={text[:60] or '0'}")
    return slots


def _gpu(text: str) -> str:
    if not _GPU.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no GPU id: give a number, or a name that `nvidia-smi -L` prints")
    return text


def _repetitions(lines: Sequence[_Line], style: Style) -> list[tuple[int, str]]:
    """Find GPUs that are named twice, and repeated hosts whose lines have settings."""
    mistakes = []
    first: dict[str, _Line] = {}
    owner: dict[tuple[str, str], int] = {}
    for line in lines:
        for gpu in line.gpus:
            where = owner.setdefault((line.name, gpu), line.number)
            if where != line.number or line.gpus.count(gpu) > 1:
                again = f"already in line {where}" if where != line.number else "twice in this line"
                mistakes.append((line.number, f"GPU {gpu} of {line.name} is named {again}"))
                break
        other = first.setdefault(line.name, line)
        bare = all(each.slots is None and not each.gpus for each in (line, other))
        if other is not line and style == "hpcps" and not bare:
            what = f"{line.name} is already in line {other.number}: say all about a host in one line"
            mistakes.append((line.number, what))
    return mistakes


def _loopback_names(lines: Sequence[_Line]) -> list[tuple[int, str]]:
    """Find names that mean a different machine on every host, such as `localhost`."""
    if len({line.name for line in lines}) == 1:
        return []
    return [
        (line.number, f"{line.name} is each machine's name for itself: in a file of several hosts, write its real name")
        for line in lines
        if line.name.partition(".")[0] == "localhost" or line.name == "127.0.0.1"
    ]


def _merge(lines: Sequence[_Line], style: Style) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for line in lines:
        slots = line.slots if line.slots is not None else max(1, len(line.gpus))
        known = hosts.get(line.name, Host(line.name, 0))
        if style == "zenops":
            own = known.slot_gpus + (line.gpus or (None,))
            hosts[line.name] = Host(line.name, len(own), slot_gpus=own)
        else:
            hosts[line.name] = Host(line.name, known.slots + slots, known.gpus + line.gpus)
    return tuple(hosts.values())

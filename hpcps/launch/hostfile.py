"""Host files: which machines there are, how many processes each takes, and which GPUs it has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcps.errors import LaunchError

Style = Literal["hpcps", "zenops"]
STYLES: tuple[Style, ...] = ("hpcps", "zenops")

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9/-]*")


@dataclass(frozen=True)
class Host:
    """A machine to place roles on.

    Attributes:
        name: as the launcher is to call it.
        slots: how many roles it takes; a validator colocated with its server shares the server's slot.
        gpus: the ids of its GPUs, as `CUDA_VISIBLE_DEVICES` takes them; its processes use them in turn.
        slot_gpus: the GPU of each slot, or None for a slot without one; empty if the file does not say so slot by slot.
    """

    name: str
    slots: int
    gpus: tuple[str, ...] = ()
    slot_gpus: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class _Line:
    """What one line of the file says; `slots` is None if it does not say."""

    number: int
    name: str
    slots: int | None
    gpus: tuple[str, ...]


def read_hostfile(path: Path, style: Style = "hpcps") -> tuple[Host, ...]:
    """Read a host file; hosts keep the order in which the file first names them.

    Style `hpcps` has a host per line: `name`, `name:4` or `name slots=4`, and `gpus=0,1` after it. A bare name may
    come again, as in `$PBS_NODEFILE`, and has a slot per line. Without a number of slots a host with GPUs has a slot
    for each. Style `zenops` has a process per line: `name:gpu`, and the GPU is that process's. `#` begins a comment.

    Raises:
        LaunchError: the file is missing or empty, or lines in it are wrong; the message lists all of them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LaunchError(f"there is no host file {path}: name one, or leave it out to run on this machine") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"the host file {path} cannot be read: {error}") from error
    lines: list[_Line] = []
    mistakes: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.partition("#")[0].strip()
        if content:
            try:
                lines.append(_parse_zenops(number, content) if style == "zenops" else _parse(number, content))
            except ValueError as error:
                mistakes.append((number, str(error)))
    mistakes += _repetitions(lines, style) + _everywhere(lines)
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
            raise ValueError(f"{setting!r} is not known here: a line is `host`, `host:4` or `host slots=4 gpus=0,1`")
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
        raise ValueError(f"{name!r} is no host name or address")
    return name


def _slots(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{text!r} is no number of slots (1 or more); for a GPU write gpus={text or '0'}")
    return int(text)


def _gpu(text: str) -> str:
    if not _GPU.fullmatch(text):
        raise ValueError(f"{text!r} is no GPU id: a number, or what `nvidia-smi -L` calls it")
    return text


def _repetitions(lines: Sequence[_Line], style: Style) -> list[tuple[int, str]]:
    """Find GPUs named twice, and hosts named again by a line that says more than the name."""
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


def _everywhere(lines: Sequence[_Line]) -> list[tuple[int, str]]:
    """Find names that mean another machine on each of several."""
    if len({line.name for line in lines}) == 1:
        return []
    return [
        (line.number, f"{line.name} is each machine's name for itself: among several hosts, write its real name")
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

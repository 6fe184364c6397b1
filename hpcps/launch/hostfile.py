"""Host files: the machines, the number of processes on each, and the GPUs of each."""

from __future__ import annotations

import ipaddress
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
_MEANS_GPU = re.compile(r"0|\d+(?:,\d+)+|(?:GPU|MIG)-.*")
"""What stands in place of a number of slots, and is the id of a GPU, or several."""
_IN_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\]")
_PBS_SLOTS, _PBS_GPUS = "mpiprocs", "ngpus"
_MOST_GPUS = 1024


@dataclass(frozen=True)
class Host:
    """A machine to place roles on.

    Attributes:
        name: its name for the launcher.
        slots: the number of roles that it holds; a validator colocated with its server shares the slot of the server.
        gpus: the ids of its GPUs, as in `CUDA_VISIBLE_DEVICES`; its processes use them in turn.
        slot_gpus: the GPU of each slot, or None for a slot without one; empty if the file assigns no GPUs to slots.
        gpu_count: the number of GPUs that a batch system gives there, whose ids only that host knows; 0 if it says
            nothing.
    """

    name: str
    slots: int
    gpus: tuple[str, ...] = ()
    slot_gpus: tuple[str | None, ...] = ()
    gpu_count: int = 0

    @property
    def names_gpus(self) -> bool:
        """Whether GPUs are known."""
        return bool(self.gpus or self.slot_gpus or self.gpu_count)


@dataclass(frozen=True)
class _Line:
    """The content of one line of the file; `slots` is None if the line does not give a number."""

    number: int
    name: str
    slots: int | None
    gpus: tuple[str, ...]
    gpu_count: int = 0

    @property
    def key(self) -> str:
        """The name as hosts are compared: the case of letters has no meaning in it."""
        return self.name.lower()


def read_hostfile(path: Path, style: Style = "hpcps") -> tuple[Host, ...]:
    """Read a host file; hosts keep the order in which the file first names them.

    Style `hpcps` has one host per line: `name`, `name:4` or `name slots=4`, optionally followed by `gpus=0,1`; or
    `name:ncpus=8:mpiprocs=4:ngpus=2`, the resources of a chunk of PBS, where `mpiprocs` is the number of slots, 1
    without it, and `ngpus` the number of GPUs. A name without settings may be repeated, as in `$PBS_NODEFILE`; it has
    one slot per line. A host with GPUs and without a number of slots has one slot per GPU. Style `zenops` has one
    process per line: `name:gpu`, with the GPU of that process. `#` starts a comment. Names that differ in the case of
    letters are one host.

    Raises:
        LaunchError: the file is missing or empty, or lines in it are wrong; the message lists all of them.
    """
    try:
        text = read_text(path, 16 * MiB)
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            what = f"there is no host file {path}: name one, or leave it out to run on this machine"
            raise LaunchError(what) from None
        raise LaunchError(f"the host file {path}: {error.reason}") from error
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
    _refuse_ipv6(first)
    name, colon, count = first.partition(":")
    if "=" in count:
        return _parse_chunk(number, name, count, settings)
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
            gpus = gpu_ids(value)
    return _Line(number, _host(name), slots, gpus or ())


def _parse_chunk(number: int, name: str, resources: str, settings: Sequence[str]) -> _Line:
    """Read a host with the resources of a chunk, as a job of PBS requests them; only slots and GPUs matter here."""
    if settings:
        raise ValueError(f"{settings[0][:60]!r} after a chunk of PBS: its slots are mpiprocs, and its GPUs ngpus")
    if name.isdigit():
        raise ValueError(f"{name[:60]!r} is a number of chunks, as in `qsub -l select`: a line starts with a host")
    found: dict[str, str] = {}
    for resource in resources.split(":"):
        key, equals, value = resource.partition("=")
        if not equals or not key or not value or key in found:
            raise ValueError(f"{resource[:60]!r} is no resource of a chunk of PBS, such as ncpus=36 or mpiprocs=36")
        found[key] = value
    gpus = whole_number(found.get(_PBS_GPUS, "0"), 0, _MOST_GPUS)
    if gpus is None:
        raise ValueError(f"{found[_PBS_GPUS][:60]!r} is no number of GPUs (0 to {_MOST_GPUS})")
    return _Line(number, _host(name), _slots(found.get(_PBS_SLOTS, "1")), (), gpus)


def _refuse_ipv6(name: str) -> None:
    """Refuse an address with colons, which also separate a host and its slots, here and in the files of launchers."""
    found = _IN_BRACKETS.match(name)
    try:
        ipaddress.IPv6Address(found[1] if found else name)
    except ValueError:
        return
    raise ValueError(
        f"{name[:60]!r} is an IPv6 address, which is not supported, because launchers separate a host and its slots "
        "by a colon: write a name of the host, for example one from /etc/hosts"
    )


def _parse_zenops(number: int, content: str) -> _Line:
    _refuse_ipv6(content)
    name, colon, gpu = content.partition(":")
    return _Line(number, _host(name), None, (_gpu(gpu),) if colon else ())


def _host(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is no host name or address")
    return name


def _slots(text: str) -> int:
    slots = whole_number(text, 1, MOST_ROLES)
    if slots is None:
        gpu = f"; for a GPU write gpus={text[:60]}" if _MEANS_GPU.fullmatch(text) else ""
        raise ValueError(f"{text[:60]!r} is no number of slots (1 to {MOST_ROLES}){gpu}")
    return slots


def gpu_ids(text: str) -> tuple[str, ...]:
    """Read ids of GPUs, separated by commas.

    Raises:
        ValueError: one is no id; the message says which.
    """
    return tuple(_gpu(gpu) for gpu in text.split(","))


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
            where = owner.setdefault((line.key, gpu), line.number)
            if where != line.number or line.gpus.count(gpu) > 1:
                again = f"already in line {where}" if where != line.number else "twice in this line"
                mistakes.append((line.number, f"GPU {gpu} of {line.name} is named {again}"))
                break
        other = first.setdefault(line.key, line)
        bare = all(each.slots is None and not each.gpus for each in (line, other))
        if other is not line and style == "hpcps" and not bare:
            what = f"{line.name} is already in line {other.number}: say all about a host in one line"
            mistakes.append((line.number, what))
    return mistakes


def _loopback_names(lines: Sequence[_Line]) -> list[tuple[int, str]]:
    """Find names that mean a different machine on every host, such as `localhost`."""
    if len({line.key for line in lines}) == 1:
        return []
    return [
        (line.number, f"{line.name} is each machine's name for itself: in a file of several hosts, write its real name")
        for line in lines
        if line.key.partition(".")[0] == "localhost" or line.key == "127.0.0.1"
    ]


def _merge(lines: Sequence[_Line], style: Style) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for line in lines:
        slots = line.slots if line.slots is not None else max(1, len(line.gpus))
        known = hosts.get(line.key, Host("localhost" if line.key == "localhost" else line.name, 0))
        if style == "zenops":
            own = known.slot_gpus + (line.gpus or (None,))
            hosts[line.key] = Host(known.name, len(own), slot_gpus=own)
        else:
            gpus = known.gpus + line.gpus
            hosts[line.key] = Host(known.name, known.slots + slots, gpus, gpu_count=line.gpu_count)
    return tuple(hosts.values())

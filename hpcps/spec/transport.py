"""The transport as a component: the keys that every transport has, and what a transport declares."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from hpcps.registry import Config, active
from hpcps.registry.config import WEEK

Offer = Literal["processes", "hosts", "mpi", "allreduce", "shared_memory", "device_memory", "replacements"]


class Transport(Config, ABC):
    """The transport of the messages."""

    offers: ClassVar[frozenset[Offer]] = frozenset()
    """What it offers:

    - `processes`: every role is a process; else all roles are in one process, in which computation takes no time
    - `hosts`: the processes may be on several hosts
    - `mpi`: the processes are ranks of MPI, which a launcher of MPI starts
    - `allreduce`: it reduces arrays of several processes, as `train.exchange = "allreduce"` needs
    - `shared_memory`: processes of one host read payloads in place
    - `device_memory`: it sends payloads from the memory of devices
    - `replacements`: a new process can take the place of a lost one, as `[survive]` needs
    """

    further_role: ClassVar[str] = ""
    """The role of a process that it needs in addition, on the first host, to connect the others; empty for none."""

    kind: str
    partition: Literal["auto"] | Annotated[int, Field(ge=64, le=2**40)] = Field(
        "auto",
        description="Bytes of the model that a synchronous round sends as one message, so that combining overlaps "
        "transfer and no role holds more than a few partitions of every sender; `auto`: 384 KiB if a run uses several "
        "hosts, otherwise the whole model. A rule that sees whole blocks or whole updates gets them whole. The result "
        "is the same.",
    )
    timeout: float = Field(
        600.0,
        gt=0,
        le=WEEK,
        description="Seconds that a role waits for a message before the run fails; the error names the missing sender.",
    )

    @property
    def in_process(self) -> bool:
        """Whether all roles of a run are in one process."""
        return "processes" not in self.offers

    @property
    def reads_in_place(self) -> bool:
        """Whether processes of one host read payloads in place, if they can."""
        return "shared_memory" in self.offers

    @property
    def replaces(self) -> bool:
        """Whether a new process can take the place of a lost one."""
        return "replacements" in self.offers

    @property
    def buffers(self) -> Literal["auto", "direct", "staged"]:
        """How payloads leave the memory of devices; see `transport.device_buffers`."""
        return "auto" if "device_memory" in self.offers else "staged"

    def missing(self) -> str:
        """Return what this environment lacks for the transport, with its remedy; empty if nothing is known to lack."""
        return ""

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"offers": sorted(cls.offers)}

    @classmethod
    def faults(cls) -> list[str]:
        unknown = sorted(set(cls.offers) - set(get_args(Offer)))
        return [f"offers {', '.join(unknown)}, but only {', '.join(get_args(Offer))} exist"] if unknown else []

    @model_validator(mode="before")
    @classmethod
    def _without_defaults_of_others(cls, table: Any) -> Any:
        """Drop keys that only other transports have if they have their defaults, as in records of earlier versions."""
        if not isinstance(table, Mapping):
            return table
        others = [other.model_fields for other in active().of("transports").usable().values()]
        idle = {
            name
            for name, value in table.items()
            if name not in cls.model_fields and any(name in other and other[name].default == value for other in others)
        }
        return {name: value for name, value in table.items() if name not in idle}


def runs_in_process(kind: object) -> bool:
    """Return whether all roles of a run over this kind of transport are in one process, as its record names it."""
    known = active().of("transports")
    return kind in known and "processes" not in known[str(kind)].offers

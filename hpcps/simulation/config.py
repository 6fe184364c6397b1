"""The keys of a simulated run's time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from hpcps.config import Config
from hpcps.heterogeneity import AnyDelay, NoDelay

Place = Annotated[str, Field(pattern=r"^(worker|validator|server)-(0|[1-9][0-9]*)$")]
Hosts = tuple[Annotated[tuple[Place, ...], Field(strict=False)], ...]


class Link(Config):
    """A way for messages; those that use it at once share its bandwidth evenly."""

    latency: NonNegativeFloat = Field(0.0, description="Seconds from the last byte sent to the message's arrival.")
    bandwidth: float | None = Field(None, gt=0, description="Bytes per second; default: unlimited.")


class Local(Link):
    """The link between processes of one host; each host has one. Those that use it at once share it evenly."""


class Remote(Link):
    """Each host's way out to other hosts, and its way in. Those that use one at once share it evenly."""


class Work(Config):
    """What a task costs, in CPU seconds: `call` + `element` times the elements that it goes through."""

    call: NonNegativeFloat = Field(0.0, description="CPU seconds of each time.")
    element: NonNegativeFloat = Field(0.0, description="CPU seconds of each element (a float32).")

    def seconds(self, elements: int) -> float:
        """Return the CPU seconds that it takes."""
        return self.call + self.element * elements


class Pack(Work):
    """What it costs a worker to make its update: `call` + `element` times the model's elements."""


class Adopt(Work):
    """What it costs a worker or validator to take a new model: `call` + `element` times its elements."""


class Combine(Work):
    """What the rule costs: `call` + `element` times the elements of all updates combined, or of the one judged."""


class Apply(Work):
    """What it costs a server to add what the validators made of a round: `call` + `element` times its elements."""


class Messages(Config):
    """What messages cost the processes at their ends, in CPU seconds."""

    send: NonNegativeFloat = Field(0.0, description="CPU seconds to send a message.")
    receive: NonNegativeFloat = Field(0.0, description="CPU seconds to take a message and react to it.")
    byte: NonNegativeFloat = Field(0.0, description="CPU seconds of each byte, at both ends.")
    record: NonNegativeFloat = Field(0.0, description="CPU seconds of each record line that a process writes.")


class Waiting(Config):
    """What a process does that waits: it polls without a break for a moment, then once per interval."""

    spin: NonNegativeFloat = Field(0.0, description="CPU seconds of the polls without a break.")
    poll: NonNegativeFloat = Field(0.0, description="CPU seconds of each later poll.")
    interval: NonNegativeFloat = Field(
        0.0, description="Seconds between later polls, a message's wait being a random part of it; 0: no polls."
    )

    @property
    def demand(self) -> float:
        """The part of a core that a process wants which polls now and then."""
        return self.poll / (self.interval + self.poll) if self.interval else 0.0


class Costs(Config):
    """What everything costs that a process does."""

    step: AnyDelay = Field(NoDelay(), description="CPU seconds of a local step, drawn from the seed for each step.")
    evaluate: NonNegativeFloat = Field(0.0, description="CPU seconds of an evaluation.")
    pack: Pack = Pack()
    adopt: Adopt = Adopt()
    combine: Combine = Combine()
    apply: Apply = Apply()
    messages: Messages = Messages()
    waiting: Waiting = Waiting()


class Machine(Config):
    """The hosts that are imagined, and what connects them."""

    hosts: PositiveInt = Field(1, description="Hosts.")
    cores: PositiveInt | None = Field(
        None,
        description="Cores of each host, which its processes share; default: one for each process, or with `measured` "
        "as many as the machine of the records has.",
    )
    speed: float = Field(
        1.0, gt=0, description="How many CPU seconds of the costs a core does in a second; less than 1: it is slower."
    )
    placement: Annotated[Hosts, Field(strict=False)] = Field(
        (),
        description='The roles on each host, such as [["server-0", "validator-0"], ["worker-0", "worker-1"]]; default: '
        "where the launcher would place them on as many hosts.",
    )
    local: Local = Local()
    remote: Remote = Remote()


class NoSimulation(Config):
    """Computing and messages take no time."""

    kind: Literal["none"] = "none"


class Modelled(Machine, Costs):
    """The costs are given."""

    kind: Literal["modelled"] = "modelled"


class Measured(Machine):
    """The costs are those of a run over MPI, fitted to its records."""

    kind: Literal["measured"] = "measured"
    records: str = Field("", description="The folder of a finished run of the same model and batch size; required.")


AnySimulation = Annotated[NoSimulation | Modelled | Measured, Field(discriminator="kind")]

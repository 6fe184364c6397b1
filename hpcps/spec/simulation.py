"""The keys of simulated timing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from hpcps.registry.config import DAY, MOST, MOST_ROLES, Config
from hpcps.spec.heterogeneity import AnyDelay, NoDelay

Seconds = Annotated[float, Field(ge=0, le=DAY)]
Place = Annotated[str, Field(pattern=r"^(worker|validator|server|evaluator|standby)-(0|[1-9][0-9]*)$")]
Fallible = Annotated[str, Field(pattern=r"^(worker|validator|evaluator|server|standby)(-(0|[1-9][0-9]*))?$")]
Hosts = tuple[Annotated[tuple[Place, ...], Field(strict=False)], ...]


class Link(Config):
    """A link for messages; simultaneous transfers share its bandwidth evenly."""

    latency: Seconds = Field(0.0, description="Seconds from the last byte sent to the message's arrival.")
    bandwidth: float | None = Field(None, gt=0, le=1e18, description="Bytes per second; default: unlimited.")


class Local(Link):
    """The link between processes of one host; each host has one. Simultaneous transfers share it evenly."""


class Remote(Link):
    """Each host's link to other hosts: one out and one in. Simultaneous transfers share a link evenly."""


class Work(Config):
    """The cost of a task in CPU seconds: `call` + `element` times the number of elements."""

    call: Seconds = Field(0.0, description="CPU seconds of each execution.")
    element: Seconds = Field(0.0, description="CPU seconds of each element (a float32).")

    def seconds(self, elements: int) -> float:
        """Return the CPU seconds for a number of elements."""
        return self.call + self.element * elements


class Pack(Work):
    """The cost of making an update on a worker: `call` + `element` times the model's elements."""


class Adopt(Work):
    """The cost of adopting a new model on a worker or validator: `call` + `element` times its elements."""


class Combine(Work):
    """The cost of the rule: `call` + `element` times the elements of all combined updates, or of the filtered one."""


class Apply(Work):
    """The cost of adding the validators' result to the model on a server: `call` + `element` times its elements.

    In a ring: the cost of adding up, and of copying, on a worker.
    """


class Messages(Config):
    """The cost of messages for their sender and receiver, in CPU seconds."""

    send: Seconds = Field(0.0, description="CPU seconds to send a message.")
    receive: Seconds = Field(0.0, description="CPU seconds to receive and handle a message.")
    byte: Seconds = Field(0.0, description="CPU seconds of each byte, at both ends.")
    record: Seconds = Field(0.0, description="CPU seconds of each record line that a process writes.")


class Waiting(Config):
    """The cost of waiting: a process first polls without a break, then once per interval."""

    spin: Seconds = Field(0.0, description="CPU seconds of the polls without a break.")
    poll: Seconds = Field(0.0, description="CPU seconds of each later poll.")
    interval: Seconds = Field(
        0.0, description="Seconds between later polls; a message waits for a random part of it; 0: no polls."
    )

    @property
    def demand(self) -> float:
        """The share of a core that a polling process uses."""
        return self.poll / (self.interval + self.poll) if self.interval else 0.0


class Costs(Config):
    """The costs of all activities of a process."""

    step: AnyDelay = Field(NoDelay(), description="CPU seconds of a local step, drawn from the seed for each step.")
    evaluate: Seconds = Field(0.0, description="CPU seconds of an evaluation.")
    query: Seconds = Field(0.0, description="CPU seconds of server 0 for a query of a policy of local steps.")
    pack: Pack = Pack()
    adopt: Adopt = Adopt()
    combine: Combine = Combine()
    apply: Apply = Apply()
    messages: Messages = Messages()
    waiting: Waiting = Waiting()


class ProcessFailure(Config):
    """Simulated failures of processes, each of which is replaced."""

    process: Fallible = Field(
        "worker",
        description="The process, such as `worker-3` or `validator-0`; `worker`: every worker, each with times of its "
        "own; `validator`, `evaluator`, `server`, `standby`: in the same way. "
        "`server-0` is the process that is server 0 at that time, `standby-0` the one that would take its place.",
    )
    at: Annotated[tuple[Seconds, ...], Field(strict=False, max_length=10_000)] = Field(
        (), description="When it fails, in seconds of the simulation."
    )
    every: float | None = Field(
        None,
        gt=0,
        le=DAY,
        description="Mean seconds from its start to its failure; the times are drawn from the seed, exponentially.",
    )
    noticed: Seconds = Field(0.0, description="Seconds from a failure until the others know of it.")
    repair: Seconds = Field(1.0, description="Seconds from then until its replacement has started.")


class Machine(Config):
    """The simulated hosts and the links between them."""

    hosts: PositiveInt = Field(1, le=MOST_ROLES, description="Hosts.")
    cores: PositiveInt | None = Field(
        None,
        le=MOST_ROLES,
        description="Cores of each host, which its processes share; default: one for each process, or with `measured` "
        "as many as the machine of the records has.",
    )
    speed: float = Field(
        1.0,
        gt=0,
        le=MOST,
        description="CPU seconds of the costs that a core executes in a second; less than 1: a slower core.",
    )
    placement: Annotated[Hosts, Field(strict=False)] = Field(
        (),
        description='The roles on each host, such as [["server-0", "validator-0"], ["worker-0", "worker-1"]]; default: '
        "the placement of the launcher on the same number of hosts.",
    )
    local: Local = Local()
    remote: Remote = Remote()
    failures: Annotated[tuple[ProcessFailure, ...], Field(strict=False, max_length=100)] = Field(
        (),
        description="Failures of processes, each a table [[simulation.failures]].",
        json_schema_extra={"noun": "failure"},
    )


class NoSimulation(Config):
    """Computation and messages take no time."""

    kind: Literal["none"] = "none"


class Modelled(Machine, Costs):
    """The costs are given."""

    kind: Literal["modelled"] = "modelled"
    model_scale: float = Field(
        1.0,
        gt=0,
        le=MOST,
        description="How many times larger the simulated model is than the one that trains: a factor on the bytes of "
        "models and updates, in the times and the recorded traffic, and on the elements of all tasks.",
    )

    @property
    def costs(self) -> Costs:
        """The costs for a model of the simulated size, by bytes and elements of the one that trains."""
        works = {name: getattr(self, name) for name in ("pack", "adopt", "combine", "apply")}
        scaled = {name: w.model_copy(update={"element": w.element * self.model_scale}) for name, w in works.items()}
        messages = self.messages.model_copy(update={"byte": self.messages.byte * self.model_scale})
        return self.model_copy(update={**scaled, "messages": messages})


class Measured(Machine):
    """The costs are fitted to the records of a run over MPI."""

    kind: Literal["measured"] = "measured"
    records: str = Field("", description="The folder of a finished run of the same model and batch size; required.")


AnySimulation = Annotated[NoSimulation | Modelled | Measured, Field(discriminator="kind")]

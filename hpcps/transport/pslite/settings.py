"""The settings of a node, from the `DMLC_*` and `PS_*` variables of ps-lite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcps.errors import LaunchError
from hpcps.inputs import whole_number
from hpcps.transport.pslite.meta import EMPTY, NodeRole


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one node.

    Attributes:
        role: its role (`DMLC_ROLE`).
        servers: the number of servers (`DMLC_NUM_SERVER`); 0 for a cluster of workers only, an extension of hpcps.
        workers: the number of workers (`DMLC_NUM_WORKER`).
        root_host: the host of the scheduler (`DMLC_PS_ROOT_URI`).
        root_port: the port of the scheduler (`DMLC_PS_ROOT_PORT`); 0 for a free port that the scheduler announces.
        host: the name or address at which others reach this node (`DMLC_NODE_HOST`); "" to detect it.
        interface: the network interface to bind (`DMLC_INTERFACE`), or `all`; "" for the one towards the scheduler.
        port: the port to bind (`PORT`); 0 for a free port. The scheduler binds `root_port`.
        heartbeat_interval: seconds between two heartbeats (`PS_HEARTBEAT_INTERVAL`); 0 for none.
        heartbeat_timeout: seconds without a message after which a node is dead (`PS_HEARTBEAT_TIMEOUT`); 0 for never.
        resend: acknowledge messages, and resend unacknowledged ones (`PS_RESEND`); the same for all nodes.
        resend_timeout: seconds to wait for an acknowledgement (`PS_RESEND_TIMEOUT`, in milliseconds).
        resend_limit: the number of times that a message is sent again before it fails.
        drop_rate: for tests: the percentage of received messages to drop (`PS_DROP_MSG`).
        timeout: maximum seconds to wait for other nodes (`PS_TIMEOUT`, an extension of hpcps).
        wanted: the rank that this node asks for among the nodes of its role; `EMPTY` for any.
        incarnation: how many processes had this rank before this one.
        replaceable: the ids of nodes whose death the others survive: a node is dead as soon as it has closed its
            connection to the scheduler and nobody listens at its address, and it stays dead until it is replaced.
        silence: seconds without a message after which a replaceable node is dead; 0 for `heartbeat_timeout`.
    """

    role: NodeRole
    servers: int
    workers: int
    root_host: str
    root_port: int
    host: str = ""
    interface: str = ""
    port: int = 0
    heartbeat_interval: float = 0.0
    heartbeat_timeout: float = 0.0
    resend: bool = False
    resend_timeout: float = 1.0
    resend_limit: int = 10
    drop_rate: int = 0
    timeout: float = 600.0
    wanted: int = EMPTY
    incarnation: int = 0
    replaceable: frozenset[int] = frozenset()
    silence: float = 0.0

    @staticmethod
    def from_environment(variables: Mapping[str, str]) -> Settings:
        """Read the settings of a node from the variables that a launcher sets.

        Raises:
            LaunchError: variables are missing or wrong; the message names all of them.
        """
        reader = _Reader(variables)
        roles = {role.name.lower(): role for role in NodeRole}
        role = reader.text("DMLC_ROLE", required=True)
        if role and role not in roles:
            reader.wrong.append(f"DMLC_ROLE is {role!r}; it must be one of {', '.join(sorted(roles))}")
        values = {
            "servers": reader.number("DMLC_NUM_SERVER", 0, 1 << 20),
            "workers": reader.number("DMLC_NUM_WORKER", 1, 1 << 20),
            "root_host": reader.text("DMLC_PS_ROOT_URI", required=True),
            "root_port": reader.number("DMLC_PS_ROOT_PORT", 0 if role == "scheduler" else 1, 65535),
            "host": reader.text("DMLC_NODE_HOST"),
            "interface": reader.text("DMLC_INTERFACE"),
            "port": reader.number("PORT", 0, 65535, 0),
            "heartbeat_interval": reader.number("PS_HEARTBEAT_INTERVAL", 0, 86400, 0),
            "heartbeat_timeout": reader.number("PS_HEARTBEAT_TIMEOUT", 0, 86400, 0),
            "resend": bool(reader.number("PS_RESEND", 0, 1, 0)),
            "resend_timeout": reader.number("PS_RESEND_TIMEOUT", 1, 3_600_000, 1000) / 1000,
            "drop_rate": reader.number("PS_DROP_MSG", 0, 99, 0),
            "timeout": float(reader.number("PS_TIMEOUT", 1, 7 * 86400, 600)),
        }
        if reader.wrong:
            raise LaunchError("the environment of a ps-lite node is wrong:\n  " + "\n  ".join(reader.wrong))
        return Settings(role=roles[role], **values)  # type: ignore[arg-type]


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self.wrong: list[str] = []

    def text(self, name: str, required: bool = False) -> str:
        value = self._variables.get(name, "").strip()
        if required and not value:
            self.wrong.append(f"{name} is not set")
        return value

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        text = self.text(name, required=default is None)
        if not text:
            return default or 0
        number = whole_number(text, least, most)
        if number is None:
            self.wrong.append(f"{name} is {text[:60]!r}; it must be a whole number from {least} to {most}")
        return least if number is None else number

"""The transport `pslite` of an experiment file."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from hpcps.errors import LaunchError
from hpcps.transport.process_group import LaunchedProcess, ProcessGroup, ProcessTransport

if TYPE_CHECKING:
    from hpcps.transport.pslite.meta import NodeInfo
    from hpcps.transport.pslite.settings import Settings

_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -8, -4, -1, -2


def keep_freed_memory() -> None:
    """Make the C library keep the memory of freed messages for later ones; call this before any thread starts.

    ZeroMQ allocates memory for each received frame. By default, the C library gets the memory of a large frame from the
    kernel and returns it, page by page. This costs as much as sending the frame (measured: 244,000 page faults and 0.5
    CPU seconds per GB).
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    # One arena, because the arenas of threads are too small for large frames; keep any amount (the largest int).
    for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 24)):
        library.mallopt(option, value)


class OverPslite(ProcessTransport):
    """One process per role over TCP, as nodes of ps-lite, without MPI."""

    offers = frozenset({"processes", "hosts", "replacements"})
    further_role = "scheduler"

    kind: Literal["pslite"] = "pslite"
    interface: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="pslite: the network interface that nodes listen on, such as `ib0`, or `all`; default: loopback on "
        "one machine, otherwise the interface of the network that the hosts share.",
    )
    port: int | None = Field(
        None, ge=1, le=65535, description="pslite: the port that the scheduler listens on; default: a free port."
    )
    heartbeat_timeout: int = Field(
        60, ge=0, le=86400, description="pslite: seconds without a message after which a process is lost; 0: never."
    )
    resend: bool = Field(
        False, description="pslite: acknowledge messages, and send them again otherwise; use it if connections break."
    )

    @property
    def replaces(self) -> bool:
        return super().replaces and not self.resend

    def missing(self) -> str:
        return "" if find_spec("zmq") else "pyzmq is not installed: pip install 'hpcps[pslite]'"

    @contextmanager
    def group(self, process: LaunchedProcess) -> Iterator[ProcessGroup]:
        if missing := self.missing():
            raise LaunchError(f"{socket.gethostname()}: {missing}")
        from hpcps.transport.pslite.process_group import PsliteProcessGroup

        keep_freed_memory()
        announced, group = False, None

        def announce(scheduler: NodeInfo) -> None:
            nonlocal announced
            process.rendezvous.announce(*scheduler.address)
            announced = True

        try:
            group = PsliteProcessGroup(self.settings(process, os.environ), process, announce)
            yield group
        finally:
            if group is not None:
                group.abandon()
            if announced:
                process.rendezvous.clear()

    def settings(self, process: LaunchedProcess, environment: Mapping[str, str]) -> Settings:
        """Return the settings of the node of a process; wait for the scheduler if it is not the scheduler itself.

        The environment may add the name of this host (`DMLC_NODE_HOST`) and settings for tests (`PS_DROP_MSG`). This
        method does not change the environment: if an import of mxnet finds DMLC_ROLE, it runs the process as a node of
        its own and never returns.
        """
        from hpcps.transport.pslite.process_group import node_role
        from hpcps.transport.pslite.settings import Settings
        from hpcps.transport.pslite.sockets import own_address

        assert process.rank is not None, "the launcher says it"
        me, host = process.world[process.rank], process.hosts[process.rank]
        roles = [node_role(peer).name.lower() for peer in process.world]
        own = {name: value for name, value in environment.items() if name.startswith("PS_") or name == "DMLC_NODE_HOST"}
        variables = {
            **own,
            "DMLC_ROLE": roles[process.rank],
            "DMLC_NUM_SERVER": str(roles.count("server")),
            "DMLC_NUM_WORKER": str(roles.count("worker")),
            "DMLC_PS_ROOT_PORT": str(self.port or 0),
            "DMLC_INTERFACE": self.interface or "",
            "PS_HEARTBEAT_INTERVAL": "0",  # the variable allows whole seconds only
            "PS_HEARTBEAT_TIMEOUT": str(self.heartbeat_timeout),
            "PS_RESEND": str(int(self.resend)),
        }
        limits = [self.heartbeat_timeout, *([process.silence] if process.replaceable else [])]
        interval = min(filter(None, limits), default=0.0) / 10
        if me.role != "scheduler":
            # Check the user's variables before the search for the scheduler.
            variables |= {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "1"}
            settings = Settings.from_environment(variables)
            root, port = process.rendezvous.find(settings.timeout, process.interrupt)
            return replace(settings, root_host=root, root_port=port, heartbeat_interval=interval)
        # On one machine: loopback. Else, unless an interface is given: the network of the other hosts.
        other = next((each for each in process.hosts if each != host), "127.0.0.1")
        settings = Settings.from_environment({**variables, "DMLC_PS_ROOT_URI": other})
        address, _ = own_address(settings.host, settings.interface, settings.root_host)
        return replace(settings, root_host=address, heartbeat_interval=interval)

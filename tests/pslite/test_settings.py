import socket
from pathlib import Path

import pytest

from hpcps.errors import LaunchError
from hpcps.protocol.messages import Peer
from hpcps.transport import LaunchedProcess, OverPslite
from hpcps.transport.pslite.meta import NodeRole
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import own_address, resolve
from hpcps.transport.rendezvous import Rendezvous

GOOD = {
    "DMLC_ROLE": "server",
    "DMLC_NUM_SERVER": "2",
    "DMLC_NUM_WORKER": "3",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


def test_the_variables_are_those_of_ps_lite():
    changed = {"PS_RESEND": "1", "PS_RESEND_TIMEOUT": "250", "PS_HEARTBEAT_INTERVAL": "2", "DMLC_INTERFACE": "lo"}
    settings = Settings.from_environment({**GOOD, **changed})
    assert (settings.role, settings.servers, settings.workers) == (NodeRole.SERVER, 2, 3)
    assert (settings.resend, settings.resend_timeout, settings.heartbeat_interval) == (True, 0.25, 2)
    assert (settings.interface, settings.port, settings.heartbeat_timeout) == ("lo", 0, 0)


def test_all_mistakes_come_at_once():
    wrong = {"DMLC_ROLE": "boss", "DMLC_NUM_SERVER": "-1", "DMLC_PS_ROOT_PORT": "port", "PS_DROP_MSG": "100"}
    with pytest.raises(LaunchError) as caught:
        Settings.from_environment(wrong)
    said = str(caught.value).splitlines()[1:]
    assert [line.split()[0] for line in said] == [
        "DMLC_ROLE", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "PS_DROP_MSG",
    ]  # fmt: skip
    assert "scheduler, server, worker" in said[0]
    assert "from 1 to 65535" in said[4]


def test_towards_loopback_a_node_has_the_loopback_address():
    assert own_address("", "", "127.0.0.1") == ("127.0.0.1", "127.0.0.1")
    assert own_address("", "lo", "10.1.2.3") == ("127.0.0.1", "127.0.0.1")


def test_names_are_told_as_they_are_and_bound_as_addresses():
    assert own_address("localhost", "", "10.1.2.3") == ("localhost", "127.0.0.1")
    assert resolve("127.0.0.1") == "127.0.0.1"
    with pytest.raises(LaunchError, match="no IPv4 address"):
        resolve("no.such.host.invalid")


def test_all_interfaces_are_bound_only_when_told_so():
    assert own_address("", "all", "127.0.0.1") == ("127.0.0.1", "0.0.0.0")


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(LaunchError, match=r"'ib7'.*this host has.*lo"):
        own_address("", "ib7", "127.0.0.1")
    assert "lo" in [name for _, name in socket.if_nameindex()]


@pytest.mark.parametrize("timeout", [0, 1, 6, 60])
def test_a_process_of_a_launch_beats_ten_times_until_it_counts_as_dead(timeout):
    world = tuple(Peer(role, 0) for role in ("scheduler", "server", "worker"))
    process = LaunchedProcess(0, world, ("here",) * 3, "launch", Rendezvous(Path("plan")))
    settings = OverPslite(heartbeat_timeout=timeout).settings(process, {"PS_HEARTBEAT_INTERVAL": "nonsense"})
    assert (settings.servers, settings.workers) == (1, 1)
    assert (settings.heartbeat_timeout, settings.heartbeat_interval) == (timeout, timeout / 10)

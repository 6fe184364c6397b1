"""Virtual hosts on this machine: network namespaces connected by a switch, each link with a speed limit.

A host has its own name, address, network and processes; users and file system are those of this machine. It needs root
and the Linux tools `ip`, `tc`, `unshare` and `nsenter`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from processes import Command, MeasurementError, NotHereError, run_together

from hpcps.launch.hostfile import Host

# 16 ms of a link of 1 Gbit/s, a usual buffer of a switch port. In a much larger buffer, the acknowledgements of one
# direction queue behind the data of the other, and TCP measures a round-trip time that is many times as long.
_QUEUE = "2mb"
_BURST = "256kb"
# The default of Linux, whatever this machine is configured for. BBR, for example, leaves a sixth of each link unused
# when four hosts send to four others at once, even over plain sockets that never wait.
_CONGESTION = "cubic"

_ENTER = """#!/bin/bash
# enter HOST COMMAND...
exec nsenter --net=/run/netns/{prefix}-$1 unshare --uts --ipc --mount --pid --fork --kill-child --mount-proc bash -c '
  mount --bind {folder}/etc-hosts /etc/hosts && hostname "$1" && shift && exec "$@"' enter "$@"
"""
_AGENT = """#!/bin/bash
# A launcher calls this instead of rsh, with HOST COMMAND.
while [[ $1 == -* ]]; do
  [[ $1 == -l ]] && shift
  shift
done
host=$1
shift
exec {folder}/enter "$host" /bin/sh -c "$*"
"""


_SINK = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 5000))
connection, _ = listener.accept()
connection.recv(1)
began, count = time.monotonic(), 0
while part := connection.recv(1 << 20):
    count += len(part)
open(sys.argv[1], "w").write(str(count / (time.monotonic() - began)))
"""
_SOURCE = """
import socket, time
part = bytes(1 << 20)
for attempt in range(100, -1, -1):
    try:
        connection = socket.create_connection(("host1", 5000))
        break
    except OSError:
        if not attempt:
            raise
        time.sleep(0.05)
for _ in range(64):
    connection.sendall(part)
"""


class Network:
    """A context manager that creates hosts `host1`, `host2`, … and removes them.

    Attributes:
        names: the names of the hosts.
        agent: the program that starts a program on a host, called like rsh.
    """

    def __init__(self, hosts: int, gigabits: float) -> None:
        """Describe the network.

        Args:
            hosts: the number of hosts.
            gigabits: the speed of each link in each direction, in 10**9 bits per second.
        """
        self.names = [f"host{number}" for number in range(1, hosts + 1)]
        self.gigabits = gigabits
        self._prefix = f"bench{os.getpid()}"
        self._folder = Path(tempfile.mkdtemp(prefix="hpcps-hosts-"))
        self.agent = self._folder / "agent"

    def hosts(self, slots: int) -> list[Host]:
        """Return the lines of a host file, with `slots` slots for each host."""
        return [Host(name, slots) for name in self.names]

    def enter(self, host: str) -> list[str]:
        """Return the words that precede a command so that it runs on a host."""
        return [str(self._folder / "enter"), host]

    def __enter__(self) -> Network:
        missing = [name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name) is None]
        if missing or os.geteuid():
            raise NotHereError(f"hosts need {', '.join(missing) or 'root'}")
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _build(self) -> None:
        addresses = [f"10.231.0.{number} {name}" for number, name in enumerate(self.names, 1)]
        (self._folder / "etc-hosts").write_text("127.0.0.1 localhost\n" + "\n".join(addresses) + "\n")
        for name, text in (("enter", _ENTER), ("agent", _AGENT)):
            script = self._folder / name
            script.write_text(text.format(prefix=self._prefix, folder=self._folder))
            script.chmod(0o755)
        switch = f"{self._prefix}-switch"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        # If the bridge firewall is loaded, it processes every frame; a switch has no firewall.
        firewall = ("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0")
        subprocess.run(["ip", "netns", "exec", switch, *firewall], capture_output=True)
        for number, name in enumerate(self.names, 1):
            space, port = f"{self._prefix}-{name}", f"port{number}"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", space, "address", "add", f"10.231.0.{number}/16", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "route", "change", "10.231.0.0/16", "dev", "eth0", "congctl", _CONGESTION)
            for where, device in ((space, "eth0"), (switch, port)):
                rate = ["rate", f"{self.gigabits * 1000:.0f}mbit", "burst", _BURST, "limit", _QUEUE]
                _run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", *rate)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in [*self.names, "switch"]:
            subprocess.run(["ip", "netns", "del", f"{self._prefix}-{name}"], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def link_speed(network: Network) -> float:
    """Return the bytes per second that one TCP connection carries between two hosts.

    Raises:
        MeasurementError: there is no connection.
    """
    with tempfile.TemporaryDirectory(prefix="hpcps-bench-") as folder:
        result = Path(folder) / "speed"
        sink = Command([*network.enter("host1"), sys.executable, "-c", _SINK, str(result)], name="the sink on host1")
        source = Command([*network.enter("host2"), sys.executable, "-c", _SOURCE], name="the source on host2")
        if problem := run_together([sink, source], Path(folder) / "logs", 60):
            raise MeasurementError(problem)
        return float(result.read_text())


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise NotHereError(f"{' '.join(words)}: {done.stderr.strip()}")

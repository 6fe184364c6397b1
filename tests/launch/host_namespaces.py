"""Hosts with networks of their own: network namespaces of this machine.

They are called by their addresses and reached by a stand-in for ssh. A test may plant differences: what ssh starts on
such a host has mounts of its own, so it may have another Python, other packages, other folders.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

_SSH = """#!/bin/bash
# ssh [-o OPTION] HOST COMMAND...: as ssh does, join the words, run them by a shell, and let that outlive the connection
while [[ $1 == -* ]]; do shift 2; done
host=$1
shift
echo "$host" >> {folder}/ssh.log
plan={folder}/plan-$host
exec ip netns exec {prefix}-"${{host##*.}}" setsid --wait sh -c "[ ! -e $plan ] || . $plan; $*"
"""


class HostNamespaces:
    """Hosts `10.214.N.1`, `10.214.N.2`, …

    Attributes:
        names: their addresses.
        enter: what runs a command on the first one.
        path: the folder of the stand-in for ssh.
        log: the hosts it was asked to reach.
    """

    def __init__(self, folder: Path, count: int) -> None:
        number = os.getpid() % 250
        self.names = [f"10.214.{number}.{host}" for host in range(1, count + 1)]
        self._prefix, self._folder = f"hpcpsd{os.getpid()}", folder
        self.path, self.log = folder / "bin", folder / "ssh.log"
        self.path.mkdir()
        (self.path / "ssh").write_text(_SSH.format(prefix=self._prefix, folder=folder))
        (self.path / "ssh").chmod(0o755)
        self.enter = ["ip", "netns", "exec", f"{self._prefix}-1"]

    def start(self) -> None:
        """Make them, or skip the test where that is not allowed."""
        if shutil.which("ip") is None or os.getuid() != 0:
            pytest.skip("no network namespaces: that takes root, and iproute2")
        bridge = f"{self._prefix}-b"
        try:
            _ip("netns", "add", bridge)
            _ip("-n", bridge, "link", "add", "bridge", "type", "bridge")
            _ip("-n", bridge, "link", "set", "bridge", "up")
            for host, name in enumerate(self.names, 1):
                space, port = f"{self._prefix}-{host}", f"host{host}"
                _ip("netns", "add", space)
                _ip("-n", space, "link", "add", "eth7", "type", "veth", "peer", "name", port, "netns", bridge)
                _ip("-n", bridge, "link", "set", port, "master", "bridge", "up")
                _ip("-n", space, "addr", "add", f"{name}/24", "dev", "eth7")
                for device in ("lo", "eth7"):
                    _ip("-n", space, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            self.stop()
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")

    def plant(self, host: int, script: str) -> None:
        """Let a host, counted from 1, execute a script in the shell of each command that starts there."""
        (self._folder / f"plan-{self.names[host - 1]}").write_text(script)

    def limit(self, host: int, rate: str) -> None:
        """Let a host send at most at a rate, such as `10mbit`."""
        shaper = ("tc", "qdisc", "add", "dev", "eth7", "root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
        subprocess.run(["ip", "netns", "exec", f"{self._prefix}-{host}", *shaper], check=True, capture_output=True)

    def link(self, host: int, state: str) -> None:
        """Set the link of a host `up` or `down`; what reaches it by the stand-in for ssh needs none."""
        _ip("-n", f"{self._prefix}-b", "link", "set", f"host{host}", state)

    def kill(self, host: int) -> None:
        """Kill all processes of a host, and what has started them from others, as if it were gone."""
        found = subprocess.run(["ip", "netns", "pids", f"{self._prefix}-{host}"], capture_output=True, text=True)
        for pid in sorted(map(int, found.stdout.split())):  # the connection first, which else sees how the others end
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Remove them."""
        for space in ("b", *range(1, len(self.names) + 1)):
            subprocess.run(["ip", "netns", "del", f"{self._prefix}-{space}"], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

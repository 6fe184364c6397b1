"""Two hosts with a network of their own: network namespaces of this machine, reached by a stand-in for ssh."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SSH = """#!/bin/bash
# ssh [-o OPTION] HOST COMMAND...: as ssh does, join the words, run them by a shell, and let that outlive the connection
while [[ $1 == -* ]]; do shift 2; done
host=$1
shift
echo "$host" >> {log}
exec ip netns exec {prefix}-"$host" setsid --wait sh -c "$*"
"""


class TwoHosts:
    """Hosts that are called by their addresses.

    Attributes:
        names: of both.
        enter: what runs a command on the first one.
        path: where the stand-in for ssh is.
        log: the hosts it was asked to reach.
    """

    def __init__(self, folder: Path) -> None:
        number = os.getpid() % 250
        self.names = [f"10.213.{number}.1", f"10.213.{number}.2"]
        self._prefix = f"hpcps{os.getpid()}"
        self.path, self.log = folder / "bin", folder / "ssh.log"
        self.path.mkdir()
        (self.path / "ssh").write_text(_SSH.format(prefix=self._prefix, log=self.log))
        (self.path / "ssh").chmod(0o755)
        self.enter = ["ip", "netns", "exec", f"{self._prefix}-{self.names[0]}"]

    def start(self) -> None:
        """Make them, or skip the test where that is not allowed."""
        if shutil.which("ip") is None or os.getuid() != 0:
            pytest.skip("no network namespaces: that takes root, and iproute2")
        spaces = [f"{self._prefix}-{name}" for name in self.names]
        try:
            for space in spaces:
                _ip("netns", "add", space)
            _ip("-n", spaces[0], "link", "add", "eth7", "type", "veth", "peer", "name", "eth7", "netns", spaces[1])
            for space, name in zip(spaces, self.names, strict=True):
                _ip("-n", space, "addr", "add", f"{name}/24", "dev", "eth7")
                for device in ("lo", "eth7"):
                    _ip("-n", space, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            self.stop()
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")

    def stop(self) -> None:
        """Remove them."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", f"{self._prefix}-{name}"], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)

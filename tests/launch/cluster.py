"""A stand-in for a PBS cluster on this machine: hosts with names of their own, reached through `pbs_tmrsh` alone.

A host is a UTS namespace with an address of the loopback network; what runs there starts in `/` with almost no
environment and the umask 077, as under PBS. The stand-in for `pbs_tmrsh` starts a program without a shell, as the real
one does.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from python_libraries import LIBRARIES

ROOT = Path(__file__).parents[2]
_ENTER = """#!/bin/bash
# enter HOST COMMAND...: run the command on the first host
exec unshare --user --map-root-user --uts --mount --propagation private bash -c '
  mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"' enter {hosts} "$@"
"""
_TMRSH = """#!/bin/bash
if [ -z "$PBS_ENVIRONMENT" ] || [ -z "$PBS_JOBID" ]; then
  echo "pbs_tmrsh: not executing under PBS" >&2
  exit 255
fi
host=$1
shift
if [[ $host == -* ]] || ! grep -qx "$host" "$PBS_NODEFILE"; then
  echo "pbs_tmrsh: host $host is not a node in job" >&2
  exit 255
fi
exec setsid --wait unshare --uts bash -c '
  hostname "$1" && shift && cd / && umask 077 && exec env -i HOME=/ PATH=/usr/bin:/bin "$@"' tmrsh "$host" "$@"
"""


class Cluster:
    """Hosts `node1`, `node2`, … of one job."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.names = [f"node{number}" for number in range(1, hosts + 1)]
        addresses = [f"127.0.1.{number} {name}" for number, name in enumerate(self.names, 1)]
        (folder / "etc-hosts").write_text(Path("/etc/hosts").read_text() + "\n".join(addresses) + "\n")
        (folder / "nodefile").write_text("\n".join(self.names) + "\n")
        (folder / "bin").mkdir()
        self.enter = [_script(folder / "enter", _ENTER.format(hosts=folder / "etc-hosts")), self.names[0]]
        _script(folder / "bin" / "pbs_tmrsh", _TMRSH)
        self.environment = {"PBS_EXEC": str(folder), "PBS_NODEFILE": str(folder / "nodefile")}
        self._folder = folder

    @property
    def of_job(self) -> dict[str, str]:
        """The whole environment of a job script."""
        job = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "12.server", **self.environment}
        return {"HOME": str(self._folder), "PATH": os.defpath, "PYTHONPATH": str(ROOT), **LIBRARIES, **job}


def make_cluster(folder: Path, hosts: int) -> Cluster:
    """Make a cluster, or skip the test where namespaces are not allowed."""
    cluster = Cluster(folder, hosts)
    if shutil.which("unshare") is None or subprocess.run([*cluster.enter, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here (unshare --user --uts --mount)")
    return cluster


def _script(path: Path, text: str) -> str:
    path.write_text(text)
    os.chmod(path, 0o755)
    return str(path)

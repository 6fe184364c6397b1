"""A real Slurm on this machine: a controller and several node daemons, each on a host of its own name.

A host is a UTS namespace with an address of the loopback network. It takes root and Debian's packages slurm-wlm and
munge, which `make test-all` installs for root.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from python_libraries import LIBRARIES

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare")
_ENTER = """#!/bin/bash
# enter HOSTS NAME COMMAND...: run the command on a host, which knows the others
exec unshare --uts --mount --propagation private bash -c '
  mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"' enter "$@"
"""
_CONF = """ClusterName=tests
SlurmctldHost=login
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=9
MailProg=/bin/true
PartitionName=all Nodes=ALL Default=YES DefaultTime=01:00:00 MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """A login host, `login`, and nodes `node1`, `node2`, …

    Attributes:
        names: the nodes.
        environment: of whoever works on the login host.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        path = f"{os.defpath}:/usr/sbin:/sbin"
        self.environment = {"HOME": "/", "PATH": path, "SLURM_CONF": f"{folder}/slurm.conf", **LIBRARIES}
        (folder / "state").mkdir()
        addresses = {name: f"127.0.2.{number}" for number, name in enumerate(self.names, 1)} | {"login": "127.0.2.254"}
        hosts = "".join(f"{address} {name}\n" for name, address in addresses.items())
        (folder / "hosts").write_text(Path("/etc/hosts").read_text() + hosts)
        # Ports apart from those of a Slurm of the machine's own, of other tests, and of connections (from 32768 on).
        port = 20000 + os.getpid() % 12000
        conf = _CONF.format(folder=folder, port=port)
        for number, name in enumerate(self.names, 1):
            (folder / f"spool-{name}").mkdir()
            conf += f"NodeName={name} NodeAddr={addresses[name]} NodeHostname={name} Port={port + number} CPUs=4"
            conf += " Gres=gpu:2\n"
        # Devices that every machine has stand for the GPUs of a node.
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        (folder / "slurm.conf").write_text(conf)
        (folder / "enter").write_text(_ENTER)
        (folder / "enter").chmod(0o755)
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)

    def start(self) -> None:
        """Start the daemons and wait for the nodes to be ready."""
        folder = self.folder
        munge = {"key-file": "key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{option}={folder / name}" for option, name in munge.items()]
        self._daemon("munged", "--force", f"--seed-file={folder}/seed", *options)
        self._daemon(*self.on("login"), "slurmctld", "-i")
        for name in self.names:
            self._daemon(*self.on(name), "slurmd", "-N", name)
        deadline = time.monotonic() + 30
        while self.say("sinfo", "--noheader", "--format=%D %t") != f"{len(self.names)} idle":
            assert time.monotonic() < deadline, self._logs()
            time.sleep(0.1)

    def stop(self) -> None:
        """End all jobs and daemons."""
        self.say("scancel", "--user=root")
        for pid_file in [
            *self.folder.glob("slurmd-*.pid"),
            *self.folder.glob("slurm*.pid"),
            self.folder / "munged.pid",
        ]:
            with suppress(OSError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGTERM)

    def on(self, name: str) -> list[str]:
        """Return what to put before a command to run it on a host."""
        return [str(self.folder / "enter"), str(self.folder / "hosts"), name]

    def say(self, *command: object, **variables: str) -> str:
        """Run a command on the login host; return what it prints."""
        done = self.try_to_say(*command, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def try_to_say(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login host, which may fail; return how it has ended."""
        words = [*self.on("login"), *map(str, command)]
        environment = {**self.environment, **variables}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)

    def job(self, number: str) -> dict[str, str]:
        """Return what the controller knows of a job."""
        words = self.say("scontrol", "--oneliner", "show", "job", number).split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def finish(self, number: str, seconds: float = 150) -> dict[str, str]:
        """Wait for the end of a job; return what the controller knows of it."""
        deadline = time.monotonic() + seconds
        while (job := self.job(number))["JobState"] in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            assert time.monotonic() < deadline, job
            time.sleep(0.1)
        return job

    def wait_for_node(self, number: str, seconds: float = 60) -> str:
        """Wait until a job of one node runs; return its node."""
        deadline = time.monotonic() + seconds
        while (job := self.job(number))["JobState"] != "RUNNING":
            assert time.monotonic() < deadline, job
            time.sleep(0.1)
        return job["NodeList"]

    def _daemon(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr

    def _logs(self) -> str:
        return "\n".join(log.read_text() for log in self.folder.glob("*.log"))


def make_slurm(folder: Path, nodes: int) -> SlurmCluster:
    """Make a cluster that is not started yet; skip the test where it cannot be, fail it where it has to be."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [program for program in _PROGRAMS if shutil.which(program, path=path) is None]
    why = "only root can start Slurm's daemons" if os.getuid() else f"missing: {', '.join(missing)}" if missing else ""
    if why and "CI" in os.environ:
        pytest.fail(why)
    if why:
        pytest.skip(why)
    return SlurmCluster(folder, nodes)

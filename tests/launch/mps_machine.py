"""A machine with MPS, as far as ranks can see: NVIDIA's control program and libcuda are stand-ins."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from environments import ROOT
from python_libraries import library_path
from running_processes import alive, within

from hpcps.launch import mps
from hpcps.launch.plan import Plan, PlannedRun, Rank

STAND_INS = Path(__file__).with_name("mps_stand_ins")
PATIENCE = 15
SHORT_PATIENCE = 4
FOUR = ("worker", "worker", "worker", "validator", "server")


def make_driver(folder):
    """Put into a folder what the driver brings along, or something that looks like it."""
    compiler = shutil.which("cc")
    if compiler is None:
        if "CI" in os.environ:
            pytest.fail("no C compiler for a stand-in of libcuda")
        pytest.skip("no C compiler for a stand-in of libcuda")
    library = ("-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(STAND_INS / "cuda.c"))
    subprocess.run([compiler, *library], check=True)
    control = folder / mps.CONTROL
    control.write_text(f"#!{sys.executable} -IS\n{(STAND_INS / 'control.py').read_text()}")
    control.chmod(0o755)
    (folder / "nvidiactl").touch()
    return folder


def plan_of(world, device="auto", use_mps="auto"):
    return Plan(tuple(world), (PlannedRun("r", "r", "/", {"run": {"train": {"device": device, "mps": use_mps}}}),))


def world_of(*roles, gpus=None):
    return [Rank(n, role, n, "here", gpus[n] if gpus else None) for n, role in enumerate(roles)]


class Member:
    """A process that has come under MPS as a rank does, and what it says."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._said = None

    @property
    def said(self):
        if self._said is None:
            self._said = json.loads(self.process.stdout.readline() or "{}")
        return self._said

    def leave(self):
        """End; return what it has complained of."""
        assert self.said
        self.tell_to_go()
        with self.process:
            return self.process.stderr.read()

    def tell_to_go(self):
        self.process.stdin.close()

    def kill(self):
        self.process.kill()
        with self.process:
            pass


class Machine:
    """A machine with MPS, as far as ranks can see."""

    def __init__(self, driver, folder):
        self.folder = folder
        self.journal = folder / "journal"
        self.room = folder / "tmp"
        self.room.mkdir()
        self.patience = PATIENCE
        self._driver = driver
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CUDA_")},
            "PATH": f"{driver}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": library_path(driver),
            "TMPDIR": str(self.room),
            "PYTHONPATH": str(ROOT),
            "STAND_IN_JOURNAL": str(self.journal),
        }
        self.members = []

    def start(self, plan, *ranks, name="conf.plan.json", **variables):
        """Start ranks all at once."""
        path = self.folder / name
        plan.write(path)
        program = [
            sys.executable,
            str(STAND_INS / "rank.py"),
            str(path),
            str(self._driver / "nvidiactl"),
            str(self.patience),
        ]
        started = [Member(program, {**self.environment, **variables, "HPCPS_RANK": str(rank)}) for rank in ranks]
        self.members += started
        return started

    def command(self, pipe, *options, say=""):
        """Call the control program; return its exit status."""
        environment = {**self.environment, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        program = [str(self._driver / mps.CONTROL), *options]
        return subprocess.run(program, input=say, text=True, env=environment, stdout=subprocess.DEVNULL).returncode

    @property
    def noted(self):
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def daemons(self):
        """Return the processes that the control program has left running."""
        return [int(line.split()[1]) for line in self.noted if line.startswith("started") and alive(line.split()[1])]

    def wait_until_clean(self):
        """Wait until no daemon and no folder is left."""
        within(40, lambda: not self.daemons() and not list(self.room.iterdir()), lambda: (self.daemons(), self.noted))

    def close(self):
        for member in self.members:
            member.kill()
        for pid in self.daemons():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def machine_with(driver):
    """Make a machine; leave nothing of it."""
    # A short path: a socket's has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    machine = Machine(driver, folder)
    try:
        yield machine
    finally:
        machine.close()
        shutil.rmtree(folder)

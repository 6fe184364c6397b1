"""`python -m hpcps.launch.starter CONF`: starts the processes of a configfile, without a launcher of MPI.

The first process that fails ends the others, as it does under `mpirun`. On each other host a starter of that host runs
at the end of an agent such as ssh. It hears through its standard input: a byte is the number of a signal for its
processes; the end of the input ends them, as nothing else would if the connection or this starter is gone.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hpcps.launch.guard import tie_to_parent
from hpcps.launch.local_rank import OWN_RANK
from hpcps.launch.verify import same_host

_TICK = 0.05
_GRACE = 5.0
"""Seconds in which processes that were told to stop may end by themselves once the first of them has."""
_LINGER = 2.0
_ENDED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Planned:
    """A process to start."""

    rank: int
    host: str
    words: tuple[str, ...]


def read(conf: Path) -> list[Planned]:
    """Read a configfile: `-n count -host host word word …` in each line."""
    processes: list[Planned] = []
    for line in conf.read_text(encoding="utf-8").splitlines():
        _, count, _, host, *words = line.split()
        processes += [Planned(len(processes) + k, host, tuple(words)) for k in range(int(count))]
    return processes


class Starter:
    """Starts processes, waits for all of them, and lets none outlive a failure.

    Args:
        conf: the configfile.
        host: whose processes these are, at the end of an agent; None to start those of all hosts.
        agent: the command that starts another one on another host.
    """

    def __init__(self, conf: Path, host: str | None, agent: str) -> None:
        self._conf, self._host, self._agent = conf, host, agent
        self._processes: list[subprocess.Popen[bytes]] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        self._heard: deque[int] = deque()
        self._told = False
        self._status = 0
        self._deadline: float | None = None

    def run(self) -> int:
        """Start all and stay until all have ended; return the first exit status that is not 0, as a shell has it."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._hear)
        try:
            self._start()
            while self._left():
                self._pass_on()
                if self._deadline is not None and time.monotonic() > self._deadline:
                    break
        finally:
            self._end()
        return self._status

    def _start(self) -> None:
        planned = read(self._conf)
        hosts = list(dict.fromkeys(process.host for process in planned))
        here = [host for host in hosts if host == self._host or (not self._host and same_host(host, _name()))]
        for process in planned:
            if process.host in here:
                environment = {**os.environ, OWN_RANK: str(process.rank)}
                self._processes.append(
                    subprocess.Popen(process.words, env=environment, stdin=subprocess.DEVNULL, preexec_fn=_tie)
                )
        if self._host is None:
            self._agents = [self._start_on(host) for host in hosts if host not in here]

    def _start_on(self, host: str) -> subprocess.Popen[bytes]:
        # ssh without a terminal to ask at: who is not let in without a password fails, and says so.
        options = ["-o", "BatchMode=yes"] if Path(self._agent).name == "ssh" else []
        path = os.environ.get("PYTHONPATH")
        settings = ["env", f"PYTHONPATH={path}"] if path else []
        own = [sys.executable, "-m", "hpcps.launch.starter", str(self._conf), "--host", host]
        return subprocess.Popen([self._agent, *options, host, *settings, *own], stdin=subprocess.PIPE, preexec_fn=_tie)

    def _left(self) -> bool:
        """Say whether any process is left, after a moment; take note of how others have ended."""
        self._wait_a_moment()
        for process in [*self._processes, *self._agents]:
            if process.returncode is None and process.poll() is not None and process.returncode and not self._status:
                status = process.returncode
                self._status = 128 - status if status < 0 else status
                # Who is told to stop ends with a status of its own, and so do the others, each in its time.
                self._deadline = time.monotonic() + (_GRACE if self._told or self._status in _ENDED else 0.0)
        return any(process.returncode is None for process in [*self._processes, *self._agents])

    def _wait_a_moment(self) -> None:
        if self._host is None:
            time.sleep(_TICK)
            return
        ready, _, _ = select.select([0], [], [], _TICK)
        if not ready:
            return
        said = os.read(0, 64)
        if not said:
            self._status, self._deadline = self._status or 1, 0.0
        self._heard.extend(said)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard.append(number)

    def _pass_on(self) -> None:
        """Tell all processes of the signals heard. Those of a terminal they get twice, which does no harm."""
        while self._heard:
            number = self._heard.popleft()
            self._told = True
            self._send(number)
            for agent in self._agents:
                assert agent.stdin is not None
                with suppress(OSError):
                    agent.stdin.write(bytes([number]))
                    agent.stdin.flush()

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _end(self) -> None:
        """End whatever is left. A process here is a guard: with it the kernel ends what it guards."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for agent in self._agents:
            assert agent.stdin is not None
            with suppress(OSError):
                agent.stdin.close()
        deadline = time.monotonic() + _LINGER
        for agent in self._agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(max(deadline - time.monotonic(), 0.0))
            if agent.poll() is None:
                agent.kill()
        for process in [*self._processes, *self._agents]:
            process.wait()


def _tie() -> None:
    tie_to_parent(signal.SIGKILL)


def _name() -> str:
    return socket.gethostname()


def main(argv: Sequence[str] | None = None) -> int:
    """Start what the configfile says; return the exit status."""
    parser = argparse.ArgumentParser(prog="hpcps.launch.starter", description="Start the processes of a configfile.")
    parser.add_argument("conf", type=Path)
    parser.add_argument("--agent", default="ssh", help="starts a program on another host (default: ssh)")
    parser.add_argument("--host", help="start only the processes of this host, and heed the standard input")
    args = parser.parse_args(argv)
    return Starter(args.conf, args.host, args.agent).run()


if __name__ == "__main__":
    sys.exit(main())

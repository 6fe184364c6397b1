"""`python -m hpcps.launch.starter CONF`: start the processes of a configfile without an MPI launcher.

The first process that fails ends the others, as under `mpirun`. On each other host, an agent such as ssh runs a second
starter, which reads commands from its standard input: each byte is the number of a signal for its processes. The end of
the input ends the processes, because nothing else would end them if the connection or this starter is lost.
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
from hpcps.launch.local_rank import OWN_RANK, same_host

_TICK = 0.05
_GRACE = 5.0
"""Seconds in which processes may end by themselves after a stop signal, once the first of them has ended."""
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
    """Start processes, wait for all of them, and end all of them when one fails.

    Args:
        conf: the configfile.
        host: start only the processes of this host, as a starter that an agent runs; None for all hosts.
        agent: the command that runs a program on another host.
    """

    def __init__(self, conf: Path, host: str | None, agent: str) -> None:
        self._conf, self._host, self._agent = conf, host, agent
        self._processes: list[subprocess.Popen[bytes]] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        self._signals: deque[int] = deque()
        self._stopping = False
        self._status = 0
        self._deadline: float | None = None

    def run(self) -> int:
        """Start all and wait until all have ended; return the first exit status other than 0, as a shell reports it."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._receive)
        try:
            self._start()
            while self._left():
                self._forward()
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
                    subprocess.Popen(process.words, env=environment, stdin=subprocess.DEVNULL, preexec_fn=_lead)
                )
        if self._host is None:
            self._agents = [self._start_on(host) for host in hosts if host not in here]

    def _start_on(self, host: str) -> subprocess.Popen[bytes]:
        # There is no terminal for a password: if ssh needs one, it fails with a message.
        options = ["-o", "BatchMode=yes"] if Path(self._agent).name == "ssh" else []
        passed = [f"{name}={os.environ[name]}" for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if os.environ.get(name)]
        settings = ["env", *passed] if passed else []
        own = [sys.executable, "-m", "hpcps.launch.starter", str(self._conf), "--host", host]
        return subprocess.Popen([self._agent, *options, host, *settings, *own], stdin=subprocess.PIPE, preexec_fn=_tie)

    def _left(self) -> bool:
        """Wait shortly and note the status of ended processes; return whether any process still runs."""
        self._wait_a_moment()
        for process in [*self._processes, *self._agents]:
            if process.returncode is None and process.poll() is not None and process.returncode and not self._status:
                status = process.returncode
                self._status = 128 - status if status < 0 else status
                # After a stop signal, every process ends by itself with its own status, at its own time.
                self._deadline = time.monotonic() + (_GRACE if self._stopping or self._status in _ENDED else 0.0)
        return any(process.returncode is None for process in [*self._processes, *self._agents])

    def _wait_a_moment(self) -> None:
        if self._host is None:
            time.sleep(_TICK)
            return
        ready, _, _ = select.select([0], [], [], _TICK)
        if not ready:
            return
        received = os.read(0, 64)
        if not received:
            self._status, self._deadline = self._status or 1, 0.0
        self._signals.extend(received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _forward(self) -> None:
        """Forward the received signals to all processes."""
        while self._signals:
            number = self._signals.popleft()
            self._stopping = True
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
        """End all remaining processes. Each is a guard, and the process that it guards is in its process group."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
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


def _lead() -> None:
    os.setpgid(0, 0)
    _tie()


def _tie() -> None:
    tie_to_parent(signal.SIGKILL)


def _name() -> str:
    return socket.gethostname()


def main(argv: Sequence[str] | None = None) -> int:
    """Start the processes of the configfile; return the exit status."""
    parser = argparse.ArgumentParser(prog="hpcps.launch.starter", description="Start the processes of a configfile.")
    parser.add_argument("conf", type=Path)
    parser.add_argument("--agent", default="ssh", help="starts a program on another host (default: ssh)")
    parser.add_argument("--host", help="start only the processes of this host; read signals from standard input")
    args = parser.parse_args(argv)
    return Starter(args.conf, args.host, args.agent).run()


if __name__ == "__main__":
    sys.exit(main())

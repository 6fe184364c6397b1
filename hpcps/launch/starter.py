"""`python -m hpcps.launch.starter CONF`: start the processes of a configfile without an MPI launcher.

The first process that fails ends the others, as under `mpirun`. On each other host, an agent such as ssh runs a second
starter, which reads commands from its standard input: each byte is the number of a signal for its processes. The end of
the input ends the processes, because nothing else would end them if the connection or this starter is lost.

A process that is killed does not end the others if the plan permits the loss: the starter starts it again, with the
number of the replacement in its environment. A process that ends with an error has failed in any case. If a host is
gone whose processes may all be lost, the next spare host of the plan takes its place. The processes of a script are
replaced until one of them has ended, and `hpcps.launch.losses` tells the others. A script that survives losses may ask
for other processes there (`Resize`): the starter of each host starts those that it lacks, and lets others end.

Roles are forked from the starter, which has imported what they import: see `hpcps.launch.forked`.
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
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from hpcps.launch.forked import Fork, ForkedRole, Forks, without_settings
from hpcps.launch.guard import describe, tie_to_parent
from hpcps.launch.local_rank import INCARNATION, OWN_RANK, same_host
from hpcps.launch.losses import Losses, Replacements, Resize, resizes
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.remote import remote_command

_TICK = 0.05
_GRACE = 5.0
"""Seconds in which processes may end by themselves after a stop signal, once the first of them has ended."""
_LINGER = 2.0
_SOON = 10.0
"""Seconds: what is lost sooner after its start may be lost at each start, and is started again later each time."""
_LONGEST = 60.0
"""Seconds until such a start at most."""
_OF_SPARE = 1_000_000
"""The numbers of replacements on the n-th spare host begin at n times this, which is more than a host starts."""
_OF_SSH = 255
"""The status of ssh when the connection is lost."""
_OF_SHELL = (126, 127)
"""The statuses of a shell that cannot execute a program, as on a spare host without this environment."""
_ENDED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Planned:
    """A process to start."""

    rank: int
    host: str
    words: tuple[str, ...]


@dataclass
class Started:
    """A process that was started.

    Attributes:
        planned: its entry in the configfile.
        process: the process.
        incarnation: how many processes had this rank before it.
        since: when it was started, on the monotonic clock.
        hurry: how many of its predecessors in a row were lost soon after their start.
        leaves: the name of a process without which its script goes on; else empty.
    """

    planned: Planned
    process: subprocess.Popen[bytes] | Fork
    incarnation: int
    since: float
    hurry: int = 0
    leaves: str = ""


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
        plan_file: the plan of the launch, which says whose loss it permits; None: it permits none.
        incarnation: the number of its processes, if this is a spare host in the place of `host`.
    """

    def __init__(
        self, conf: Path, host: str | None, agent: str, plan_file: Path | None = None, incarnation: int = 0
    ) -> None:
        self._conf, self._host, self._agent, self._plan_file = conf, host, agent, plan_file
        self._incarnation = incarnation
        self._pid = os.getpid()
        self._forks: Forks | None = None
        self._names: dict[int, str] = {}
        self._script: tuple[Rank, ...] = ()
        self._replacements: Replacements | None = None
        self._resizes: list[str] = []
        self._joining: list[Planned] = []
        self._spares: deque[str] = deque()
        self._silence: float | None = None
        if plan_file is not None:
            plan = Plan.read(plan_file)
            self._names = {rank: str(plan.world[rank]) for rank in plan.replaceable}
            self._spares += plan.spares
            self._silence = plan.silence(plan.world[next(iter(plan.replaceable))]) if plan.spares else None
            if plan.script is not None and plan.replaceable:
                self._plan, self._losses = plan, Losses(plan_file)
                self._script, self._replacements = plan.world, Replacements(plan_file)
        self._gone = 0
        self._places: dict[str, str] = {}  # the spare host in the place of each host that is gone
        self._words: dict[str, Sequence[str]] = {}
        self._started: list[Started] = []
        self._due: list[tuple[float, Started]] = []
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._spared: set[str] = set()
        self._signals: deque[int] = deque()
        self._stopping = False
        self._status = 0
        self._deadline: float | None = None
        self._over: float | None = None

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
            if os.getpid() == self._pid:  # a forked role leaves here, too
                self._end()
        return self._status

    def _start(self) -> None:
        planned = self._present(read(self._conf))
        hosts = list(dict.fromkeys(process.host for process in planned))
        here = [host for host in hosts if self._is_here(host)]
        own = [process for process in planned if process.host in here]
        if self._plan_file is not None:
            self._forks = Forks(self._plan_file, [process.words for process in own])
        for process in own:
            self._started.append(self._begin(process, self._incarnation))
        if self._host is None:
            self._words = {process.host: process.words for process in planned}
            self._agents = {host: self._start_on(host, host) for host in hosts if host not in here}
            replaceable = {host: [each.rank in self._names for each in planned if each.host == host] for host in hosts}
            self._spared = {host for host in self._agents if all(replaceable[host]) and not self._script}

    def _present(self, planned: Sequence[Planned]) -> Sequence[Planned]:
        """Return the processes of the configfile, or those of the newest resize of a script."""
        if self._replacements is None:
            return planned
        *self._command, _ = planned[0].words
        plan, names = self._losses.present(self._plan)
        self._resizes = resizes(names)
        if not self._resizes:
            return planned
        self._take(plan.world)
        return [self._planned(rank) for rank in self._script]

    def _planned(self, rank: Rank) -> Planned:
        """Return a process of a script to start; its command ends with its role."""
        return Planned(rank.rank, rank.host, (*self._command, rank.role))

    def _take(self, world: tuple[Rank, ...]) -> None:
        self._script, self._names = world, {rank.rank: str(rank) for rank in world}

    def _resize(self) -> None:
        """Let other processes belong to the script, if it has asked for that; after each resize, do the next one."""
        if self._replacements is None:
            return
        for name in resizes(self._losses.names()):
            if name not in self._resizes:
                try:
                    change = self._losses.read(name)
                except OSError:  # a network file system may show its name first
                    return
                assert isinstance(change, Resize), "its name says so"
                self._resizes.append(name)
                self._change_to(change.world)

    def _change_to(self, world: tuple[Rank, ...]) -> None:
        """Let the processes of one resize belong to the script."""
        resize = Resize.of(self._script, world)
        if self._host is None:
            sys.stderr.write(f"hpcps: the script goes on with {resize}\n")
        names, ranks = self._names, {str(rank): rank for rank in world}
        self._take(world)
        for each in self._started:
            if not each.leaves and (rank := ranks.get(names[each.planned.rank])) is not None:
                each.planned = replace(each.planned, rank=rank.rank)
            elif not each.leaves:
                each.leaves = names[each.planned.rank]
        self._due = [(at, each) for at, each in self._due if names[each.planned.rank] in ranks]
        for _, each in self._due:
            each.planned = replace(each.planned, rank=ranks[names[each.planned.rank]].rank)
        waiting = [ranks[name] for each in self._joining if (name := names[each.rank]) in ranks]
        joining = [self._planned(ranks[name]) for name in resize.joined]
        self._joining = [self._planned(rank) for rank in waiting] + [
            each for each in joining if self._is_here(each.host)
        ]
        if self._host is None:
            for host in dict.fromkeys(each.host for each in joining if not self._is_here(each.host)):
                if host not in self._agents:
                    self._words[host] = joining[0].words
                    self._agents[host] = self._start_on(host, host)

    def _is_here(self, host: str) -> bool:
        return host == self._host or (not self._host and same_host(host, _name()))

    def _start_joining(self) -> None:
        """Start the processes of a resize, each once none of its name runs that has left before."""
        leaving = {each.leaves for each in self._started}
        for planned in [each for each in self._joining if self._names.get(each.rank) not in leaving]:
            self._joining.remove(planned)
            if self._may_start:
                self._started.append(self._begin(planned))

    def _begin(self, planned: Planned, incarnation: int = 0, hurry: int = 0) -> Started:
        # A resize changes ranks, and not names.
        rank = str(self._script[planned.rank]) if self._replacements is not None else str(planned.rank)
        own = {OWN_RANK: rank, **({INCARNATION: str(incarnation)} if incarnation else {})}
        process: subprocess.Popen[bytes] | Fork | None = None
        if self._forks is not None:
            try:
                process = self._forks.fork(planned.words, own)
            except ForkedRole:
                for agent in self._agents.values():  # an agent ends when nothing holds the other end of its input
                    assert agent.stdin is not None
                    agent.stdin.close()
                raise
        if process is None:
            environment = os.environ | own
            process = subprocess.Popen(planned.words, env=environment, stdin=subprocess.DEVNULL, preexec_fn=_lead)
        return Started(planned, process, incarnation, time.monotonic(), hurry)

    def _start_on(self, name: str, host: str, incarnation: int = 0) -> subprocess.Popen[bytes]:
        """Start the processes that the configfile has for a host with a name, there or on a spare host."""
        plan = [] if self._plan_file is None else ["--plan", str(self._plan_file)]
        starter = [sys.executable, "-m", "hpcps.launch.starter", str(self._conf), "--host", name, *plan]
        starter += ["--incarnation", str(incarnation)] if incarnation else []
        # With the environment of its roles, a starter can fork them.
        words = self._words[name]
        own = [*words[: len(words) - len(without_settings(words))], *starter]
        command = remote_command(self._agent, host, own, silence=self._silence)
        return subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=_tie)

    def _left(self) -> bool:
        """Wait shortly and note the status of ended processes; return whether any process still runs."""
        self._wait_a_moment()
        ended = [(each, status) for each in self._started if (status := each.process.poll()) is not None]
        self._resize()  # a process that leaves ends after the file of the resize is there
        for each, status in ended:
            self._started.remove(each)
            self._note_end(each, status)
        for host, agent in list(self._agents.items()):
            if (status := agent.poll()) is not None:
                del self._agents[host]
                where = self._places.get(host, host)
                gone = status < 0 or status == _OF_SSH or (where != host and status in _OF_SHELL)
                self._note(0 if gone and host in self._spared else status)
                if gone and host in self._spared and self._spares and self._may_start:
                    self._gone += 1
                    spare = self._places[host] = self._spares.popleft()
                    sys.stderr.write(f"hpcps: {where} is gone; its processes are replaced on {spare}\n")
                    self._agents[host] = self._start_on(host, spare, self._gone * _OF_SPARE)
        self._start_due()
        self._start_joining()
        if self._over is not None and time.monotonic() > self._over + _GRACE and self._only_late():
            return False
        return bool(self._started or self._agents or self._due or self._joining) or self._stands_by

    @property
    def _stands_by(self) -> bool:
        """Whether this host has no process of the script at present, and may get some again."""
        # Also if it cannot read the file of the first resize yet.
        resized = self._host is not None and self._replacements is not None and bool(resizes(self._losses.names()))
        return resized and self._may_start and not self._losses.over()

    def _note_end(self, ended: Started, status: int) -> None:
        """Note the end of a process; start it again later if it was killed and may be lost."""
        if ended.leaves:
            self._note(max(status, 0))
            return
        if self._over is not None and ended.incarnation and not self._script:
            return  # it came too late
        may_be = status < 0 and ended.planned.rank in self._names and not self._stopping and not self._status
        if may_be and not (self._replacements is not None and self._is_final(ended, status)):
            now = time.monotonic()
            ended.hurry = ended.hurry + 1 if now - ended.since < _SOON else 0
            pause = min(_LONGEST, 2.0 ** min(ended.hurry - 1, 10)) if ended.hurry else 0.0
            self._due.append((now + pause, ended))
            return
        self._note(status)
        if status == 0 and self._over is None and (self._script or ended.planned.rank not in self._names):
            self._over = time.monotonic()

    def _is_final(self, ended: Started, status: int) -> bool:
        """Return whether a process of a script that was killed is not replaced; else tell the others."""
        assert self._replacements is not None, "it is a script's"
        if self._over is not None:
            return True
        refusal = self._replacements.refusal(self._script[ended.planned.rank], ended.incarnation, describe(status))
        if refusal:
            sys.stderr.write(f"hpcps: {refusal}\n")
        return bool(refusal)

    def _note(self, status: int) -> None:
        if status and not self._status:
            self._status = 128 - status if status < 0 else status
            # After a stop signal, every process ends by itself with its own status, at its own time.
            self._deadline = time.monotonic() + (_GRACE if self._stopping or self._status in _ENDED else 0.0)

    def _start_due(self) -> None:
        """Start the replacements whose time has come; none once the others have finished, or are to stop."""
        if not self._may_start:
            self._due.clear()
        for entry in [entry for entry in self._due if entry[0] <= time.monotonic()]:
            self._due.remove(entry)
            lost = entry[1]
            name, number = self._names[lost.planned.rank], lost.incarnation + 1
            sys.stderr.write(f"hpcps: {name} is replaced ({number})\n")
            self._started.append(self._begin(lost.planned, number, lost.hurry))

    @property
    def _may_start(self) -> bool:
        """Whether the others have not finished, and are not to stop."""
        return self._over is None and not self._stopping and not self._status

    def _only_late(self) -> bool:
        """Return whether all that still run are replacements that came too late, or starters that may wait for some."""
        return (
            not self._script and all(each.incarnation for each in self._started) and self._agents.keys() <= self._spared
        )

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
            for agent in self._agents.values():
                assert agent.stdin is not None
                with suppress(OSError):
                    agent.stdin.write(bytes([number]))
                    agent.stdin.flush()

    def _send(self, number: int) -> None:
        for each in self._started:
            if each.process.poll() is None:
                each.process.send_signal(number)

    def _end(self) -> None:
        """End all remaining processes. Each is a guard, and the process that it guards is in its process group."""
        processes, agents = [each.process for each in self._started], list(self._agents.values())
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for agent in agents:
            assert agent.stdin is not None
            with suppress(OSError):
                agent.stdin.close()
        deadline = time.monotonic() + _LINGER
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(max(deadline - time.monotonic(), 0.0))
            if agent.poll() is None:
                agent.kill()
        for process in [*processes, *agents]:
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
    parser.add_argument("--plan", type=Path, help="the plan: start processes again whose loss it permits")
    parser.add_argument("--host", help="start only the processes of this host; read signals from standard input")
    parser.add_argument(
        "--incarnation", type=int, default=0, help="the number of the processes, if they replace others"
    )
    args = parser.parse_args(argv)
    try:
        return Starter(args.conf, args.host, args.agent, args.plan, args.incarnation).run()
    except ForkedRole as role:
        return role.execute()


if __name__ == "__main__":
    sys.exit(main())

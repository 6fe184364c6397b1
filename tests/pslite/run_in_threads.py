"""A run over ps-lite nodes whose processes are threads of one process, which are killed and replaced.

A thread has all that a process of a launch has: a node with its own sockets, a role, and a driver. A killed one sends
nothing more from one message on, and what its sockets still have is lost.
"""

import random
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from executed import lines
from installed import BACKEND
from running_processes import free_port

from hpcps.execution.process import drive
from hpcps.execution.resume import lines_before
from hpcps.execution.role_factory import arrival_decides, make_role, role_facts
from hpcps.execution.standby.seats import RecordFile, Seat, make_driver
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import STANDBY, Roster
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.resources import Resources
from hpcps.spec.identity import run_id
from hpcps.spec.schema import Run
from hpcps.transport.process_group import DeclaredLostError, LaunchedProcess
from hpcps.transport.pslite import membership, node, process_group
from hpcps.transport.pslite.meta import NodeRole
from hpcps.transport.pslite.process_group import PsliteProcessGroup, node_role
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.rendezvous import Rendezvous

SCHEDULER = Peer("scheduler", 0)
PACE = 0.03
"""Seconds of a local step."""
SILENCE = 5.0
"""`survive.after`."""
WAITS = ((node, "_RECOVERY_WAIT", 0.05), (node, "_LINGER", 0.5), (membership, "PROBE_EVERY", 0.02))
"""What takes longer in a real launch."""
SURVIVING = {"workers": True, "validators": True, "servers": True}
ENDS = ("before its standby had its state", "no standby is there to take")
"""What ends a run that loses both processes of a server."""


def run_of(shape, epochs, seed, **tables):
    """Return a small run that survives the loss of each process; `shape`: servers, validators and workers."""
    servers, validators, workers = shape
    run = {
        "name": "threads",
        "seed": seed,
        "topology": {"servers": servers, "validators": validators, "workers": workers},
        "transport": {"kind": "pslite"},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 80 * (workers + 1), "test_limit": 40},
        "train": {"epochs": epochs, "batch_size": 8, "local_steps": 1, "optimizer": {"lr": 0.05}},
        "heterogeneity": {"classes": [{"name": "paced", "workers": [*range(workers)], "seconds": PACE}]},
        "survive": SURVIVING,
        "checkpoint": {"every": 0},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return Run.model_validate(run)


class KilledError(BaseException):
    """The process is gone."""


class Life:
    """Whether the process of a thread lives, and until when."""

    current = threading.local()

    def __init__(self, peer, incarnation, chance):
        self.peer, self.incarnation, self.chance = peer, incarnation, chance
        self.sent, self.last, self.until = 0, float("inf"), float("inf")
        self.dead = False
        self.driver = self.members = self.group = self.node = self.delays = None
        self.result = None

    def kill(self, after, seconds):
        """Have it die after so many further messages, or so many seconds."""
        self.last, self.until = self.sent + after, time.monotonic() + seconds

    @property
    def doomed(self):
        return self.dead or self.last < float("inf")

    def check(self):
        if self.dead or time.monotonic() > self.until:
            self.dead = True
            if self.members is not None:
                self.members.left.set()
            raise KilledError

    def sends(self):
        if self.sent >= self.last:
            self.dead = True
        self.check()
        self.sent += 1


class Delays:
    """Holds back the messages of some senders to a node for a while, each sender's in order.

    Attributes:
        held: the nodes whose messages are held back until they are removed here.
    """

    def __init__(self, incoming, chance, share):
        self._incoming, self._chance, self._share = incoming, chance, share
        self._receive, self._suspend = incoming.receive, incoming.suspend
        incoming.receive, incoming.suspend = self.receive, self.suspend
        self._queues, self._until = {}, {}
        self.held = set()

    def holds(self, node):
        """Return whether messages of a node are held back."""
        return node in self.held and node in self._queues

    def suspend(self, peer):
        """Give back what is of a connection that is read later."""
        self._suspend(peer)
        self._until.pop(peer, None)
        for connection, _, frames in reversed(self._queues.pop(peer, ())):
            connection.kept.insert(0, frames)

    def _due(self):
        now = time.monotonic()
        for key in self.held & self._queues.keys():
            self._until[key] = now + 0.02
        return now, [key for key in self._queues if self._until.get(key, 0.0) <= now]

    def receive(self, timeout):
        now, due = self._due()
        wait = 0.0 if due else timeout
        if not due and self._queues:
            rest = max(min(self._until[key] for key in self._queues) - now, 0.0)
            wait = rest if timeout is None else min(timeout, rest)
        received = self._receive(wait)
        if received is not None:
            sender, frames = received
            key = id(self._incoming._last) if sender is None else sender
            if key not in self._queues:
                self._queues[key] = deque()
                late = self._chance.random() < self._share
                self._until[key] = time.monotonic() + (self._chance.uniform(0.0, 0.3) if late else 0.0)
            self._queues[key].append((self._incoming._last, sender, frames))
        _, due = self._due()
        if not due:
            return None
        key = self._chance.choice(due)
        self._incoming._last, sender, frames = self._queues[key].popleft()
        if not self._queues[key]:
            del self._queues[key], self._until[key]
        return sender, frames


class MortalNode(node.Node):
    """The node of a thread that may be killed."""

    late = 0.05

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        life, members = Life.current.life, self._members
        life.members, life.node, send = members, self, members.send

        def mortal(*args, **options):
            life.sends()
            return send(*args, **options)

        members.send = mortal
        if not members.schedules:
            life.delays = Delays(members.sockets.incoming, life.chance, self.late)


class ThreadedRun:
    """A run whose processes are threads."""

    def __init__(self, run, folder, seed, timeout=15.0):
        """Prepare a run; a role fails if it waits for so many seconds."""
        self.patch = pytest.MonkeyPatch()
        self.name, self.timeout = run_id(run), timeout
        self.run = run.identified(self.name)
        self.directory = RunDirectory(Path(folder))
        self.directory.create({"run_id": self.name, "label": "", "run": run.model_dump(mode="json")})
        roster = Roster.of(self.run)
        self.world = (*roster.everyone(), *roster.standbys(self.run), SCHEDULER)
        roles = [node_role(peer) for peer in self.world]
        self.common = {
            "servers": roles.count(NodeRole.SERVER), "workers": roles.count(NodeRole.WORKER),
            "root_host": "127.0.0.1", "root_port": free_port(), "timeout": 20.0,
        }  # fmt: skip
        self.seed, self.chance = seed, random.Random(seed)
        self.began = time.monotonic()
        self.lives, self.threads, self.log = {}, {}, []
        self.lock = threading.Lock()

    def note(self, *what):
        self.log.append(f"{time.monotonic() - self.began:.3f} {' '.join(map(str, what))}")

    def start(self, peer, incarnation=0):
        """Start the thread of a process."""
        life = Life(peer, incarnation, random.Random(f"{self.seed} {peer} {incarnation}"))
        self.lives[peer] = life
        thread = threading.Thread(target=self._live, args=(life,), name=f"{peer}+{incarnation}", daemon=True)
        self.threads[peer] = thread
        thread.start()

    def _live(self, life):
        Life.current.life = life
        try:
            self._perform(life)
            life.result = "done"
        except KilledError:
            life.result = "killed"
        except DeclaredLostError:
            life.result = "declared lost"
        except Exception as error:
            life.result = "killed" if life.dead else error
        finally:
            if life.driver is not None and not life.driver.finished:
                life.driver.kill()
            if life.result != "done" and life.members is not None:
                self._end(life.members)
            self.note(f"{life.peer}+{life.incarnation}", life.result)

    def _end(self, members):
        """Close the sockets of a node, without what it has not sent yet."""
        members.left.set()
        members.sockets.incoming.wake()
        time.sleep(0.02)
        with suppress(Exception):
            members.close(0.0)

    def _perform(self, life):
        rank = self.world.index(life.peer)
        survived = Roster.of(self.run).replaceable(self.run)
        replaceable = [n for n, peer in enumerate(self.world) if peer in survived or peer.role in ("server", STANDBY)]
        process = LaunchedProcess(
            rank, self.world, ("here",) * len(self.world), "launch", Rendezvous(Path("unused")), interrupt=life.check,
            replaceable=frozenset(replaceable), silence=SILENCE, leader=len(self.world) - 1,
            incarnation=life.incarnation,
        )  # fmt: skip
        settings = Settings(role=node_role(life.peer), **self.common)
        if life.peer != SCHEDULER:
            settings = replace(settings, heartbeat_interval=SILENCE / 10)
        group = life.group = PsliteProcessGroup.__new__(PsliteProcessGroup)
        group.__init__(settings, process, lambda me: None)
        if self._play(life, group):
            group.settle()
        group.leave()

    def _play(self, life, group):
        """Drive the role of a process, unless it is the scheduler's; return whether it has come in time."""
        peer, number = life.peer, group.incarnation
        if number and not group.joins_in_time():
            return False
        if not number:
            group.begin()
        if peer == SCHEDULER:
            return True
        receive = group.transport.receive

        def mortal():
            life.check()
            return receive()

        group.transport.receive = mortal
        server = Peer("server", peer.index)
        seat = Seat.ALONE
        if peer.role in ("server", STANDBY):
            seat = Seat.NEW_STANDBY if number else Seat.SERVER if peer.role == "server" else Seat.STANDBY
        role_of = server if seat.stands_by else peer
        with self.lock:  # frameworks are imported
            role = make_role(self.run, role_of, Resources(), 0 if seat.stands_by else number)
        part = None
        if number:
            part = CheckpointPart(State(), lines_before(self.directory, self.run, role_of, 1), 0.0)

        def open_record(kind):
            return kind(self.directory.path, self.name, *role_of, "here", part=part, attempt=1)

        def begin(record):
            facts = role_facts(self.run, role) | ({"incarnation": number} if number else {})
            record.write("start", **facts)

        life.driver = make_driver(
            seat, role, group.transport, RecordFile("here", time.monotonic, 0.0, open_record, begin), self.directory,
            Resources(), keep=self.run.checkpoint.keep, ordered=arrival_decides(self.run),
        )  # fmt: skip
        drive(life.driver, self.timeout, group.backoff(), group.is_needed)
        return True

    def whole(self, server):
        """Return whether a server has a standby with its state."""
        drivers = [self.lives[peer].driver for peer in (server, Peer(STANDBY, server.index))]
        if None in drivers or any(self.lives[peer].doomed for peer in (server, Peer(STANDBY, server.index))):
            return False
        acting = [driver for driver in drivers if driver._acts]
        return (
            len(acting) == 1
            and acting[0]._standby is not None
            and acting[0]._joining is None
            and all(driver._acts or driver._joins is None for driver in drivers)
        )

    def victims(self, roles):
        """Return the processes of these roles that may be killed now, by role: none of a server without a standby."""
        found = {}
        for peer, life in self.lives.items():
            if peer == SCHEDULER or life.doomed or life.result:
                continue
            server = Peer("server", peer.index)
            if peer.role not in roles or (peer.role in ("server", STANDBY) and not self.whole(server)):
                continue
            found.setdefault(peer.role, []).append(peer)
        return found

    def execute(self, kills, roles=("worker", "validator", "server", STANDBY), longest=60.0):
        """Execute the run, kill processes and replace them; return how it ended: `done`, or what ended it.

        Args:
            kills: how many processes are killed at least, unless the run ends before.
            roles: the roles of those that are killed.
            longest: the seconds after which it hangs.

        Raises:
            AssertionError: it hangs, or a process has failed.
        """
        self.patch.setattr(process_group, "Node", MortalNode)
        for module, name, seconds in WAITS:
            self.patch.setattr(module, name, seconds)
        chance = self.chance
        for peer in self.world:
            self.start(peer)
        due, replacing, counts = self.began + chance.uniform(0.3, 1.0), {}, {}
        try:
            while True:
                time.sleep(0.005)
                now = time.monotonic()
                results = {peer: life.result for peer, life in self.lives.items()}
                if results[SCHEDULER] == "done":  # the starter ends replacements that come when the others have left
                    results = {
                        peer: result for peer, result in results.items()
                        if not self.lives[peer].incarnation and result != "killed"
                    }  # fmt: skip
                if all(result == "done" for result in results.values()):
                    return "done"
                failed = [each for each in results.values() if isinstance(each, Exception)]
                if failed:
                    text = "; ".join(map(str, failed))
                    if any(end in text for end in ENDS):
                        return next(end for end in ENDS if end in text)
                    raise AssertionError(self.story()) from failed[0]
                assert now - self.began < longest, self.story()
                for peer, result in results.items():
                    if result in ("killed", "declared lost") and peer not in replacing:
                        replacing[peer] = now + chance.choice([0.0, chance.uniform(0.0, 0.2)])
                for peer, at in list(replacing.items()):
                    if now >= at and results[SCHEDULER] is None:
                        del replacing[peer]
                        counts[peer] = counts.get(peer, 0) + 1
                        self.note("start", f"{peer}+{counts[peer]}")
                        self.start(peer, counts[peer])
                if kills > 0 and now >= due and any(life.driver for life in self.lives.values()):
                    for _ in range(chance.choice([1, 1, 2, 3])):
                        found = self.victims(roles)
                        if found:
                            peer = chance.choice(found[chance.choice(sorted(found))])
                            after = chance.choice([0, chance.randrange(4), chance.randrange(20)])
                            self.note("kill", peer, "after", after)
                            self.lives[peer].kill(after, chance.uniform(0.0, 0.3))
                            kills -= 1
                    due = now + chance.choice([0.0, chance.uniform(0.0, 0.2), chance.uniform(0.0, 1.0)])
        finally:
            self.finish()

    def finished(self, peer):
        """Return whether a role has finished; one that is lost at the end has not."""
        return any(line["reason"] == "finished" for line in lines(self.directory.path, str(peer), "end"))

    def finish(self):
        """End all threads."""
        for life in self.lives.values():
            life.dead = True
        for thread in self.threads.values():
            thread.join(10)
        self.patch.undo()

    def story(self):
        """Return what happened, and what each process waits for."""
        frames, waits = sys._current_frames(), []
        for peer, life in self.lives.items():
            name, driver = f"{peer}+{life.incarnation}", life.driver
            if life.result is not None:
                waits.append(f"{name}: {life.result}")
                continue
            frame, where = frames.get(self.threads[peer].ident), []
            while frame is not None:
                where.append(frame.f_code.co_name)
                frame = frame.f_back
            state = "" if driver is None else f"round {driver.round}, {'finished' if driver.finished else 'waits for '}"
            state += "" if driver is None or driver.finished else ", ".join(map(str, driver.waiting_for))
            unknown = sorted(life.group._unwelcome) if hasattr(life.group, "_unwelcome") else []
            failure = life.node._receiver.failure if life.node is not None else None
            ids = {id_: life.node.nodes[id_].incarnation for id_ in life.node.nodes} if life.node is not None else {}
            waits.append(f"{name}: {state}; in {'<'.join(where[2:9])}; unknown to {unknown}; {failure!r} {ids}")
        if (scheduler := self.lives[SCHEDULER].members) is not None:
            waits.append(f"dead: {'; '.join(map(str, scheduler.deaths.known()))}")
            texts = self.lives[SCHEDULER].group._texts
            waits.append(f"texts: {texts._next} {texts._turns} {texts._present} {texts._late}")
        return "\n".join([f"seed {self.seed}", *self.log, *waits])

"""The process group of the nodes of a launch over ps-lite, whose operations collect a text from each process."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from threading import Event, Lock
from typing import NamedTuple

import zmq

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_as
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Replaced
from hpcps.protocol.roster import SERVER_0, STANDBY, standby_of
from hpcps.transport.backoff import Backoff
from hpcps.transport.process_group import LaunchedProcess, LostError, ProcessGroup
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.membership import NodeDeath
from hpcps.transport.pslite.meta import SCHEDULER_ID, Meta, NodeInfo, NodeRole, id_of, rank_of
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.transport import (
    APP,
    MESSAGE,
    SWITCHED,
    TAKEN,
    PsliteStandby,
    PsliteTransport,
)


def ids_of(world: Sequence[Peer]) -> tuple[int, ...]:
    """Return the node id of each process of a launch; validators, adversary and evaluator count as workers."""
    ranks: Counter[NodeRole] = Counter()
    ids = []
    for peer in world:
        role = node_role(peer)
        ids.append(id_of(role, ranks[role]))
        ranks[role] += 1
    return tuple(ids)


def node_role(peer: Peer) -> NodeRole:
    """Return the role of the node of a process: ps-lite has no validators, adversary and evaluator."""
    return {"server": NodeRole.SERVER, "scheduler": NodeRole.SCHEDULER}.get(peer.role, NodeRole.WORKER)


class Text(NamedTuple):
    """The text of one process.

    Attributes:
        turn: the number of the allgather; `JOINS` from a replacement, which asks for that of the next one.
        rank: the rank of the process.
        launch: the fingerprint of its launch.
        text: the text.
    """

    turn: int
    rank: int
    launch: str
    text: str


class Everyone(NamedTuple):
    """The texts of all processes in one allgather.

    Attributes:
        turn: the number of the allgather; for a replacement that joins, that of the next one, or `OVER`.
        texts: the text of each rank, empty for a process that is lost; no text for a replacement that joins.
        seats: for a replacement that joins: of each server the node that it is now, and that of its standby, if any.
    """

    turn: int
    texts: tuple[str, ...]
    seats: tuple[tuple[int, ...], ...] = ()


JOINS, OVER = -1, -2
"""As `turn`: a replacement joins; it is too late."""


class Texts:
    """The texts that the scheduler has collected; any thread may add one.

    Args:
        launch: the fingerprint of the launch.
        ids: the node id of each rank.
        last: the node ids of server 0 and its standby: a run is over when one of them has finished.
    """

    def __init__(self, launch: str, ids: Sequence[int], last: Collection[int]) -> None:
        self._launch, self._ids, self._last = launch, tuple(ids), frozenset(last)
        self._lock = Lock()
        self._present = set(range(len(ids)))
        self._late: set[int] = set()
        self._turns: dict[int, dict[int, str]] = {}
        self._next = 0
        self._run_ends_with: int | None = None

    def add(self, node: int, sent: Text) -> tuple[str, list[Everyone]]:
        """Add a text; return its problem (or an empty text), and the allgathers that are complete with it."""
        with self._lock:
            if problem := self._problem(node, sent):
                return problem, []
            turn = self._turns.setdefault(sent.turn, {})
            if sent.rank in turn or sent.turn < self._next:
                return f"rank {sent.rank} sends a second text", []
            turn[sent.rank] = sent.text
            self._late.discard(sent.rank)
            return "", self._completed()

    def begin(self) -> None:
        """Note that the run begins: the next allgather ends it."""
        with self._lock:
            self._run_ends_with = self._next

    def lose(self, rank: int) -> list[Everyone]:
        """Wait no longer for a lost process; return the allgathers that are complete without it."""
        with self._lock:
            self._present.discard(rank)
            self._late.discard(rank)
            return self._completed()

    def join(self, node: int, sent: Text) -> tuple[str, Everyone | None]:
        """Let a replacement join; return its problem (or an empty text), and the answer to it, None before the run."""
        with self._lock:
            if problem := self._problem(node, sent):
                return problem, None
            if self._run_ends_with is None:
                return "", None
            if self._ends():
                return "", Everyone(OVER, ())
            self._present.add(sent.rank)
            self._late.add(sent.rank)
            return "", Everyone(self._next, ())

    def unneeded(self) -> list[int]:
        """Return the ranks of replacements that have joined, and that others wait for at the end of the run."""
        with self._lock:
            return sorted(self._late) if self._ends() else []

    def _ends(self) -> bool:
        """Return whether server 0 has finished the run: until then it may need a replacement.

        Others finish before it: workers do while the last model is evaluated.
        """
        if self._run_ends_with is None:
            return False
        last = self._turns.get(self._next, {})
        return self._next > self._run_ends_with or any(self._ids[rank] in self._last for rank in last)

    def _problem(self, node: int, sent: Text) -> str:
        if sent.launch != self._launch or not 0 <= sent.rank < len(self._ids):
            return f"node {node} is of another launch"
        if self._ids[sent.rank] != node:
            return f"node {node} claims rank {sent.rank}, which node {self._ids[sent.rank]} has"
        return ""

    def _completed(self) -> list[Everyone]:
        done = []
        while self._present <= self._turns.get(self._next, {}).keys():
            texts = self._turns.pop(self._next)
            done.append(Everyone(self._next, tuple(texts.get(rank, "") for rank in range(len(self._ids)))))
            self._next += 1
        return done


TEXT, EVERYONE, UNNEEDED = 2, 3, 4
"""As `head`: a text of one process, to the scheduler; from it, the texts of all processes, or that others have finished
the run and a replacement that takes no part yet may do so, too."""

DOUBLED = 10
"""As `head`, to a server: from now on its new standby gets the messages of this process, too. The body is the node of
the standby, and the number of its process."""

HELLO, WELCOME, READY = 5, 6, 7
"""As `head`: a replacement asks those that send it messages whether they know it; it is known; all of them know it. The
body is the number of the replacement. Those who decide on rounds count on a replacement only then: a server that hears
of it later than others would send its model to the lost process, and so would a worker with its update."""

_COMBINING = ("server", "validator", STANDBY)

_INCARNATION = struct.Struct("<I")
_MEMBER = struct.Struct("<II")

_CHECK_EVERY = 0.5
"""Seconds between two checks that the others are alive."""

_PAUSE = 0.005
"""Seconds after which a process that waits for a message checks its timeouts."""


class PsliteProcessGroup(ProcessGroup):
    """The processes of a launch as ps-lite nodes.

    All collective operations use one allgather: each process sends a text to the scheduler, which sends all texts to
    every process. The scheduler is one of the processes and has a rank like the others.

    Args:
        settings: the settings of the node.
        process: this process; texts of other launches are dropped.
        announce: called with the address of the scheduler, on the scheduler.

    Raises:
        LaunchError: the other processes did not join, or this node cannot listen.
    """

    def __init__(self, settings: Settings, process: LaunchedProcess, announce: Callable[[NodeInfo], None]) -> None:
        assert process.rank is not None, "the launcher says it"
        self.rank, self.size = process.rank, len(process.world)
        self._world, self._hosts, self._launch = process.world, process.hosts, process.launch
        self._replaceable, self.leader = process.replaceable, process.leader
        self.incarnation = process.incarnation
        self._ids = ids_of(process.world)
        ids = dict(zip(process.world, self._ids, strict=True))
        last = [ids[peer] for peer in (SERVER_0, standby_of(SERVER_0)) if peer in ids]
        self._texts = Texts(process.launch, self._ids, last) if settings.role == NodeRole.SCHEDULER else None
        self._joining: list[Text] = []
        self._incarnations: Counter[int] = Counter()
        # Greetings of replacements of which the scheduler has not told yet.
        self._early: list[tuple[int, int, int]] = []
        named = list(zip(self._ids, self._world, strict=True))
        me, mine = process.world[process.rank], self._ids[process.rank]
        # Those that are told that this replacement is ready, and those that do not know it yet.
        self._combining = {id_ for id_, peer in named if peer.role in _COMBINING and id_ != mine}
        # The server of which this is one of the two processes, whether it is the server now, and whether this process
        # knows which of two processes is a server.
        self._shard = Peer("server", me.index) if me.role in ("server", STANDBY) else None
        self._acts = me.role == "server" and not process.incarnation
        self._seated = not process.incarnation
        # On the scheduler: the node of each server, and that of its standby, if there is one.
        self._seats = {
            peer: tuple(ids[each] for each in (peer, standby_of(peer)) if each in ids)
            for peer in process.world if peer.role == "server"
        }  # fmt: skip
        self._fatal: LostError | None = None
        # On a server: its new standby, which is ready if the number is not 0; and the nodes whose messages it may not
        # get, as far as they have not said that it does.
        self._newcomer = 0
        self._single: set[int] = set()
        self._doubled: dict[int, tuple[int, int]] = {}
        everyone = {*self._ids} - {SCHEDULER_ID, mine}
        senders = everyone if me.role in ("validator", "server", STANDBY) else {*self._combining}
        self._unwelcome = senders if process.incarnation else set()
        self._welcome = Event()
        self._greets = self._left = self._over = self._unneeded = False
        self._turn = self._awaited = 0
        self._collected: Everyone | None = None
        self._complete = Event()
        self._checked = time.monotonic()
        settings = replace(
            settings,
            wanted=rank_of(self._ids[self.rank]),
            incarnation=self.incarnation,
            replaceable=frozenset(self._ids[rank] for rank in self._replaceable),
            silence=process.silence if self._replaceable else 0.0,
        )
        self._node = Node(settings, self._deliver, mesh=True, announce=announce, observe=self._observe)
        roles = {peer: id_ for id_, peer in named if id_ != SCHEDULER_ID}
        # Before the node starts: others send to a replacement as soon as they know it.
        copies = {peer for peer in roles if peer.role == STANDBY}
        self._transport = PsliteTransport(self._node, roles, self._check_peers, self.incarnation)
        if self._shard is not None and standby_of(self._shard) in copies:
            stands_by = me.role == STANDBY or bool(self.incarnation)
            self._transport = PsliteStandby(
                self._shard, stands_by, self._node, roles, self._check_peers, self.incarnation
            )
        self._node.start()
        try:
            if self._node.recovered:
                self._join()
            else:
                # A replacement, too, if its predecessor was lost before the others knew it.
                self.incarnation = self._transport.incarnation = 0
                self._seated = True
                if isinstance(self._transport, PsliteStandby):
                    self._transport.stands_by = me.role == STANDBY
                self._exchange("")
        except BaseException:
            self._node.abandon()
            raise

    @property
    def transport(self) -> PsliteTransport:
        """The transport for messages between roles."""
        return self._transport

    def facts(self) -> dict[str, object]:
        """Return the version of ZeroMQ, and the addresses of the nodes."""
        nodes = {str(peer): self._node.nodes[id_] for peer, id_ in zip(self._world, self._ids, strict=True)}
        return {"zeromq": zmq.zmq_version(), "nodes": {name: f"{n.host}:{n.port}" for name, n in nodes.items()}}

    def collect(self, text: str) -> list[str]:
        return list(self._exchange(text).texts)

    def backoff(self) -> Backoff:
        # A message ends a pause, so pauses can be long.
        return Backoff(polls=0, first=_PAUSE, longest=_PAUSE, sleep=self.transport.rest)

    def settle(self) -> None:
        transport, me = self.transport, str(self._node.id)
        if self._replaceable:  # the launch has no further run
            self.barrier()
            return
        sent = [json.loads(text).get(me, 0) for text in self.collect(json.dumps(transport.sent_to))]
        backoff = self.backoff()
        while any(transport.received_from[id_] < count for id_, count in zip(self._ids, sent, strict=True)):
            if transport.receive() is None:
                backoff.wait()
        # No process starts the next run while another still drops the remaining messages of this run.
        self.barrier()

    def begin(self) -> None:
        if self._texts is not None:
            self._texts.begin()
            self._node.post(self._admit)

    def joins_in_time(self) -> bool:
        return not self._over

    def is_needed(self) -> bool:
        return not self._unneeded

    def leave(self) -> None:
        self._node.stop()

    def abandon(self) -> None:
        self._left = True
        self._node.abandon()

    def _exchange(self, text: str) -> Everyone:
        """Send a text, and wait for the texts of all processes (allgather)."""
        everyone = self._ask(self._turn, text)
        self._turn += 1
        if len(everyone.texts) != self.size:
            raise RunError(f"the scheduler has sent {len(everyone.texts)} texts to {self.size} processes")
        return everyone

    def _join(self) -> None:
        """Join the others in the run, as a replacement, once all that send it messages know it."""
        self._turn = self._ask(JOINS, "").turn
        self._over = self._turn == OVER
        if self._over:
            return
        self._node.post(self._say_hello)
        self._wait(self._welcome)

    def _say_hello(self) -> None:
        self._greets = True
        self._tell(self._unwelcome, HELLO)

    def _tell(self, nodes: Iterable[int], head: int) -> None:
        """Send nodes the number of this replacement, in the receiving thread."""
        for id_ in sorted(nodes):
            self._node.send(id_, replace(self._meta(head), body=_INCARNATION.pack(self.incarnation)))

    def _known_by(self, node: int) -> None:
        """Note, in the receiving thread, that a node knows this replacement, or is lost; be ready if it is the last."""
        if node in self._unwelcome:
            self._unwelcome.discard(node)
            if not self._unwelcome:
                self._tell(self._combining, READY)
                self._welcome.set()

    def _ask(self, turn: int, text: str) -> Everyone:
        """Send a text to the scheduler, and wait for its answer."""
        self._complete.clear()
        self._collected, self._awaited = None, turn
        mine = Text(turn, self.rank, self._launch, text)
        if self._texts is not None:
            self._node.post(lambda: self._add(SCHEDULER_ID, mine))
        else:
            self._node.send(SCHEDULER_ID, self._meta(TEXT), [json.dumps(mine).encode()])
        self._wait(self._complete)
        assert self._collected is not None
        return self._collected

    def _wait(self, event: Event) -> None:
        while not event.wait(_CHECK_EVERY):
            if self._left:
                raise RunError(f"{self._world[self.rank]} has left")
            self._check_peers()
        self._node.check()

    def _deliver(self, delivery: Delivery) -> None:
        """Handle a delivery, in the receiving thread."""
        meta, transport = delivery.meta, self._transport
        try:
            if meta.app != APP:
                raise MalformedFrameError(f"it is of the application {meta.app}")
            if meta.head == MESSAGE:
                transport.accept(delivery)
            elif meta.head == TEXT and self._texts is not None and len(delivery.data) == 1:
                self._add(delivery.sender, parse_as(Text, "a text", delivery.data[0].tobytes()))
            elif meta.head == EVERYONE and delivery.sender == SCHEDULER_ID and len(delivery.data) == 1:
                self._finish(parse_as(Everyone, "a list of texts", delivery.data[0].tobytes()))
            elif meta.head == UNNEEDED and delivery.sender == SCHEDULER_ID:
                self._unneeded = True
            elif meta.head in (TAKEN, SWITCHED) and isinstance(transport, PsliteStandby):
                transport.note_taken(delivery.sender, meta.head, meta.body)
            elif meta.head == DOUBLED and len(meta.body) == _MEMBER.size:
                self._note_doubled(delivery.sender, _MEMBER.unpack(meta.body))
            elif meta.head in (HELLO, WELCOME, READY) and len(meta.body) == _INCARNATION.size:
                self._greet(delivery.sender, meta.head, *_INCARNATION.unpack(meta.body))
            else:
                self._node.dropped.drop("unexpected", f"node {delivery.sender} sends a message of kind {meta.head}")
        except (InputError, MalformedFrameError) as error:
            self._node.dropped.drop("malformed", str(error))

    def _observe(self, change: NodeDeath | NodeInfo) -> None:
        """Tell the role of this process, or the scheduler's texts, what becomes of others, in the receiving thread."""
        node = change.node if isinstance(change, NodeDeath) else change
        rank = self._ids.index(node.id)
        if rank not in self._replaceable:
            return
        if self._acts and node.id in self._single:  # a new process of the node knows the standby
            self._single.discard(node.id)
            self._take_standby()
        if self._world[rank].role in ("server", STANDBY):
            self._observe_copy(change, node, Peer("server", self._world[rank].index))
        if self._texts is not None:
            if isinstance(change, NodeDeath):
                self._joining = [sent for sent in self._joining if sent.rank != rank]
                self._send_all(self._texts.lose(rank))
            return
        peer = self._world[rank]
        if isinstance(change, NodeDeath) or self._greets:  # a later replacement finds this one in its list of nodes
            self._known_by(node.id)
        is_copy = peer.role in ("server", STANDBY)
        # A standby must know whose messages may never come; the other servers are not told of losses.
        informed = self._decides or (self._shard is not None and not self._acts)
        if isinstance(change, NodeDeath):
            if not is_copy:
                self._transport.lose(Lost(peer, change.why, change.since), tell=informed)
            return
        if not is_copy:
            self._transport.replace(peer, change.incarnation, tell=informed)
            if not self._decides and (self._shard is not None or peer.role == "validator"):
                self._transport.tell(Replaced(peer, change.incarnation))
        if node.id in self._combining and self._welcome.is_set():
            self._tell([node.id], READY)
        self._incarnations[node.id] = change.incarnation
        early, self._early = self._early, []
        for greeting in early:
            self._greet(*greeting)

    def _observe_copy(self, change: NodeDeath | NodeInfo, node: NodeInfo, server: Peer) -> None:
        """Go on with one of the two processes of a server, or with a new standby, in the receiving thread."""
        if self._texts is not None:
            self._reseat(change, node, server)
        elif not self._seated:
            if not isinstance(change, NodeDeath):  # the scheduler says where it is when this process joins
                self._transport.note_incarnation(node.id, change.incarnation)
        elif isinstance(change, NodeDeath):
            self._lose_copy(node.id, server, change.why, change.since)
        else:
            self._lose_copy(node.id, server, "another process has replaced it", time.monotonic())
            self._transport.add_standby(server, node.id, change.incarnation)
            if server == self._shard:
                self._newcomer = 0
                gone = {death.node.id for death in self._node.deaths()}
                self._single = {*self._ids} - {SCHEDULER_ID, self._node.id, node.id} - gone
                newcomer = node.id, change.incarnation
                self._single -= {id_ for id_, member in self._doubled.items() if member == newcomer}
            else:
                body = _MEMBER.pack(node.id, change.incarnation)
                self._node.send(self._transport.acting(server), replace(self._meta(DOUBLED), body=body))

    def _lose_copy(self, node: int, server: Peer, why: str, since: float) -> None:
        """Go on without one of the two processes of a server, unless this process knows that it is lost."""
        transport, mine = self._transport, server == self._shard
        if transport.acting(server) != node:
            if transport.lose_standby(server, node) and mine:
                transport.tell(Lost(standby_of(server), why, since))
        elif mine and isinstance(transport, PsliteStandby):
            self._acts = True
            transport.retire_server(Lost(server, why, since))
        else:
            transport.switch(server)

    def _note_doubled(self, node: int, newcomer: tuple[int, int]) -> None:
        """Note that a new standby gets the messages of a node, in the receiving thread."""
        self._doubled[node] = newcomer
        if newcomer[1] == self._incarnations[newcomer[0]]:
            self._single.discard(node)
            self._take_standby()

    def _take_standby(self) -> None:
        """Tell the role of its new standby, after all messages that the standby does not get."""
        if self._newcomer and not self._single and self._shard is not None:
            self._transport.tell(Replaced(standby_of(self._shard), self._newcomer))
            self._newcomer = 0

    def _reseat(self, change: NodeDeath | NodeInfo, node: NodeInfo, server: Peer) -> None:
        """Note, on the scheduler, which process is a server."""
        seats = tuple(each for each in self._seats[server] if each != node.id)
        if not isinstance(change, NodeDeath):
            seats = (*seats, node.id)
        elif not seats:
            rank = self._ids.index(node.id)
            why = f"{change.why}, and no standby is there to take its place"
            self._fatal = LostError(server, self._hosts[rank], why)  # whichever of the two it was before
        self._seats[server] = seats

    def _greet(self, sender: int, head: int, incarnation: int) -> None:
        """Answer a replacement, or note its answers, in the receiving thread."""
        peer = self._world[self._ids.index(sender)]
        if head in (HELLO, READY) and self._incarnations[sender] < incarnation:
            self._early.append((sender, head, incarnation))
        elif head == HELLO:
            self._node.send(sender, replace(self._meta(WELCOME), body=_INCARNATION.pack(incarnation)))
        elif head == WELCOME and incarnation == self.incarnation:
            self._known_by(sender)
        elif head == READY and self._incarnations[sender] == incarnation:
            if peer.role in ("server", STANDBY):
                if self._acts and self._shard == Peer("server", peer.index):
                    self._newcomer = incarnation
                    self._take_standby()
            elif self._decides:
                self._transport.tell(Replaced(peer, incarnation))

    @property
    def _decides(self) -> bool:
        """Whether the role of this process is told of lost processes, and of replacements once all know them.

        The other servers, and workers if it is a validator's, are told of a replacement as soon as the messages of its
        predecessor are dropped.
        """
        me = self._world[self.rank]
        return me.role == "validator" or self._shard == SERVER_0

    def _add(self, node: int, sent: Text) -> None:
        """Add a text to those that the scheduler has, in its receiving thread."""
        assert self._texts is not None
        if sent.turn == JOINS:
            self._joining.append(sent)
            self._admit()
            return
        problem, done = self._texts.add(node, sent)
        if problem:
            self._node.dropped.drop("foreign", problem)
        self._send_all(done)
        self._dismiss()

    def _admit(self) -> None:
        """Answer the replacements that want to join; before the run, they wait."""
        assert self._texts is not None
        joining, self._joining = self._joining, []
        for sent in joining:
            problem, answer = self._texts.join(self._ids[sent.rank], sent)
            if problem:
                self._node.dropped.drop("foreign", problem)
            elif answer is None:
                self._joining.append(sent)
            else:
                answer = answer._replace(seats=tuple(self._seats.values()))
                self._node.send(self._ids[sent.rank], self._meta(EVERYONE), [json.dumps(answer).encode()])

    def _send_all(self, done: Sequence[Everyone]) -> None:
        """Send the texts of complete allgathers to all that are there."""
        dead = {death.node.id for death in self._node.deaths()}
        for everyone in done:
            for id_ in self._ids:
                if id_ != SCHEDULER_ID and id_ not in dead:
                    self._node.send(id_, self._meta(EVERYONE), [json.dumps(everyone).encode()])
            self._finish(everyone)

    def _dismiss(self) -> None:
        """Tell the replacements for which others wait at the end of the run that they may finish, too."""
        assert self._texts is not None
        for rank in self._texts.unneeded():
            self._node.send(self._ids[rank], self._meta(UNNEEDED))

    def _finish(self, everyone: Everyone) -> None:
        if everyone.turn == self._awaited or (self._awaited == JOINS and not everyone.texts):
            if not self._seated and everyone.turn != OVER:
                self._seated = True
                seats = dict(zip(self._seats, everyone.seats, strict=True))
                self._transport.seat({server: each for server, each in seats.items() if len(self._seats[server]) > 1})
            self._collected = everyone
            self._complete.set()

    def _meta(self, head: int) -> Meta:
        return Meta(head=head, request=True, app=APP, customer=0, timestamp=self._node.timestamp())

    def _check_peers(self) -> None:
        """Raise if a process is lost: the scheduler checks all processes, the others check the scheduler."""
        now = time.monotonic()
        if now - self._checked < _CHECK_EVERY:
            return
        self._checked = now
        self._node.check()
        replaceable = {self._ids[rank] for rank in self._replaceable}
        for id_ in self._node.sender.given_up.keys() - replaceable:
            raise RunError(f"messages to {self._world[self._ids.index(id_)]} are not acknowledged")
        if self._fatal is not None:
            raise self._fatal
        for death in self._node.deaths():
            if death.node.id in replaceable or (self._texts is None and death.node.id != SCHEDULER_ID):
                continue
            rank = self._ids.index(death.node.id)
            raise LostError(self._world[rank], self._hosts[rank], death.why)

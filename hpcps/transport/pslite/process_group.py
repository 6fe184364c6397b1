"""The process group of the nodes of a launch over ps-lite, whose operations collect a text from each process."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Event

import zmq

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_as
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, STANDBY, standby_of
from hpcps.transport.backoff import Backoff
from hpcps.transport.process_group import LaunchedProcess, LostError, ProcessGroup
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.membership import NodeDeath
from hpcps.transport.pslite.meta import SCHEDULER_ID, Meta, NodeInfo, NodeRole, id_of, rank_of
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery
from hpcps.transport.pslite.seats import DOUBLED, Seats, SeatTable, server_of
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.standby import PsliteStandby
from hpcps.transport.pslite.texts import JOINS, OVER, Everyone, Text, Texts
from hpcps.transport.pslite.transport import APP, ASK, GOT, MESSAGE, SWITCHED, TAKEN, PsliteTransport


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


TEXT, EVERYONE, UNNEEDED = 2, 3, 4
"""As `head`: a text of one process, to the scheduler; from it, the texts of all processes, or that others have finished
the run and a replacement that takes no part yet may do so, too."""

HELLO, WELCOME, READY = 5, 6, 7
"""As `head`: a replacement asks those that send it messages whether they know it; it is known; all of them know it. The
body is the number of the replacement. Those who decide on rounds count on a replacement only then: a server that hears
of it later than others would send its model to the lost process, and so would a worker with its update."""

_COMBINING = ("server", "validator", STANDBY)

_INCARNATION = struct.Struct("<I")

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
        ranks = {peer: rank for rank, peer in enumerate(process.world)}
        servers = [peer for peer in ranks if peer.role == "server" and standby_of(peer) in ranks]
        pairs = [(ranks[server], ranks[standby_of(server)]) for server in servers]
        self._texts = Texts(process.launch, self._ids, last, pairs) if settings.role == NodeRole.SCHEDULER else None
        self._joining: list[Text] = []
        # Greetings of replacements of which the scheduler has not told yet.
        self._early: list[tuple[int, int, int]] = []
        named = list(zip(self._ids, self._world, strict=True))
        me, mine = process.world[process.rank], self._ids[process.rank]
        validated = any(peer.role == "validator" for peer in process.world)
        self._coordinator = Peer("validator" if validated else "worker", 0)
        # Those that are told that this replacement is ready, and those that do not know it yet.
        pair = {self._coordinator, EVALUATOR}
        self._combining = {
            id_ for id_, peer in named if id_ != mine and (peer.role in _COMBINING or {me, peer} == pair)
        }  # fmt: skip
        self._table = SeatTable(ids)  # the scheduler's
        self._fatal: LostError | None = None
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
        self._interrupt = process.interrupt
        self._node = Node(
            settings,
            self._deliver,
            mesh=True,
            announce=announce,
            observe=self._observe,
            interrupt=process.interrupt,
        )
        roles = {peer: id_ for id_, peer in named if id_ != SCHEDULER_ID}
        # Before the node starts: others send to a replacement as soon as they know it.
        self._transport = PsliteTransport(self._node, roles, self._check_peers, self.incarnation)
        if (server := server_of(me)) is not None and standby_of(server) in roles:
            stands_by = me.role == STANDBY or bool(self.incarnation)
            self._transport = PsliteStandby(server, stands_by, self._node, roles, self._check_peers, self.incarnation)
        self._seats = Seats(me, roles, self._node, self._transport)
        if not self.incarnation:
            self._seats.begin(acts=me.role == "server")
        self._node.start()
        try:
            if self._node.recovered:
                self._join()
            else:
                # A replacement, too, if its predecessor was lost before the others knew it.
                self.incarnation = self._transport.incarnation = 0
                self._seats.begin(acts=me.role == "server")
                if isinstance(self._transport, PsliteStandby):
                    self._transport.sit(stands_by=me.role == STANDBY)
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
            elif meta.head == ASK:
                transport.note_asked(delivery.sender, meta.body)
            elif meta.head == GOT and isinstance(transport, PsliteStandby):
                transport.note_got(delivery.sender, meta.body)
            elif meta.head == DOUBLED and self._seats.note_doubled(delivery.sender, meta.body):
                pass
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
        peer = self._world[rank]
        if self._texts is not None:
            if isinstance(change, NodeDeath):
                self._joining = [sent for sent in self._joining if sent.rank != rank]
                self._send_all(self._texts.lose(rank))
            if (server := server_of(peer)) is not None:
                self._reseat(change, server, rank)
            return
        self._seats.observe(change, peer)
        if isinstance(change, NodeDeath) or self._greets:  # a later replacement finds this one in its list of nodes
            self._known_by(node.id)
        is_copy = server_of(peer) is not None
        # A standby must know whose messages may never come; the other servers are not told of losses.
        informed = self._decides_on(peer) or (self._seats.stands_by and self._is_server_of(peer))
        if isinstance(change, NodeDeath):
            if not is_copy:
                lost = Lost(peer, change.why, change.since, incarnation=change.node.incarnation)
                self._transport.lose(lost, tell=informed)
            return
        if not is_copy:
            self._transport.replace(peer, change.incarnation, tell=informed)
            by_evaluator = self._world[self.rank] == EVALUATOR and peer == self._coordinator
            hears = self._is_server_of(peer) or peer.role == "validator" or by_evaluator
            if hears and not self._decides_on(peer):
                self._transport.tell(Replaced(peer, change.incarnation))
        if node.id in self._combining and self._welcome.is_set():
            self._tell([node.id], READY)
        early, self._early = self._early, []
        for greeting in early:
            self._greet(*greeting)

    def _reseat(self, change: NodeDeath | NodeInfo, server: Peer, rank: int) -> None:
        """Note, on the scheduler, which process is a server."""
        if not isinstance(change, NodeDeath):
            self._table.replace(server, change.id)
        elif self._table.lose(server, change.node.id):
            why = f"{change.why}, and no standby is there to take its place"
            self._fatal = LostError(server, self._hosts[rank], why)  # whichever of the two it was before

    def _greet(self, sender: int, head: int, incarnation: int) -> None:
        """Answer a replacement, or note its answers, in the receiving thread."""
        peer = self._world[self._ids.index(sender)]
        known = self._transport.incarnation_of(sender)
        if head in (HELLO, READY) and known < incarnation:
            self._early.append((sender, head, incarnation))
        elif head == HELLO:
            self._node.send(sender, replace(self._meta(WELCOME), body=_INCARNATION.pack(incarnation)))
        elif head == WELCOME and incarnation == self.incarnation:
            self._known_by(sender)
        elif head == READY and known == incarnation:
            if server_of(peer) is not None:
                self._seats.ready(peer, incarnation)
            elif self._decides_on(peer):
                self._transport.tell(Replaced(peer, incarnation))

    def _is_server_of(self, peer: Peer) -> bool:
        """Return whether this process is a server, or its standby, and another one exchanges messages with servers."""
        return self._server is not None and peer != EVALUATOR

    @property
    def _server(self) -> Peer | None:
        """The server of which this process is one of two."""
        return server_of(self._world[self.rank])

    def _decides_on(self, peer: Peer) -> bool:
        """Return whether the role of this process is told that another one is lost, and of its replacement later.

        The other servers, the others if it is a validator's, and the evaluator if it is the coordinator's, are told of
        a replacement as soon as the messages of its predecessor are dropped. Only the coordinator is told of the
        evaluator.
        """
        me = self._world[self.rank]
        if peer == EVALUATOR:
            return me == self._coordinator
        return me.role == "validator" or self._server == SERVER_0

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
                answer = answer._replace(seats=self._table.rows)
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
            if everyone.turn != OVER and everyone.seats:
                self._seats.take(everyone.seats)
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
        self._interrupt()
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

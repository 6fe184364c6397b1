"""Rounds that do not wait for every worker, or validator: who is in a round, and what becomes of late updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.state import Kept, Position, State
from hpcps.protocol.messages import Abandon, Absent, Closed, CombinedUpdate, Complete, Credit, Flag, Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.received import REPLACED, Lost, Replaced
from hpcps.protocol.roster import SERVER_0, Roster
from hpcps.roles.checkpointing import CHECKPOINT_FLAGS
from hpcps.roles.events import Effect, Pause, Record, Send
from hpcps.roles.losses import Positions, admit, record_loss, take_part
from hpcps.roles.sync.membership import Membership
from hpcps.roles.sync.partitions import WINDOW, Answer, PartitionCollector
from hpcps.spec.schema import Run

SHORTEST_PAUSE = 1e-9
"""The length of the shortest pause, in seconds: answers that come within it count as simultaneous. In one process the
clock only advances while no role can proceed, so all answers that arrive at one time are there when this pause is over,
and their order is that of the workers."""


@dataclass
class Owed:
    """The answer that a worker owes for a model.

    Attributes:
        round: the round that began with the model.
        dropped: whether the round closed without the answer, which therefore does not enter the model.
        answered: whether its first message has come.
    """

    round: int
    dropped: bool = False
    answered: bool = False


@dataclass(frozen=True)
class Arrival:
    """The arrival of an answer, whose first message has come.

    Attributes:
        time: when it arrived.
        worker: the index of its worker. Answers that arrive at one time count in the order of the workers.
        round: the round of the model that it answers.
        absent: whether it holds no update.
        abandoned: the local steps after which the worker abandoned the round; None if it did not.
    """

    time: float
    worker: int
    round: int
    absent: bool = False
    abandoned: int | None = None


class QuorumCollector(PartitionCollector):
    """Collects the partitions of the workers that are in a round; the others answer later.

    One combiner decides who is in: a validator for its share; without validators server 0, which tells the others.
    A worker gets no model between its late answer and the end of the round in which the answer comes. So no worker
    changes an update that a combiner still reads, and late updates need no copy.

    With `survive.validators` a validator may serve any workers, and `serve` says which ones. On the servers the
    collector then collects the combined updates of validators, none of which is late. What is said of workers below is
    true of them.

    Attributes:
        closing: how the round was closed; None as long as it is open.
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        share: Sequence[Peer],
        partitions: Sequence[Partition],
        first_block: int = 0,
        decoder: UpdateDecoder | None = None,
    ) -> None:
        """Begin to collect the first round."""
        self._train = run.train
        self._run, roster = run, Roster.of(run)
        self._decides = peer.role == "validator" or peer.index == 0
        self._followers = () if peer.role == "validator" else roster.all_servers()[1:]
        self._role = share[0].role
        self._serves: frozenset[Peer] = frozenset(share)
        self._membership, self.positions = Membership(share), Positions()
        # Those that are lost, and the numbers of replacements; also of workers that others serve.
        self._gone: set[Peer] = set()
        self._incarnations: dict[Peer, int] = {}
        # Those of whom nothing is expected, until their replacements get a model.
        self._unfilled: set[Peer] = set()
        self._paused = -1, 0
        # The other servers that have the answer of a worker to the model of a round, if workers may be lost.
        self._complete: dict[tuple[Peer, int], set[Peer]] = {}
        # The coordinator evaluates the models, so it must get each of them while it is there.
        self._always = {roster.coordinator}.intersection(share) if self._role == "worker" else set()
        self._answers: dict[Peer, Arrival] = {}
        # Of answers that enter no model, until their workers get the next one.
        self._dropped_arrivals: dict[Peer, Arrival] = {}
        self._told: set[Peer] = set()
        self._now = 0.0
        self._unsent: list[Send] = []
        self._alarms: deque[int] = deque()
        self._over = False
        self._without_wait = -1  # the last round that waits for no replacements
        self._is_first = True  # no round has closed since this combiner was started at the beginning of a run
        self.closing: Closed | None = None
        super().__init__(share, partitions, first_block, decoder)
        serves = share
        if run.survive.validators and self._role == "worker":
            serves = roster.share(peer)
        self.begin(0, serves)

    def begin(self, round: int, serves: Sequence[Peer] | None = None) -> None:
        """Begin at a round whose model every sender gets, or every one of those that it serves from now on."""
        self._serves = self._serves if serves is None else frozenset(serves)
        self._is_first &= bool(self._serves)
        self._owed = {sender: deque([Owed(round)]) for sender in self._share}
        self._missing = dict.fromkeys(self._share, self.total)
        self._unfilled.clear()
        for peer in set(self._share) - self._serves:
            self._expect_nothing(peer)

    @property
    def kept(self) -> Mapping[str, Kept]:
        return {"quorum": self, **({"positions": self.positions} if self._run.survive.workers else {})}

    def state(self) -> State:
        """Return between two rounds what each worker owes; its answer is in the part of the worker, not in this one."""
        owed = {}
        for peer, entries in self._owed.items():
            # The answer to a model that the round did not wait for may have come since the round closed.
            if entries:
                owed[str(peer.index)] = [entries[-1].round, entries[-1].dropped]
            elif peer in self._dropped_arrivals:
                owed[str(peer.index)] = [self._dropped_arrivals[peer].round, True]
        return State(facts=owed)

    def restore(self, state: State) -> None:
        """Begin the round after a checkpoint; a worker that was lost owes an answer to its model."""
        owed = {self._sender(int(index)): Owed(*facts) for index, facts in state.facts.items()}
        self._owed |= {peer: deque([each]) for peer, each in owed.items() if peer in self._serves}

    def _expect_updates(self) -> None:
        """Expect answers to the next model of all that get it; keep those that may enter the next round."""
        closing, self.closing, self._over = self.closing, None, False
        if closing is None:
            return
        self._is_first = False
        arrived, answered = (set(map(self._sender, each)) for each in (closing.arrived, closing.answered))
        for peer in arrived:
            owed = self._owed[peer].popleft()
            self._complete.pop((peer, owed.round), None)
            self._answers.pop(peer, None)
            self._missing[peer] = self.total
            self._collector.forget(peer)
        for peer in arrived - answered:  # it is lost
            self._expect_nothing(peer)
        for peer in answered:
            if self._membership.left(peer):  # since the round closed
                self._expect_nothing(peer)
                continue
            if not self._owed[peer]:
                self._missing[peer] = self.total
            self._unfilled.discard(peer)
            self._owed[peer].append(Owed(closing.round + 1))
            self._dropped_arrivals.pop(peer, None)
            self._told.discard(peer)

    def _sender(self, index: int) -> Peer:
        return Peer(self._role, index)

    # Messages

    def put(self, source: Peer, answer: Answer, round: int, arrived: float = 0.0) -> Iterator[Effect]:
        owed = self._owed[source] if source in self._serves else None
        if self._run.survive.validators and (not owed or answer.round < owed[0].round):
            return  # another one serves it now, or did when it answered
        self._now = arrived
        if owed and not isinstance(answer, CombinedUpdate) and answer.round == owed[0].round:
            self.positions.sent(source, answer.position)
        yield from super().put(source, answer, owed[0].round if owed else round, arrived)
        yield from self._send()

    def refuse(
        self, source: Peer, reason: str, kind: type[Answer] | None = None, arrived: float = 0.0
    ) -> Iterator[Effect]:
        self._now = arrived
        yield from super().refuse(source, reason, kind, arrived)
        yield from self._send()

    def _send(self) -> Iterator[Send]:
        """Permit the senders of dropped updates to send all of them; tell server 0 which answers are complete here."""
        unsent, self._unsent = self._unsent, []
        yield from unsent

    def _miss(self, source: Peer, absent: Absent) -> None:
        self._missing[source] = 0
        self._begin_answer(source, absent=True, steps=absent.abandoned)
        if self._owed[source][0].dropped:
            self._end_dropped(source)

    def _take(self, source: Peer, mask: Mask, payload: Vector) -> None:
        if self._missing[source] == self.total:
            self._begin_answer(source)
        if not self._owed[source][0].dropped:
            super()._take(source, mask, payload)
            # A late update is present once it is in.
            self._present[self._row[source]] &= self._is_in(source)
            return
        self._missing[source] -= 1
        if not self._missing[source]:
            self._end_dropped(source)

    def _begin_answer(self, source: Peer, *, absent: bool = False, steps: int | None = None) -> None:
        owed = self._owed[source][0]
        owed.answered = True
        if not self._decides and self._run.survive.workers:
            self._unsent.append(Send(SERVER_0, Complete(round=owed.round, worker=source.index)))
        owed.dropped |= steps is not None
        answer = Arrival(self._now, source.index, owed.round, absent, steps)
        if owed.dropped:
            self._dropped_arrivals[source] = answer
            self._permit(source, owed)
        else:
            self._answers[source] = answer

    def _permit(self, source: Peer, owed: Owed) -> None:
        if self.total > WINDOW and self._missing[source]:
            self._unsent.append(Send(source, Credit(round=owed.round, partitions=self.total)))

    def _drop(self, source: Peer, owed: Owed) -> None:
        """Drop a late answer, or the partitions of it that have come."""
        owed.dropped = True
        if not owed.answered:
            return
        self._collector.forget(source)
        self._dropped_arrivals[source] = self._answers.pop(source)
        if self._missing[source]:
            self._permit(source, owed)
        else:
            self._end_dropped(source)

    def _end_dropped(self, source: Peer) -> None:
        """Expect the next update of a worker; the last partition of its dropped update has come."""
        self._owed[source].popleft()
        self._missing[source] = self.total if self._owed[source] else 0

    # Who is in

    def close(self, round: int, flags: Flag) -> Iterator[Effect]:
        """Close the round if it has a quorum, or if all have answered.

        The end of the grace time is `elapsed`. A round that waits for every worker has no grace time. One with too few
        workers waits for replacements, unless the run is to stop.

        Args:
            round: the round.
            flags: those of its model. With `Flag.EVERYONE` it waits for every worker: all must get the next one.
        """
        if not self._decides or self.closing is not None:
            return
        train, owed = self._train, [each for entries in self._owed.values() for each in entries]
        everyone, needed = Flag.EVERYONE in flags, self._answers_needed()
        if everyone and not all(each.answered for each in owed):
            return
        if not all(self._is_everywhere(peer) for peer in self._answers):
            return
        if not everyone and (len(self._answers) < needed or not self._always - self._unfilled <= self._answers.keys()):
            return
        least = self._lacks_replacements()
        # No replacement takes part before the checkpoint at which the run stops.
        if least and self._without_wait != round and Flag.SUSPEND not in flags:
            yield from self._record_wait(round, least)
            return
        if not everyone:
            if not self._gets_next and not all(each.answered for each in owed):
                return
            if not self._over and not all(each.answered or each.dropped for each in owed):
                if round not in self._alarms:
                    self._alarms.append(round)
                    yield Pause(max(train.grace, SHORTEST_PAUSE))
                return
        order = sorted(self._answers.values(), key=lambda answer: (answer.time, answer.worker))
        if not everyone and not train.grace:
            always = [n for n, answer in enumerate(order) if self._sender(answer.worker) in self._always]
            order = order[: max([needed, *(n + 1 for n in always)])]
        arrived = tuple(self._sender(answer.worker) for answer in order)
        gone = self._answers if train.late == "drop" else {}
        answered, lost = self._membership.close({*arrived, *self._dropped_arrivals, *gone})
        names = {"arrived": arrived, "answered": answered, "lost": lost}
        indices = {name: tuple(peer.index for peer in peers) for name, peers in names.items()}
        closed = Closed(round=round, everyone=everyone, flags=flags & CHECKPOINT_FLAGS, **indices)
        for server in self._followers:
            yield Send(server, closed)
        yield from self._carry_out(closed)
        if self._run.survive.validators and self._role == "worker":
            # Before others get the result. If this validator is lost, a replay needs to know what came until then.
            yield Record("closed", indices)
        for peer, entries in self._owed.items():
            if train.abandon and not everyone and entries and not entries[-1].answered and peer not in self._told:
                self._told.add(peer)
                yield Send(peer, Abandon(round=entries[-1].round))

    def _answers_needed(self) -> int:
        """Return how many answers the round waits for: of those that are there, whose answers are not dropped."""
        there = self._serves - self._unfilled
        if self._role != "worker":
            return len(there)
        able = sum(any(not each.dropped for each in self._owed[peer]) for peer in there)
        return min(self._run.updates_needed(len(self._serves)), able)

    @property
    def _gets_next(self) -> bool:
        """Whether anybody gets the next model if the round closes now."""
        return bool(self._answers or self._dropped_arrivals or self._membership.newcomers)

    def end_wait(self, round: int) -> None:
        """Have a round wait for no replacements, because the run is to stop."""
        self._without_wait = round

    def _lacks_replacements(self) -> int:
        """Return how many workers are needed, if too few are there, also with those that get the next model; else 0."""
        if not self._unfilled & self._serves:
            return 0
        least = self._run.workers_needed(len(self._serves)) if self._role == "worker" else 1
        return least if self._there < least else 0

    @property
    def _there(self) -> int:
        """The number of workers that are there, or get the next model."""
        return len(self._serves - self._unfilled) + self._membership.newcomers

    def _record_wait(self, round: int, least: int) -> Iterator[Effect]:
        """Record that the round waits for replacements, whenever other workers are there."""
        if self._paused != (round, self._there):
            self._paused = round, self._there
            yield Record("paused", {f"{self._role}s": self._there, "needed": least})

    def _is_everywhere(self, peer: Peer) -> bool:
        """Return whether the answer of a worker, which is here, is on all servers; without followers it is."""
        if not self._run.survive.workers or not self._followers:
            return True
        return self._complete.get((peer, self._answers[peer].round), set()) >= set(self._followers)

    def note_complete(self, source: Peer, complete: Complete) -> None:
        """Note that another server has the answer of a worker."""
        peer = self._sender(complete.worker)
        if any(owed.round == complete.round for owed in self._owed.get(peer, ())):  # else it is lost
            self._complete.setdefault((peer, complete.round), set()).add(source)

    # Lost workers and validators

    def note_member(
        self, event: Lost | Replaced, round: int, over: Callable[[int], bool], evaluated: int = 0
    ) -> Iterator[Effect]:
        """Go on without a lost worker or validator, or with its replacement from the next model on.

        The last answer of a lost process counts if all combiners have all of it.

        Args:
            event: what became of the process.
            round: the round of the combiner.
            over: returns whether the run is over before a round.
            evaluated: `TakePart.evaluated`.
        """
        peer = event.peer
        if peer not in self._membership:
            return
        if isinstance(event, Lost):
            self._gone.add(peer)
            if peer in self._serves:
                yield from self._lose(event)
        else:
            if self._is_first and peer not in self._gone and peer in self._serves:  # it was lost before this one began
                yield from self._lose(Lost(peer, REPLACED, event.arrived, event.arrived))
            self._gone.discard(peer)
            self._incarnations[peer] = event.incarnation
            if peer in self._serves:
                yield from self._replace(event, round, over, evaluated)

    def serve(self, workers: Collection[Peer], round: int, *, over: bool) -> Iterator[Effect]:
        """Serve these workers from the round that begins on: those that others served before get the next model.

        Args:
            workers: the workers.
            round: the round.
            over: whether there is no next model.
        """
        served, self._serves = self._serves, frozenset(workers)
        if served != self._serves:
            yield Record("serves", {"workers": sorted(peer.index for peer in self._serves)})
        for peer in served - self._serves:
            self._expect_nothing(peer)
            self._membership.release(peer)
        for peer in sorted(self._serves - served):
            if peer in self._gone:
                self._membership.lose(peer)
                continue
            self._membership.replace(peer)
            incarnation = self._incarnations.get(peer)
            if incarnation and not over:  # the lost validator may have let it take part already
                yield take_part(peer, incarnation, round + 1, self.positions.of(peer))

    def _lose(self, lost: Lost) -> Iterator[Effect]:
        peer = lost.peer
        again = self._membership.left(peer)  # its replacement, which has sent nothing yet
        self._membership.lose(peer)
        is_in = self.closing is not None and self._is_in(peer)
        counted = not again and (is_in or (peer in self._answers and self._is_everywhere(peer)))
        if counted:
            self.positions.count(peer)
        elif not again:
            self._expect_nothing(peer)
        yield record_loss(lost, counted=counted)

    def _replace(self, replaced: Replaced, round: int, over: Callable[[int], bool], evaluated: int) -> Iterator[Effect]:
        # Who gets the next model is decided when the round closes.
        peer, first = replaced.peer, round + 1 if self.closing is None else round + 2
        if over(first - 1):
            return  # there is no such model
        self._membership.replace(peer)
        yield from admit(replaced, first, self.positions.of(peer), evaluated)

    def _expect_nothing(self, peer: Peer) -> None:
        """Expect nothing of a worker, and drop what it has sent."""
        self._unfilled.add(peer)
        for owed in self._owed[peer]:
            self._complete.pop((peer, owed.round), None)
        self._owed[peer].clear()
        self._answers.pop(peer, None)
        self._dropped_arrivals.pop(peer, None)
        self._missing[peer] = 0
        self._collector.forget(peer)

    def elapsed(self, round: int) -> None:
        self._over |= self._alarms.popleft() == round

    def follow(self, closed: Closed) -> Iterator[Effect]:
        """Close the round as server 0 did."""
        yield from self._carry_out(closed)

    def _carry_out(self, closed: Closed) -> Iterator[Effect]:
        self.closing = closed
        for sender in set(closed.lost) - set(closed.arrived):
            self._expect_nothing(self._sender(sender))
        for peer, entries in self._owed.items():
            if self._is_in(peer):
                self.positions.count(peer)
                self._present[self._row[peer]] = self._collector.has(peer, 0)
            elif self._train.late == "drop":
                for owed in [each for each in entries if not each.dropped]:
                    self._drop(peer, owed)
        yield from self._send()

    def _is_in(self, peer: Peer) -> bool:
        return self.closing is not None and peer.index in self.closing.arrived

    # What the roles ask

    @property
    def ready(self) -> bool:
        return self.closing is not None and super().ready

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        closing, owed = self.closing, self._owed.items()
        if closing is None:
            return tuple(peer for peer, entries in owed if any(not each.answered for each in entries))
        left = self.total - self.current
        # Before a checkpoint and the end, all of the dropped updates must have come.
        return tuple(
            peer
            for peer, entries in owed
            if (self._is_in(peer) and (entries[0].dropped or self._missing[peer] == left) and left)
            or (closing.everyone and any(each.dropped for each in entries))
        )

    @property
    def answered(self) -> tuple[int, ...]:
        assert self.closing is not None, "a round is closed before it is combined"
        return self.closing.answered

    @property
    def lost(self) -> tuple[int, ...]:
        assert self.closing is not None, "a round is closed before it is combined"
        return self.closing.lost

    @property
    def counted(self) -> dict[str, Position]:
        known = self.positions.counted
        return {name: known[name] for peer in self._share if self._is_in(peer) and (name := str(peer)) in known}

    def updates(self, round: int) -> dict[Peer, int]:
        return {peer: self._owed[peer][0].round for peer in self.present}

    def report(self) -> tuple[dict[str, object], list[Effect]]:
        fields, rejections = super().report()
        closing = self.closing
        assert closing is not None, "a round is closed before it is combined"
        fields["absent"] = sorted(set(closing.arrived) - {peer.index for peer in self.present})
        ages = [(k, closing.round - self._owed[self._sender(k)][-1].round) for k in closing.arrived]
        fields["arrived"] = list(closing.arrived)
        fields["late"] = [[k, age] for k, age in ages if age]
        dropped = self._dropped_arrivals
        back = [dropped[peer] for peer in self._share if peer in dropped and peer.index in closing.answered]
        fields["dropped"] = [[each.worker, closing.round - each.round] for each in back if not each.absent]
        given_up = [each for each in back if each.abandoned is not None]
        fields["abandoned"] = [[each.worker, closing.round - each.round, each.abandoned] for each in given_up]
        return fields, rejections

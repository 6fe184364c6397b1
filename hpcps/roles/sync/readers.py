"""The workers and validators to which a server sends models, and the models that they may still read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from hpcps.numerics.state import State
from hpcps.protocol.messages import Closed, Peer, SendAgain
from hpcps.protocol.roster import Roster
from hpcps.roles.events import Send
from hpcps.spec.schema import Run


def readers_of(run: Run, round: int) -> Readers:
    """Return the readers of a run, all of which get the model of a round."""
    return LateReaders(Roster.of(run), round) if run.misses_rounds else Readers()


class Readers:
    """Every reader gets the model of each round, and has answered it when the next one is made."""

    def give(self, round: int, now: float) -> None:
        """Note when the model of a round was sent first."""

    def late(self, round: int) -> tuple[Peer, ...]:
        """Return the workers that did not get the model of a round, or have not answered it by its end."""
        return ()

    def owing(self, round: int, now: float) -> Iterator[Send]:
        """Have the workers that owe answers to models before that of a round send them: the run has resumed."""
        yield from ()

    def state(self, round: int, now: float) -> State:
        """Return, at the end of the round before, which model each worker has, and for how long."""
        return State()

    def restore(self, state: State) -> None:
        """Restore what was given before a checkpoint, whose time becomes 0."""

    def resume(self, now: float) -> None:
        """Take the time of the checkpoint for the present one: the run resumes."""

    def learn(self, answered: Iterable[int], lost: Iterable[int] = ()) -> None:
        """Note which workers a combiner says have answered: they get the next model; and which of them are lost."""

    def lose(self, peer: Peer) -> None:
        """Note that a worker is lost, before its combiner says so."""

    def hand_over(self, closed: Closed, *, last: bool) -> dict[int, tuple[int, ...]]:
        """Take the validators that get the next model; see `LateReaders`."""
        return {}

    @property
    def absent(self) -> tuple[Peer, ...]:
        """The processes that are lost, and those whose replacements get no model yet."""
        return ()

    @property
    def validators(self) -> tuple[int, ...]:
        """The validators that get the latest model."""
        return ()

    def among(self, readers: tuple[Peer, ...]) -> tuple[Peer, ...]:
        """Return the readers that get the next model."""
        return readers

    def have(self, reader: Peer, round: int) -> bool:
        """Return whether a reader got the model of a round."""
        return True

    def turn(self, round: int) -> frozenset[int]:
        """Begin a round with the model that they got; return the rounds of earlier models that may still be read."""
        return frozenset()


class LateReaders(Readers):
    """Workers miss the models of rounds that close without them.

    A worker that has not answered a model may not have adopted it yet, so the model's memory stays as it is. If
    validators may be lost, these miss models, too, and so do the workers that another validator is about to serve.
    """

    def __init__(self, roster: Roster, round: int) -> None:
        """All readers get the model of a round."""
        self._roster = roster
        self._given = dict.fromkeys(range(roster.workers), round)
        self._given_validators = dict.fromkeys(range(roster.validators), round)
        self._next_validators = set(self._given_validators)
        # The workers that another validator serves now, until they get a model.
        self._handed_over: set[int] = set()
        # The models before the last one that they may still read: they have not answered them.
        self._reading: dict[int, set[int]] = {}
        self._given_at: dict[int, float] = {}
        self._lost: Counter[int] = Counter()
        self.next: set[int] = set()

    def give(self, round: int, now: float) -> None:
        """Note when the model of a round was sent first."""
        self._given_at.setdefault(round, now)
        kept = {*self._given.values(), round}
        self._given_at = {each: at for each, at in self._given_at.items() if each in kept}

    def late(self, round: int) -> tuple[Peer, ...]:
        """Return the workers that did not get the model of a round, or have not answered it by its end."""
        of_round = {k for k, given in self._given.items() if given == round}
        return tuple(Peer("worker", k) for k in self._given if k not in of_round & self.next)

    def owing(self, round: int, now: float) -> Iterator[Send]:
        """Have the workers that owe answers to models before that of a round send them: the run has resumed."""
        for worker, given in self._given.items():
            if given != round:
                yield Send(Peer("worker", worker), SendAgain(round=given, age=now - self._given_at[given]))

    def state(self, round: int, now: float) -> State:
        """Return, at the end of the round before, which model each worker has, and for how long."""
        given = [[k, each] for k, each in self._given.items() if k not in self._handed_over]
        ages = [[each, now - at] for each, at in self._given_at.items() if each < round]
        return State(facts={"given": given, "ages": ages})

    def restore(self, state: State) -> None:
        """Restore what was given before a checkpoint, whose time becomes 0."""
        # A worker that was lost gets the model at which the run resumes.
        self._given |= {int(k): int(round) for k, round in state.facts["given"]}
        self._given_at = {int(round): -float(age) for round, age in state.facts["ages"]}

    def resume(self, now: float) -> None:
        """Take the time of the checkpoint for the present one: the run resumes."""
        self._given_at = {round: now + at for round, at in self._given_at.items()}

    def learn(self, answered: Iterable[int], lost: Iterable[int] = ()) -> None:
        """Note which workers a combiner says have answered: they get the next model; and which of them are lost."""
        for worker in lost:  # the memory of its model is not read any more
            self._given.pop(worker, None)
            self._reading.pop(worker, None)
            self._lost[worker] = max(self._lost[worker] - 1, 0)
        self.next.update(answered)

    def hand_over(self, closed: Closed, *, last: bool) -> dict[int, tuple[int, ...]]:
        """Take the validators that get the next model.

        Args:
            closed: says it, of a round of validators.
            last: whether that model is the last one, which nobody answers, so that all workers get it.

        Returns:
            The workers that each of them begins to serve. They do not get this model, but the one after it: which of
            them are there is known only when their validator has closed its round.
        """
        before, there = self._next_validators, set(closed.answered)
        fresh = {v for v in there if v not in closed.arrived or v in closed.lost}
        for validator in fresh | (before - there):
            self._given_validators.pop(validator, None)
        self._next_validators = there
        handed: dict[int, tuple[int, ...]] = {}
        for worker in range(self._roster.workers):
            serves = self._roster.validator_of(worker, there)
            if serves is None or serves in fresh or serves != self._roster.validator_of(worker, before):
                if last:
                    self.next.add(worker)
                    continue
                self._handed_over.add(worker)
                self.next.discard(worker)
                if serves is not None:
                    handed[serves] = (*handed.get(serves, ()), worker)
        return handed

    @property
    def validators(self) -> tuple[int, ...]:
        """The validators that get the latest model."""
        return tuple(sorted(self._next_validators))

    def lose(self, peer: Peer) -> None:
        """Note that a worker is lost, before its combiner says so."""
        self._lost[peer.index] += 1

    @property
    def absent(self) -> tuple[Peer, ...]:
        """The processes that are lost, and those whose replacements get no model yet."""
        there = {k for k in self._given.keys() | self.next if not self._lost[k]}
        workers = (peer for peer in self._roster.all_workers() if peer.index not in there)
        return (*workers, *(peer for peer in self._roster.all_validators() if peer.index not in self._next_validators))

    def among(self, readers: tuple[Peer, ...]) -> tuple[Peer, ...]:
        """Return the readers that get the next model: validators, and the workers that have answered."""
        there = {"validator": self._next_validators, "worker": self.next}
        return tuple(peer for peer in readers if peer.index in there[peer.role])

    def have(self, reader: Peer, round: int) -> bool:
        """Return whether a reader got the model of a round."""
        given = self._given if reader.role == "worker" else self._given_validators
        return given.get(reader.index) == round

    def turn(self, round: int) -> frozenset[int]:
        """Begin a round with the model that they got; return the rounds of all models that may still be read."""
        for worker in self.next:
            if worker in self._handed_over and worker in self._given:
                self._reading.setdefault(worker, set()).add(self._given[worker])
            else:
                self._reading.pop(worker, None)
        self._given |= dict.fromkeys(self.next, round)
        self._given_validators |= dict.fromkeys(self._next_validators, round)
        self._handed_over -= self.next
        self.next = set()
        return frozenset({*self._given.values(), *chain.from_iterable(self._reading.values())})

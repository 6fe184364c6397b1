"""Audits: workers commit to their states, and a validator executes some of their local steps again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcps.errors import RunError, message_of
from hpcps.numerics.layout import Vector
from hpcps.numerics.state import PackedState, State
from hpcps.protocol.messages import Absent, AuditedState, AuditRequest, Peer, ProbeStep, Update
from hpcps.roles.events import Compute, Effect, Record, Send
from hpcps.roles.resources import Replicas, Resources
from hpcps.roles.update.packer import Packer
from hpcps.seeds import numbered
from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer

_DRAWS = 2.0**63
_FORM = 1
"""The form of committed states. Before there was one, a state had a residual also if the worker had none."""


def committed_state(trainer: Trainer, packer: Packer) -> PackedState:
    """Return what decides, with a model and the data, on the next update of a worker.

    These are the optimizer's state, the BatchNorm statistics, the positions in the data and in the random streams, the
    memory of the update and of its compressor. The parameters are not among them, because the next model replaces them.
    """
    return PackedState.of(State().having(trainer=trainer.own_state(), packer=packer.honest_state()))


class Commitments:
    """The chain of a worker's states: its state after one round is the one before the next.

    The worker keeps the state before its present round, so that it can hand it over.
    """

    def __init__(self, trainer: Trainer, packer: Packer) -> None:
        self._trainer, self._packer = trainer, packer
        self._before: PackedState | None = None
        self._after: PackedState | None = None

    def begin(self) -> None:
        """Note the state with which the process begins, before its first local steps from a model."""
        if self._after is None:
            self._after = committed_state(self._trainer, self._packer)

    def commit(self) -> str:
        """Return the commitment to the state after the local steps and the encoding of their update."""
        self._before, self._after = self._after, committed_state(self._trainer, self._packer)
        return self._after.checksum()

    def hand_over(self, round: int) -> AuditedState:
        """Return the message with the state before the local steps of the round of the last commitment."""
        before, after = self._before, self._after
        assert before is not None, "an update of this process was committed to"
        assert after is not None, "an update of this process was committed to"
        steps = after.facts["trainer"]["steps"] - before.facts["trainer"]["steps"]
        return AuditedState(
            round=round, steps=steps, facts=before.facts, arrays=before.arrays, values=before.values
        )  # fmt: skip


class Transcript:
    """The checksum of an answer, partition by partition."""

    def __init__(self) -> None:
        self._found = hashlib.sha256()

    def add(self, partition: int, mask: np.ndarray, values: Vector) -> None:
        """Add the next partition."""
        self._found.update(partition.to_bytes(4, "little") + np.packbits(mask).tobytes())
        self._found.update(np.ascontiguousarray(values).view(np.uint8).data)

    def end(self) -> str:
        """Return the checksum; that of an answer without an update if no partition was added."""
        return self._found.hexdigest()


@dataclass(frozen=True)
class DueAudit:
    """An update that is executed again.

    Attributes:
        worker: the index of its worker.
        round: its round.
        steps: the number of its local steps.
        before: the commitment to the state before them; empty for the initial state.
        after: the commitment to the state after them.
        answer: the checksum of what the worker sent.
        state: the state that the worker handed over; None if it handed over none that can be read.
    """

    worker: int
    round: int
    steps: int
    before: str
    after: str
    answer: str
    state: PackedState | None

    def facts(self) -> list[object]:
        """Return what a checkpoint contains beside the state."""
        table = None if self.state is None else self.state.arrays
        facts = None if self.state is None else self.state.facts
        return [self.worker, self.round, self.steps, self.before, self.after, self.answer, facts, table]


class Auditor:
    """A validator's audits: it draws workers of each round, gets their states, and executes their steps again.

    The audits of a round are executed in the next one, after the local steps of the validator: the workers train
    meanwhile. Their result is there before the updates of that round are combined.

    Attributes:
        excluded: the workers that are excluded.
    """

    def __init__(self, peer: Peer, run: Run, share: tuple[Peer, ...], replicas: Replicas):
        """Prepare the audits of a validator.

        Args:
            peer: the validator.
            run: the run.
            share: its workers.
            replicas: builds the trainers of workers.
        """
        self._peer, self._run, self._share, self._new = peer, run, share, replicas
        # Attackers are simulated in the run; an audit executes what an honest worker does.
        self._honest = run.model_copy(update={"attack": type(run).model_fields["attack"].default})
        self._draws = {worker: numbered(run.seed, "worker", worker.index, "audit") for worker in share}
        self._replicas: dict[int, tuple[Trainer, Packer]] = {}
        self._commitments: dict[Peer, str] = {}
        self.excluded: list[Peer] = []
        # Of the present round.
        self._coming: dict[Peer, str] = {}
        self._transcripts: dict[Peer, Transcript] = {}
        self._asked: dict[Peer, AuditedState | None] | None = None
        self._owing: set[Peer] = set()
        self._early: dict[Peer, AuditedState | None] = {}
        # The model of a round whose audits are due, what decides on the learning rate, and these audits.
        self._model: Vector = np.zeros(0, np.float32)
        self._epoch: int | None = None
        self._audits: list[DueAudit] = []

    # Messages

    def compare_probe(self, source: Peer, probe: ProbeStep) -> None:
        """Check that a worker computes the same bits as this validator.

        Raises:
            RunError: it does not.
        """
        if probe.checksum != self._new.probe:
            raise RunError(
                f"{source} and {self._peer} get different bits from the same local step, so no audit is possible: use "
                "processors and libraries of one kind for both, or leave out validation.audit"
            )

    def draws(self, worker: Peer, round: int) -> bool:
        """Return whether the update of a worker is audited in a round."""
        drawn = self._draws[worker](round) < self._run.validation.audit.share * _DRAWS
        return drawn and worker not in self.excluded

    def note(self, source: Peer, answer: Update | Absent, round: int) -> None:
        """Note the commitment in an answer of the present round, and what the worker sent if it will be audited."""
        if source not in self._draws or answer.round != round:
            return
        if answer.commitment is not None:
            self._coming[source] = answer.commitment
        if self.draws(source, round):
            transcript = self._transcripts.setdefault(source, Transcript())
            if isinstance(answer, Update):
                transcript.add(answer.partition, answer.mask, answer.values)

    def ask(self, round: int, *, last: bool, suspends: bool) -> Iterator[Effect]:
        """Once in a round, when all answers have come: ask the drawn workers for their states.

        Args:
            round: the round.
            last: whether no round follows, so that nobody can be excluded any more.
            suspends: whether the run stops at a checkpoint after the round. All workers hand over their states then
                without being asked, and end.
        """
        if self._asked is not None:
            return
        drawn = [] if last else [worker for worker in self._share if self.draws(worker, round)]
        self._asked, self._owing = dict.fromkeys(drawn), set(drawn)
        early, self._early = self._early, {}
        for worker in drawn:
            if not suspends:
                yield Send(worker, AuditRequest(round=round))
            elif worker in early:
                self.take(worker, early[worker])

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The workers whose states have not come."""
        return tuple(sorted(self._owing))

    def take(self, source: Peer, state: AuditedState | None) -> None:
        """Take the state of a worker, or that what it sent in place of the state cannot be used."""
        if self._asked is None:
            self._early[source] = state
        elif source in self._owing:
            self._owing.discard(source)
            self._asked[source] = state

    def end_round(self, round: int, model: Vector, epoch: int | None) -> None:
        """Keep what the audits of a round need.

        Args:
            round: the round.
            model: its model `[d]`.
            epoch: the epochs that are over for the learning rate of workers; None if those of their own steps count.
        """
        asked, self._asked = self._asked or {}, None
        policy = self._run.train.policy is not None
        for worker, handed in asked.items():
            state = None
            steps = self._run.train.steps_per_round if not policy else 0
            if handed is not None and handed.round == round:
                state = PackedState(handed.facts, handed.arrays, handed.values.copy())
                steps = handed.steps if policy else steps
            before, after = self._commitments.get(worker, ""), self._coming.get(worker, "")
            answer = self._transcripts.get(worker, Transcript()).end()
            self._audits.append(DueAudit(worker.index, round, steps, before, after, answer, state))
        if self._audits:
            self._model, self._epoch = model.copy(), epoch
        self._commitments |= self._coming
        self._coming, self._transcripts, self._early = {}, {}, {}

    # Audits

    @property
    def due(self) -> Compute | None:
        """The audits of the last round; None if there are none."""
        if not self._audits:
            return None
        return Compute("audit", self._execute, steps=sum(a.steps for a in self._audits if not self._exceeds(a.steps)))

    def _execute(self) -> list[tuple[DueAudit, str]]:
        """Execute the audits; return each with what it proves, empty for a worker that did what it should."""
        return [(audit, self._proof(audit)) for audit in self._audits]

    def conclude(self, found: list[tuple[DueAudit, str]]) -> Iterator[Effect]:
        """Exclude the workers of whom something is proved; record the audits."""
        self._audits, self._model = [], np.zeros(0, np.float32)
        yield Record("audits", {"of": found[0][0].round, "workers": [audit.worker for audit, _ in found]})
        for audit, proof in found:
            if proof:
                self.excluded.append(Peer("worker", audit.worker))
                yield Record("excluded", {"worker": audit.worker, "of": audit.round, "proof": proof})

    def _proof(self, audit: DueAudit) -> str:
        if audit.state is None:
            return "it handed over no state"
        if self._exceeds(audit.steps):
            return "it claims more local steps than the policy ever allows"
        trainer, packer = self._replica(audit.worker)
        checksum = audit.before or self._initial(audit.worker)
        if audit.state.checksum() != checksum:
            return "the state before its local steps is not the one that it committed to"
        try:
            answer, after = self._repeat(trainer, packer, audit)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
            # A lack of memory proves nothing, and torch has no class of its own for it.
            if "memory" in message_of(error):
                raise
            return "the state before its local steps cannot be used"
        if answer != audit.answer:
            return "its local steps give another update"
        return "" if after == audit.after else "its local steps give another state"

    def _exceeds(self, steps: int) -> bool:
        """Return whether local steps, which would keep the validator busy, are more than the policy ever allows."""
        policy = self._run.train.policy
        return policy is not None and steps > policy.most

    def _initial(self, worker: int) -> str:
        """Return the checksum of the state with which a worker begins."""
        trainer, packer = self._new_replica(worker)
        if self._run.train.first_step == "overwritten":
            with np.errstate(over="ignore", invalid="ignore"):
                trainer.train(1)
        return committed_state(trainer, packer).checksum()

    def _repeat(self, trainer: Trainer, packer: Packer, audit: DueAudit) -> tuple[str, str]:
        """Execute the round of a worker again; return the checksums of its answer, and of the state after it."""
        assert audit.state is not None, "it was handed over"
        state = audit.state.unpacked()
        packer.restore(state.part("packer"))
        base, residual = self._model.copy(), packer.residual
        if residual is not None:
            np.add(self._model, residual, out=base)
        before = state.part("trainer")
        trainer.restore(State({**before.arrays, "parameters": base}, before.facts))
        trainer.train(audit.steps, epoch=self._epoch)
        packed = packer.pack(trainer, base, audit.round, 0)
        transcript = Transcript()
        for place in range(len(packed.parts)):
            part = packer.encode(packed, place)
            transcript.add(part.number, part.mask, part.payload)
        return transcript.end(), committed_state(trainer, packer).checksum()

    def _replica(self, worker: int) -> tuple[Trainer, Packer]:
        if worker not in self._replicas:
            self._replicas[worker] = self._new_replica(worker)
        return self._replicas[worker]

    def _new_replica(self, worker: int) -> tuple[Trainer, Packer]:
        trainer, peer = self._new.build("worker", worker), Peer("worker", worker)
        memory = Resources()
        packer = Packer(peer, self._honest, (self._peer,), trainer.layout, memory.allocate, memory.local)
        return trainer, packer

    # Checkpoints

    def state(self) -> State:
        """Return the commitments, the excluded workers, and the audits that are due."""
        facts = {
            "form": _FORM,
            "commitments": {str(worker): commitment for worker, commitment in self._commitments.items()},
            "excluded": [worker.index for worker in self.excluded],
            "epoch": self._epoch,
            "audits": [audit.facts() for audit in self._audits],
        }
        handed = {str(n): audit.state.values for n, audit in enumerate(self._audits) if audit.state is not None}
        return State({"model": self._model, **handed}, facts)

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        facts = state.facts
        self._commitments = {Peer.parse(name): each for name, each in facts["commitments"].items()}
        self.excluded = [Peer("worker", index) for index in facts["excluded"]]
        self._model, self._epoch = state.arrays["model"], facts["epoch"]
        self._audits = []
        # The state after the steps of an audit would have another form than the one that its worker has committed to.
        due = facts["audits"] if facts.get("form") == _FORM else []
        for number, (worker, round, steps, before, after, answer, kept, table) in enumerate(due):
            handed = None if kept is None else PackedState(kept, table, state.arrays[str(number)])
            self._audits.append(DueAudit(worker, round, steps, before, after, answer, handed))

"""The evaluator, and how the coordinator gives it the models: one at a time, always the latest that is due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcps.errors import RunError
from hpcps.numerics.layout import Allocate, Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import (
    Evaluate,
    Evaluated,
    EvaluationRecorded,
    Flag,
    Message,
    NoMoreModels,
    NotEvaluated,
    Peer,
)
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.roles.checks import unwanted, wrong_size
from hpcps.roles.evaluation_job import Died, EvaluationJob, ModelEvaluations
from hpcps.roles.events import Computed, Effect, Event, Finish, Record, SaveEvaluation, Send, SetDeadline, Start
from hpcps.roles.losses import record_loss
from hpcps.roles.messaging_role import MessagingRole
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Evaluation

_ATTEMPTS = 2
"""How often the evaluation of a model may begin, because the process that evaluates has ended."""


class EvaluatorRole(MessagingRole):
    """Evaluates one model after another for the coordinator; it has the shard of the coordinator, but does not train.

    A model is read where the coordinator keeps it, and loaded into the network before the answer. The wait for the next
    model has no limit: the other roles wait for the coordinator too, and end the run if they lose it.

    If the process that evaluates is not that of the role, it may end at any moment: another one takes its place.

    Where the coordinator may be lost, its replacement may send a model while the last one of its predecessor is being
    evaluated, which nobody waits for any more.
    """

    def __init__(self, peer: Peer, run: Run, evaluations: ModelEvaluations) -> None:
        super().__init__(peer, run)
        self.round = 0
        self.device = evaluations.device
        self.evaluations = evaluations
        self._coordinator = Roster.of(run).coordinator
        self._ended_by = SERVER_0 if run.survives_coordinator else self._coordinator
        self._deaths = 0  # of the process that evaluated the present model
        # The model under way; what came meanwhile, of a replacement of the coordinator; which model came last.
        self._present: Evaluate | None = None
        self._next: Evaluate | None = None
        self._last = -1, -1
        self._end: Finish | None = None

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Start():
                yield SetDeadline((self._coordinator,), limited=False)
            case Received(source, Evaluate() as message) if source == self._coordinator:
                yield from self._take(message)
            case Received(source, NoMoreModels(flags=flags)) if source == self._ended_by:
                yield from self._stop(Finish(suspended=Flag.SUSPEND in flags))
            case Received() | Malformed():
                reason = unwanted(event, "the evaluator")
                raise RunError(f"{self.peer} cannot use what {event.source} sent in round {self.round}: {reason}")
            case Computed("evaluate", (job, Died() as died)) if self._end is None:
                yield from self._repeat(job, died)
            case Computed("evaluate", (_, evaluation)):
                yield from self._answer(evaluation)

    def _take(self, message: Evaluate) -> Iterator[Effect]:
        """Take a model; one that was sent again, because this process may not have got it, comes once."""
        which = message.incarnation, message.number
        if which <= self._last:
            return
        self._last = which
        if self._present is None:
            yield from self._evaluate(message)
        else:
            self._next = message

    def _evaluate(self, message: Evaluate) -> Iterator[Effect]:
        """Evaluate a model."""
        size = self.evaluations.parameters
        self.round, self._present, self._deaths = message.round, message, 0
        if reason := wrong_size(message.values, size + self.evaluations.statistics):
            raise RunError(f"{self.peer} cannot use the model of round {self.round} of {self._coordinator}: {reason}")
        job = EvaluationJob(self.round, (), (), message.values[:size], message.values[size:])
        yield self.evaluations.evaluating(job)

    def _repeat(self, job: EvaluationJob, died: Died) -> Iterator[Effect]:
        """Evaluate a model again, in a new process; give it up if that ends too."""
        self._deaths += 1
        self.evaluations.restart()
        again = self._deaths < _ATTEMPTS
        facts = {"pid": died.pid, "how": died.how, "again": again, "next_pid": self.evaluations.pid}
        yield Record("evaluator_died", facts)
        if again:
            yield self.evaluations.evaluating(job)
            return
        reason = f"the process that evaluates ended {self._deaths} times; the last one, {died.pid}, {died.how}"
        of = self._present
        assert of is not None, "it has been evaluated"
        self._present = None
        if self._next is None:
            answer = NotEvaluated(round=of.round, incarnation=of.incarnation, number=of.number, reason=reason)
            yield Send(self._coordinator, answer)
        yield from self._go_on()

    def _go_on(self) -> Iterator[Effect]:
        """Evaluate what a replacement of the coordinator has sent meanwhile."""
        following, self._next = self._next, None
        if following is not None:
            yield from self._evaluate(following)

    def _answer(self, evaluation: Evaluation | None) -> Iterator[Effect]:
        of, self._present = self._present, None
        if self._end is not None:
            yield self._end
            return
        if self._next is None and evaluation is not None and of is not None:
            yield SaveEvaluation(evaluation)
            yield Record("evaluated")
            yield Send(
                self._coordinator,
                Evaluated(
                    round=of.round,
                    incarnation=of.incarnation,
                    number=of.number,
                    finite=evaluation.finite,
                    accuracy=evaluation.accuracy,
                    loss=evaluation.loss,
                    samples=evaluation.samples,
                    perplexity=evaluation.perplexity,
                    top5=evaluation.top5,
                    class_accuracy={str(number): share for number, share in enumerate(evaluation.by_class)},
                ),
            )
        yield from self._go_on()

    def _stop(self, end: Finish) -> Iterator[Effect]:
        """End; first cancel the evaluation under way, which a run that resumes repeats, and others do not need."""
        self._end = end
        if self._present is not None:
            self.evaluations.cancel()
        else:
            yield end

    def restore(self, state: State) -> None:
        """Do nothing: the coordinator keeps the models that are not evaluated."""


class EvaluatorClient:
    """Gives the evaluator the models of the coordinator, and takes their evaluations.

    It keeps at most two models: the one that the evaluator has, and the latest one after it. So the coordinator never
    waits during the training, and needs no more memory if the evaluator is slow or stopped. A model that a later one
    replaces is recorded as not evaluated.

    Attributes:
        incarnation: the number of the coordinator's process, if it replaces a lost one.
    """

    def __init__(self, peer: Peer, allocate: Allocate, told: tuple[Peer, ...]) -> None:
        """Create the client.

        Args:
            peer: the coordinator.
            allocate: allocates the memory of the models, which the evaluator may read in place.
            told: those that are told which evaluations are recorded, and end the evaluator; if none, this role does.
        """
        self._peer = peer
        self._allocate, self._told = allocate, told
        self.incarnation = 0
        self._number = -1  # of the model that was sent last
        self._away = False
        self._buffers: tuple[Vector, ...] = ()
        # The model that the evaluator has, whose memory must not change; the next one.
        self._sent: EvaluationJob | None = None
        self._next: EvaluationJob | None = None
        self._sent_buffer = 1
        self._resumed = False
        self._ending = False

    def submit(self, job: EvaluationJob) -> Iterator[Effect]:
        """Have a model evaluated, in place of an earlier one that waits."""
        if self._next is not None:
            yield from self._next.omission("a later model came first")
        self._next = self._kept(job)
        yield from self.send()

    def _kept(self, job: EvaluationJob) -> EvaluationJob:
        """Return a job with its vectors in the memory that the evaluator does not read at present."""
        size = job.model.size
        if not self._buffers:
            self._buffers = tuple(self._allocate(size + job.statistics.size) for _ in range(2))
        buffer = self._buffers[1 - self._sent_buffer]
        buffer[:size], buffer[size:] = job.model, job.statistics
        return replace(job, model=buffer[:size], statistics=buffer[size:])

    def send(self) -> Iterator[Effect]:
        """Send the latest model if the evaluator is free; after a resume first the one that it had."""
        if self._away:
            return
        if self._resumed:
            self._resumed = False
            self._number += 1
            yield self._message()
        elif self._sent is None and self._next is not None:
            self._sent, self._next = self._next, None
            self._sent_buffer = 1 - self._sent_buffer
            self._number += 1
            yield self._message()

    def _message(self) -> Send:
        assert self._sent is not None, "there is a model to send"
        values = self._buffers[self._sent_buffer]
        return Send(
            EVALUATOR,
            Evaluate(round=self._sent.round, incarnation=self.incarnation, number=self._number, values=values),
        )

    def note(self, event: Lost | Replaced) -> Iterator[Effect]:
        """Send the model that a lost evaluator had to its replacement."""
        self._away = isinstance(event, Lost)
        if isinstance(event, Lost):
            yield record_loss(event)
            return
        yield Record("replaced", {"process": str(event.peer)})
        if self._sent is not None and not self._resumed:
            yield self._message()
        yield from self.send()

    def take(self, message: Message) -> Iterator[Effect]:
        """Record an evaluation, and send the next model; end the role if it has waited for the evaluation.

        Raises:
            RunError: the message is no answer to the model that was sent.
        """
        job = self._sent
        if not isinstance(message, (Evaluated, NotEvaluated)):
            raise self.unusable(f"a message {message.kind}")
        if message.incarnation < self.incarnation:
            return  # it is for a predecessor of this process
        if job is None or (message.round, message.number) != (job.round, self._number):
            raise self.unusable(f"a message {message.kind} of round {message.round}")
        self._sent = None
        if isinstance(message, NotEvaluated):
            yield from job.omission(message.reason)
        else:
            yield from job.records(message.fields, finite=message.finite)
        for server in self._told:
            yield Send(server, EvaluationRecorded(epoch=job.epochs[-1]))
        yield from self.send()
        if self._ending:
            yield from self.finish()

    def unusable(self, what: str) -> RunError:
        """Return the error of a message that is no evaluation."""
        return RunError(
            f"{self._peer} waits for the evaluation of a model, and cannot use what {EVALUATOR} sent: {what}"
        )

    def finish(self) -> Iterator[Effect]:
        """End the evaluator and this role once all models are evaluated."""
        if self._sent is None and self._next is None:
            yield from self.release(Flag.NONE)
            yield Finish()
        else:
            self._ending = True
            yield SetDeadline((EVALUATOR,))

    def release(self, flags: Flag) -> Iterator[Effect]:
        """Tell the evaluator that no model follows, unless others do; with `Flag.SUSPEND` it stops at once."""
        if not self._told:
            yield Send(EVALUATOR, NoMoreModels(flags=flags))

    def state(self) -> State:
        """Return the models that are not evaluated, the one that the evaluator has first."""
        jobs = [job for job in (self._sent, self._next) if job is not None]
        facts = [{"round": job.round, "epochs": job.epochs, "fields": job.fields} for job in jobs]
        vectors = {f"model {n}": job.model for n, job in enumerate(jobs)}
        vectors |= {f"statistics {n}": job.statistics for n, job in enumerate(jobs)}
        return State(vectors, {"jobs": facts})

    def restore(self, state: State) -> None:
        """Restore the models; `send` sends the first of them."""
        for number, facts in enumerate(state.facts["jobs"]):
            model, statistics = (state.arrays[f"{name} {number}"] for name in ("model", "statistics"))
            epochs, fields = tuple(facts["epochs"]), tuple(facts["fields"])
            job = self._kept(EvaluationJob(facts["round"], epochs, fields, model, statistics))
            if number == 0:
                self._sent, self._sent_buffer = job, 1 - self._sent_buffer
                self._resumed = True
            else:
                self._next = job

"""ZenoPS's asynchronous mode as one plain loop over events in order of time, written from its description alone.

As in `reference.py`, a model is a list of tensors and every rule a loop over blocks. Computing takes no time: only the
delays that the experiment adds do, so they decide the order of all messages, and no two messages wait at once.
"""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from made import Made, Replayed
from opened import Opened
from plain_rules import Array, attack
from plain_training import Blocks, evaluate
from reference import DRAWN, Test, flat, initial_model, sent_by_run

from hpcps import seeds
from hpcps.spec.schema import Run


@dataclass
class Cycle:
    """H local steps of a worker and the message after them."""

    loss: float
    delay: float
    version: int  # of the model that the worker trained from
    participated: bool
    sent: int  # blocks
    attacked: int


@dataclass
class Refresh:
    """H local steps of a validator and the messages that it handled after them."""

    loss: float
    version: int  # of the model that it began with
    participants: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    sent: int = 0  # pairs of an update and a block
    accepted: int = 0
    negated: int = 0


@dataclass
class AppliedUpdate:
    """An update that changed the model."""

    validator: int
    worker: int
    staleness: int


@dataclass(order=True)
class Arrival:
    """A worker's message at its validator; a block left out is None, `residual` is what the worker keeps.

    It has no cycle if the run has not got so far.
    """

    time: float
    worker: int
    cycle: Cycle | None = field(default=None, compare=False)
    update: list[Array | None] = field(default_factory=list, compare=False)
    residual: Blocks = field(default_factory=list, compare=False)


@dataclass
class History:
    """What happened: `cycles[k]`, `refreshes[v]`, updates and tests in order, the first model and the last."""

    cycles: list[list[Cycle]]
    refreshes: list[list[Refresh]]
    applied: list[AppliedUpdate] = field(default_factory=list)
    tests: list[Test] = field(default_factory=list)
    models: list[Array] = field(default_factory=list)


class AsyncTrainer(Replayed):
    """A trainer with the proximal step, and the learning rate of its role."""

    def __init__(self, made: Made, run: Run, data: Opened, role: str, index: int, shard: int, start: Blocks) -> None:
        super().__init__(made, run, data, role, index, shard, start)
        self.scale = math.sqrt(1 / (run.topology.workers + 1)) if run.train.lr_scale == "sqrt_workers" else 1.0
        decay = run.train.lr_decay
        self.decay_epochs = decay.epochs
        self.proximal = run.asynchronous.proximal.worker
        if role == "validator":
            # Under a rule without a score it takes the overwritten first step at most, and no proximal step.
            self.proximal = run.asynchronous.proximal.validator if run.validation.rule.kind == "zeno++" else 0.0
            if decay.validator_epochs is not None:
                self.decay_epochs = decay.validator_epochs
        self.follows: int | None = None  # the epoch that the learning rate decays by, if it is not its own

    @property
    def epoch(self) -> int:
        return self.steps // self.steps_per_epoch

    def learning_rate(self) -> float:
        epoch = self.epoch if self.follows is None else self.follows
        decays = sum(epoch >= decay for decay in self.decay_epochs)
        return self.train.optimizer.lr * self.scale * self.train.lr_decay.factor**decays

    def local_step(self, c: Blocks, *, move: bool = True) -> None:
        self.step(move=move, anchor=c, pull=self.proximal)


class Simulation:
    """The state of a run: what each process has, and what is on its way."""

    def __init__(self, run: Run, data: Opened, made: Made) -> None:
        self.run, self.data, self.made = run, data, made
        W, V = run.topology.workers, run.topology.validators
        start = initial_model(run)
        shards = run.data.shards or W + 1
        self.workers = [AsyncTrainer(made, run, data, "worker", k, k, start) for k in range(W)]
        self.validators = [AsyncTrainer(made, run, data, "validator", v, shards - 1, start) for v in range(V)]
        self.scores = run.validation.rule.kind == "zeno++"
        self.draws = [
            {what: seeds.generator(run.seed, "worker", k, what) for what in (*DRAWN, "delay")} for k in range(W)
        ]
        self.history = History([[] for _ in range(W)], [[] for _ in range(V)])
        self.arrivals: list[Arrival] = []  # a heap

        if run.train.first_step == "overwritten":
            # The first step is taken before there is a model; validator 0's becomes everyone's.
            for trainer in self.workers + self.validators:
                trainer.local_step(start)
            start = self.validators[0].read()
        self.model, self.version = start, 0
        self.epoch = 0  # of validator 0, as the model's readers learn it
        self.history.models.append(flat(start))
        self.base = [start] * W  # c of each worker
        self.pulled = [0] * W  # the version that each worker trains from
        self.v: dict[int, Blocks] = {}  # of each validator
        self.current: dict[int, Refresh] = {}
        self.learnt_epoch = [0] * V  # by each validator, with the model of its refresh
        self.ended = False

    def play(self) -> History:
        for validator in range(len(self.validators)):
            self.refresh(validator)
        for worker in range(len(self.workers)):
            self.pull(worker, [np.zeros_like(x) for x in self.model], 0.0)
        while not self.ended:
            self.handle(heapq.heappop(self.arrivals))
        self.history.models.append(flat(self.model))
        return self.history

    def refresh(self, v: int) -> None:
        """Take H local steps from the current model; their sum is what updates are compared with."""
        trainer, run = self.validators[v], self.run
        trainer.write(self.model)
        self.learnt_epoch[v] = self.epoch
        done = len(self.history.refreshes[v])
        while trainer.steps < (done + 1) * run.train.local_steps:
            trainer.local_step(self.model, move=self.scores)
            # An epoch that ends inside a refresh is tested there; one that ends with it, once the share is handled.
            if run.validation.evaluate == "validator_model" and trainer.steps % run.train.local_steps:
                self.test_if_due(v, trainer.read())
        self.v[v] = [x - c for x, c in zip(trainer.read(), self.model, strict=True)]
        self.current[v] = Refresh(trainer.progress()[0], self.version)

    def test_if_due(self, v: int, values: Blocks) -> None:
        coordinator, tests = self.validators[0], self.history.tests
        while v == 0 and len(tests) < min(coordinator.epoch, self.run.train.epochs):
            loss, accuracy = evaluate(self.run, self.data, coordinator, self.workers, values)
            tests.append(Test(len(tests) + 1, len(self.history.refreshes[0]), coordinator.steps, loss, accuracy))

    def cycle(self, k: int, now: float) -> None:
        """Take H local steps, draw what is sent, and send it after the delay."""
        run, worker, draw = self.run, self.workers[k], self.draws[k]
        number, H = len(self.history.cycles[k]), run.train.local_steps
        if number == len(self.made.sent[k]):  # the run must end before this message would arrive
            heapq.heappush(self.arrivals, Arrival(now + run.heterogeneity.delay.draw(draw["delay"]), k))
            return
        while worker.steps < (number + 1) * H:
            worker.local_step(self.base[k])
        residual = [x - c for x, c in zip(worker.read(), self.base[k], strict=True)]
        B = len(residual)
        participates = draw["participation"].random() < run.communication.participation
        kept = draw["skipping"].random(B) >= run.communication.skip_rate
        attacked = draw["attacked blocks"].random(B) < (run.attack.rate if run.attack.kind != "none" else 0.0)
        update: list[Array | None] = [None] * B
        for b in np.flatnonzero(kept) if participates else ():
            u, residual[b] = residual[b], np.zeros_like(residual[b])
            update[b] = attack(run, u, draw["attack noise"]) if attacked[b] else u
        ours = update if participates else None
        sent_by_run(ours, self.made.sent[k][number], attacked, f"worker {k}, cycle {number}")
        delay = run.heterogeneity.delay.draw(draw["delay"])
        sent, hit = int(participates * kept.sum()), int(participates * (kept & attacked).sum())
        cycle = Cycle(worker.progress()[0], delay, self.pulled[k], participates, sent, hit)
        heapq.heappush(self.arrivals, Arrival(now + delay, k, cycle, update, residual))

    def pull(self, k: int, residual: Blocks, now: float) -> None:
        """Give a worker the model, to which it adds what it has not sent: the point that it trains from."""
        self.base[k] = [x + e for x, e in zip(self.model, residual, strict=True)]
        self.workers[k].write(self.base[k])
        self.pulled[k] = self.version
        if self.run.asynchronous.epochs == "validator":
            self.workers[k].follows = self.epoch
        self.cycle(k, now)

    def handle(self, message: Arrival) -> None:
        """Handle a worker's message: its validator judges it, the server applies it, and the worker goes on."""
        k, cycle, keys = message.worker, message.cycle, self.run.asynchronous
        assert cycle is not None, f"worker {k}: the run has no cycle {len(self.history.cycles[k])}"
        v = k % len(self.validators)
        refresh = self.current[v]
        self.history.cycles[k].append(cycle)
        gets_model = cycle.participated or keys.absent == "reset"
        if v == 0 and gets_model:
            self.epoch = self.validators[0].epoch
        if cycle.participated:
            refresh.participants.append(k)
            self.apply(v, k, message.update)
        else:
            refresh.absent.append(k)
        if gets_model:
            self.pull(k, message.residual, message.time)
        else:
            self.cycle(k, message.time)
        share = len(range(v, len(self.workers), len(self.validators)))
        handled = len(refresh.participants) + len(refresh.absent)
        if handled == (share if keys.updates_per_refresh == "share" else 1):
            self.history.refreshes[v].append(refresh)
            if v == 0:
                self.epoch = self.validators[0].epoch
                self.test_if_due(v, self.model)
                self.ended = self.epoch >= self.run.train.epochs
            if not self.ended:
                self.refresh(v)

    def apply(self, v: int, k: int, update: list[Array | None]) -> None:
        """Judge an update block by block, and add it to the model; zeros do not make a new version."""
        keys, rule, refresh = self.run.asynchronous, self.run.validation.rule, self.current[v]
        epoch = self.validators[v].epoch if v == 0 or keys.epochs == "own" else self.learnt_epoch[v]
        alpha = keys.alpha * keys.alpha_decay.factor ** sum(epoch >= decay for decay in keys.alpha_decay.epochs)
        staleness = self.version - self.pulled[k]
        weight = 1.0
        if rule.kind == "fed_async":
            assert rule.staleness.kind == "polynomial"
            weight = (1 + staleness) ** -rule.staleness.a
        model, applied = list(self.model), False
        for b, u in enumerate(update):
            if u is None:
                continue
            refresh.sent += 1
            factor = zeno_plus_plus(u, self.v[v][b], rule.threshold) if self.scores else 1.0
            refresh.accepted += factor > 0
            refresh.negated += factor < 0
            if factor:  # the validator filters the update and scales it, and the server weights it: each is rounded
                filtered = (factor * u.astype(np.float64)).astype(np.float32)
                model[b] = model[b] + np.float32(weight) * (np.float32(alpha) * filtered)
                applied = True
        if applied:
            self.model = model
            self.version += 1
            self.history.applied.append(AppliedUpdate(v, k, staleness))


def zeno_plus_plus(u: Array, v: Array, threshold: float) -> float:
    """Return what a block u is multiplied by: negative if it is negated, 0 if nothing is to be applied."""
    u, v = u.astype(np.float64), v.astype(np.float64)
    lengths = math.sqrt(total(u * u)), math.sqrt(total(v * v))
    if not all(lengths) or not np.isfinite(lengths).all():
        return 0.0
    s = total(u * v) / (lengths[0] * lengths[1])
    clip = min(1.0, lengths[1] / lengths[0])
    return clip if s >= threshold else clip * s


def total(values: Array) -> float:
    """Return the sum of a block in the order that runs keep: 16 running sums of each 2,048 elements, then these."""
    found = 0.0
    for start in range(0, values.size, 2048):
        segment = values.ravel()[start : start + 2048]
        sums = np.pad(segment, (0, -segment.size % 16)).reshape(-1, 16).sum(axis=0)
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        found += float(sums[0])
    return found


def simulate(run: Run, data: Opened, made: Made) -> History:
    """Run until validator 0 has done its epochs."""
    return Simulation(run, data, made).play()

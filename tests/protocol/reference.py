"""ZenoPS's synchronous rounds as one plain loop: no roles, no messages, no flat vector.

Written from the description of the protocol alone, independently of `hpcps.roles` and `hpcps.rules`, and slow where
slow is plain: a model is a list of tensors, every process an entry of a list, and every rule a loop over blocks.
What it shares with the system is what the protocol does not speak of: networks, initial weights and batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from opened import Opened
from plain_rules import Array, attack, combine
from plain_training import Blocks, Trainer, evaluate

from hpcps import seeds
from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer

DRAWN = ("participation", "skipping", "attacked blocks", "attack noise")


@dataclass
class WorkerRound:
    """What worker k did in a round."""

    loss: float
    accuracy: float
    participated: bool
    sent: int  # blocks
    attacked: int


@dataclass
class ValidatorRound:
    """What validator v did in a round; pairs are of an update and a block."""

    loss: float
    accuracy: float
    participants: list[int]
    received: int
    sent: int
    unusable: int  # sent, but not finite
    accepted: int
    accepted_sent: int


@dataclass
class Test:
    """An evaluation."""

    epoch: int
    round: int  # begun at the time
    step: int  # of the process that tests
    loss: float
    accuracy: float


@dataclass
class History:
    """What happened: `workers[k][r]`, `validators[v][r]`, tests in order, the model before each round and after all."""

    workers: list[list[WorkerRound]]
    validators: list[list[ValidatorRound]]
    tests: list[Test] = field(default_factory=list)
    models: list[Array] = field(default_factory=list)


@np.errstate(over="ignore", invalid="ignore")
def simulate(run: Run, data: Opened) -> History:
    """Run all rounds."""
    W, V, H = run.topology.workers, run.topology.validators, run.train.local_steps
    model = initial_model(run)
    B = len(model)

    shards = run.data.shards or W + 1
    workers = [Trainer(run, data, "worker", k, k, model) for k in range(W)]
    validators = [Trainer(run, data, "validator", v, shards - 1, model) for v in range(V)]
    evaluator = validators[0] if validators else workers[0]
    validators_move = run.validation.rule.kind == "zeno"
    own_network = run.validation.evaluate == "validator_model"
    epochs, per_epoch = run.train.epochs, evaluator.steps_per_epoch

    draws = [{what: seeds.generator(run.seed, "worker", k, what) for what in DRAWN} for k in range(W)]
    evil: set[int] = set()
    if run.attack.kind != "none" and run.attack.scope == "worker":
        order = seeds.generator(run.seed, "experiment", 0, "attackers").permutation(W)
        evil = set(order[: math.floor(run.attack.rate * W)].tolist())

    def attacks(round: int) -> bool:
        """Tell whether the schedule lets the attack act."""
        if run.attack.kind == "none":
            return False
        return round * H // per_epoch >= run.attack.from_epoch and round % run.attack.every < run.attack.on

    history = History([[] for _ in workers], [[] for _ in validators])

    def test(begun: int, values: Blocks) -> None:
        loss, accuracy = evaluate(run, data, evaluator, workers, values)
        history.tests.append(Test(len(history.tests) + 1, begun, evaluator.steps, loss, accuracy))

    def local_step(round: int, trainer: Trainer, *, first: bool = False) -> None:
        flip = run.attack.kind == "label_flip" and attacks(round) and trainer in [workers[k] for k in evil]
        trainer.step(move=first or validators_move or trainer in workers, flip=flip)
        # An epoch that ends inside a round is tested there; one that ends with a round, after the exchange.
        ends_inside = trainer.steps % per_epoch == 0 and trainer.steps % H != 0
        if own_network and trainer is evaluator and ends_inside and len(history.tests) < epochs:
            test(round, trainer.read())

    if run.train.first_step == "overwritten":
        # Everyone takes a step before there is a model, validators under every rule; then validator 0's is everyone's.
        for trainer in workers + validators:
            local_step(0, trainer, first=True)
        if validators:
            model = validators[0].read()
        for trainer in workers + validators:
            trainer.write(model)
    base = [model for _ in workers]  # c of each worker; its x is in its network
    before = model

    for round in range(math.ceil(epochs * per_epoch / H)):
        history.models.append(flat(model))

        for trainer in workers + validators:
            while trainer.steps < (round + 1) * H:
                local_step(round, trainer)

        # What each worker sends, None for a block left out, and what stays with it.
        sent: dict[int, list[Array | None]] = {}
        residuals: list[Blocks] = []
        for k, worker in enumerate(workers):
            draw = draws[k]
            residual = [x - c for x, c in zip(worker.read(), base[k], strict=True)]
            participates = draw["participation"].random() < run.communication.participation
            kept = draw["skipping"].random(B) >= run.communication.skip_rate
            if run.attack.kind != "none" and run.attack.scope == "block":
                attacked = draw["attacked blocks"].random(B) < run.attack.rate
            else:
                attacked = np.full(B, k in evil)
            withheld = run.attack.kind == "silent" and attacks(round) and k in evil
            record = WorkerRound(*worker.progress(), participates and not withheld, 0, 0)
            if withheld and participates:
                record.attacked = int(kept.sum())
            elif participates:
                sent[k] = [None] * B
                for b in range(B):
                    if kept[b]:
                        update, residual[b] = residual[b], np.zeros_like(residual[b])
                        sent[k][b] = update
                        if attacked[b] and run.attack.kind != "silent":
                            # Noise is drawn in every round.
                            corrupted = attack(run, update, draw["attack noise"], model[b] - before[b])
                            sent[k][b] = corrupted if attacks(round) else update
                            record.attacked += attacks(round)
                        record.sent += 1
            residuals.append(residual)
            history.workers[k].append(record)

        # Each validator combines its share; without validators the servers combine everything.
        proposals: list[Blocks] = []
        for v in range(max(V, 1)):
            share = [k for k in range(W) if k % max(V, 1) == v and k in sent]
            accepted = accepted_sent = unusable = 0
            proposal: Blocks = []
            for b in range(B):
                own = validators[v].read()[b] - model[b] if validators_move else None
                updates, good = [], []
                for k in share:
                    u = sent[k][b]
                    good.append(u is not None and bool(np.isfinite(u).all()))
                    unusable += u is not None and not good[-1]
                    updates.append(u if u is not None and good[-1] else np.zeros_like(model[b]))
                change, chosen = combine(run, updates, own)
                proposal.append(model[b] + change if share else model[b])
                accepted += sum(chosen)
                accepted_sent += sum(c and g for c, g in zip(chosen, good, strict=True))
            proposals.append(proposal)
            if V:
                pairs = sum(history.workers[k][round].sent for k in share)
                history.validators[v].append(
                    ValidatorRound(
                        *validators[v].progress(), share, len(share) * B, pairs, unusable, accepted, accepted_sent
                    )
                )
        before = model
        model = [np.mean([proposal[b] for proposal in proposals], axis=0) for b in range(B)]

        # Error reset.
        for k, worker in enumerate(workers):
            base[k] = [x + e for x, e in zip(model, residuals[k], strict=True)]
            worker.write(base[k])
        for validator in validators:
            validator.write(model)

        while len(history.tests) < min(epochs, evaluator.steps // per_epoch):
            test(round + 1, evaluator.read() if own_network else model)

    history.models.append(flat(model))
    return history


def initial_model(run: Run) -> Blocks:
    trainer = build_trainer(run, "worker", 0)
    vector = np.empty(trainer.layout.size, dtype=np.float32)
    trainer.copy_to(vector)
    return [vector[block.offset : block.stop].reshape(block.shape) for block in trainer.layout.blocks]


def flat(model: Blocks) -> Array:
    return np.concatenate([block.ravel() for block in model])

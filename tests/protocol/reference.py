"""ZenoPS's synchronous rounds as one plain loop: no roles, no messages, no flat vector.

Written from the description of the protocol alone, independently of `hpcps.roles` and `hpcps.rules`, and slow where
slow is plain: a model is a list of tensors, every process an entry of a list, and every rule a loop over blocks.
What it shares with the system is what the protocol does not speak of: networks, initial weights, and the local steps,
which are those that the run made (`made.py`). From these it must give the models of the run to the bit.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from made import Made, Replayed, same
from opened import Opened
from plain_rules import Array, attack, combine, mean
from plain_training import Blocks, evaluate

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
def simulate(run: Run, data: Opened, made: Made) -> History:
    """Run all rounds."""
    W, V, H = run.topology.workers, run.topology.validators, run.train.local_steps
    model = initial_model(run)
    B = len(model)

    shards = run.data.shards or W + 1
    workers = [Replayed(made, run, data, "worker", k, k, model) for k in range(W)]
    validators = [Replayed(made, run, data, "validator", v, shards - 1, model) for v in range(V)]
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

    def local_step(round: int, trainer: Replayed, *, first: bool = False) -> None:
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
                        if attacked[b] and run.attack.kind != "silent":
                            # Noise is drawn in every round.
                            corrupted = attack(run, update, draw["attack noise"], model[b] - before[b])
                            update = corrupted if attacks(round) else update
                            record.attacked += attacks(round)
                        sent[k][b] = update
                        record.sent += 1
            sent_by_run(sent.get(k), made.sent[k][round], attacked & attacks(round), f"worker {k}, round {round}")
            residuals.append(residual)
            history.workers[k].append(record)

        # Each validator combines its share; without validators the servers combine everything.
        changes: list[Blocks] = []
        for v in range(max(V, 1)):
            share = [k for k in range(W) if k % max(V, 1) == v and k in sent]
            accepted = accepted_sent = unusable = 0
            changes.append([])
            for b in range(B):
                own = validators[v].read()[b] - model[b] if validators_move else None
                updates, good = [], []
                for k in share:
                    u = sent[k][b]
                    good.append(u is not None and bool(np.isfinite(u).all()))
                    unusable += u is not None and not good[-1]
                    updates.append(u if u is not None and good[-1] else np.zeros_like(model[b]))
                change, chosen = combine(run, updates, own)
                changes[v].append(change if share else np.zeros_like(model[b]))
                accepted += sum(chosen)
                accepted_sent += sum(c and g for c, g in zip(chosen, good, strict=True))
            if V:
                pairs = sum(history.workers[k][round].sent for k in share)
                history.validators[v].append(
                    ValidatorRound(
                        *validators[v].progress(), share, len(share) * B, pairs, unusable, accepted, accepted_sent
                    )
                )
        before = model
        model = [model[b] + mean([change[b] for change in changes]) for b in range(B)]

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


def sent_by_run(update: list[Array | None] | None, sent: tuple[Array, Array] | None, attacked: Array, who: str) -> None:
    """Check what the run sent against an update, and take its values of the attacked blocks, which are sums of many."""
    assert (update is None) == (sent is None), who
    if update is None or sent is None:
        return
    mask, payload = sent
    assert [block is not None for block in update] == mask.tolist(), who
    start = 0
    for b, block in enumerate(update):
        if block is None:
            continue
        got = payload[start : start + block.size].reshape(block.shape)
        start += block.size
        if attacked[b]:
            room = 1e-6 * np.abs(block[np.isfinite(block)]).max(initial=0)
            np.testing.assert_allclose(got, block, rtol=1e-5, atol=room, err_msg=f"{who}, block {b}")
            update[b] = got
        else:
            assert same(got, block), f"{who}, block {b}"
    assert start == payload.size, who


def initial_model(run: Run) -> Blocks:
    trainer = build_trainer(run, "worker", 0)
    vector = np.empty(trainer.layout.size, dtype=np.float32)
    trainer.copy_to(vector)
    return [vector[block.offset : block.stop].reshape(block.shape) for block in trainer.layout.blocks]


def flat(model: Blocks) -> Array:
    return np.concatenate([block.ravel() for block in model])

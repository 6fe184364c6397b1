"""Audits find each worker that does something else than it should, and only such workers."""

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import pytest
from audited import audited, audits_of, play_audited
from executed import lines, run_here
from interrupted import model, play

from hpcps.attacks import Attack, Late, Omniscient, attackers
from hpcps.attacks.sending import ClockAttack
from hpcps.cli.status import overview
from hpcps.errors import RunError
from hpcps.numerics.state import PackedState
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress
from hpcps.registry import active
from hpcps.roles.sync.audit import Auditor, Commitments
from hpcps.roles.sync.worker import SyncWorker
from hpcps.rules import Median, MultiKrum, TrimmedMean

ATTACKS = {
    kind: attack
    for kind, attack in active().of("attacks").items()
    if kind != "none" and not issubclass(attack, ClockAttack)  # a false duration is in no update
}
KEYS = {"copycat": {"round": "last"}, "mimic_variance": {"rounds": 3}, "late": {"seconds": 0.01}}
UPDATE = "its local steps give another update"


def attacked(kind, **tables):
    """Return a run in which 2 of 6 workers attack, and every update is audited."""
    keys = {"kind": kind, "rate": 0.34, **KEYS.get(kind, {})}
    if not issubclass(ATTACKS[kind], Omniscient):
        keys["scope"] = "worker"
    validation = {"rule": {"kind": "trimmed_mean", "f": 2}, "audit": {"share": 1.0}}
    return audited(workers=6, attack=keys, **{"validation": validation, **tables})


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", ATTACKS)
def test_every_attack_on_values_or_labels_is_found(kind, tmp_path):
    run = attacked(kind)
    _, excluded = play_audited(run, tmp_path)
    if issubclass(ATTACKS[kind], Late):
        assert not excluded, "its update is the right one"
    else:
        assert set(excluded) == set(attackers(run.attack, 6, run.seed))
        assert {proof for _, proof in excluded.values()} == {UPDATE}


def test_an_attack_on_what_is_encoded_is_found(tmp_path):
    attack = {"kind": "negative", "rate": 0.34, "scope": "worker", "acts_on": "encoding"}
    run = audited(1.0, workers=6, attack=attack, communication={"compression": {"kind": "qsgd"}})
    _, excluded = play_audited(run, tmp_path)
    assert set(excluded) == set(attackers(run.attack, 6, run.seed))


def test_an_attack_that_rests_is_found_in_the_rounds_in_which_it_acts(tmp_path):
    attack = {"kind": "gaussian", "rate": 0.34, "scope": "worker", "every": 3, "on": 1, "from_epoch": 1}
    run = audited(1.0, workers=6, attack=attack)
    audits, excluded = play_audited(run, tmp_path)
    assert {round for round, _ in excluded.values()} == {3}
    assert set(excluded) == set(attackers(run.attack, 6, run.seed))
    assert {(round, worker) for round in range(3) for worker in excluded} <= set(audits), "they find nothing"


def test_from_then_on_its_updates_count_as_absent_and_fewer_byzantine_ones_are_expected(tmp_path):
    directory = run_here(attacked("sign_flip"), tmp_path)
    _, excluded = audits_of(directory)
    rounds = lines(directory.path, "validator-0", "round")
    assert rounds[0]["participants"] == list(range(6))
    for line in rounds[1:]:
        assert line["excluded"] == line["absent"] == sorted(excluded)
        assert line["received_pairs"] == rounds[0]["received_pairs"] * 4 // 6
    line = lines(directory.path, "validator-0", "excluded")[0]
    assert (line["round"], line["of"]) == (1, 0), "the audits of a round are executed in the next one"
    names = [f"worker-{worker}" for worker in sorted(excluded)]
    assert (
        f"audits have excluded {', '.join(names)}; the last proof, that of {names[-1]}, of round 0: {UPDATE}"
        in overview(SweepProgress([directory.path]).poll())
    )


def test_the_weight_of_an_excluded_worker_does_not_count(tmp_path):
    """Attackers are silent in the first round only, so all that enters the model without audits are honest updates."""
    models = {}
    for share, heavy in product((0.0, 1.0), (1.0, 50.0)):
        run = audited(share, workers=6, attack={"kind": "silent", "rate": 0.34, "every": 1000})
        who = attackers(run.attack, 6, run.seed)
        weights = tuple(heavy if k in who else 1.0 + k for k in range(6))
        run = run.model_copy(update={"validation": run.validation.model_copy(update={"weights": weights})})
        folder = tmp_path / f"{share} {heavy}"
        assert play(run, folder)
        assert set(audits_of(RunDirectory(folder))[1]) == (set(who) if share else set())
        models[share, heavy] = model(folder)
    assert np.array_equal(models[1.0, 1.0], models[1.0, 50.0])
    assert not np.array_equal(models[0.0, 1.0], models[0.0, 50.0])


class Poison(Attack):
    """Sends 5 times the negated update."""

    kind: Literal["poison"] = "poison"

    def corrupt(self, block, context):
        """See `Attack.corrupt`."""
        block *= -5


class Remaining(Poison):
    """The same; the rest of it stays in the residual."""

    kind: Literal["remaining"] = "remaining"
    remains: ClassVar[bool] = True


def test_what_remains_of_an_attack_enters_later_updates_and_the_round_that_began_it_proves_it(tmp_path):
    run, models = audited(0.0, **TOPK), []
    for attack in (Poison, Remaining):
        update = {"attack": attack(rate=0.25, scope="worker", every=1000)}
        assert play(run.model_copy(update=update), tmp_path / attack.__name__)
        models.append(model(tmp_path / attack.__name__))
    assert not np.array_equal(*models)
    assert play(audited(1.0, **TOPK).model_copy(update=update), tmp_path / "audited")
    audits, excluded = audits_of(RunDirectory(tmp_path / "audited"))
    assert list(excluded.values()) == [(0, UPDATE)]
    assert len(audits) > 10


def test_a_majority_of_attackers_is_excluded(tmp_path):
    attack = {"kind": "sign_flip", "rate": 0.7, "scope": "worker"}
    validation = {"rule": {"kind": "average"}, "audit": {"share": 0.3}}
    train = {"epochs": 12, "batch_size": 16, "local_steps": 2, "device": "cpu"}
    run = audited(workers=6, attack=attack, validation=validation, train=train)
    _, excluded = play_audited(run, tmp_path)
    assert set(excluded) == set(attackers(run.attack, 6, run.seed))
    assert len(excluded) == 4


def test_the_rule_expects_fewer_byzantine_updates():
    assert MultiKrum(f=3).without(2, 10).f == 1
    assert MultiKrum(f=0.3).without(1, 10).f == 2
    assert MultiKrum(f=1).without(4, 10).f == 0
    assert TrimmedMean(trim=0.3).without(2, 10) == TrimmedMean(trim=0.3)
    before = TrimmedMean(f=2, before=[{"kind": "nnm"}, {"kind": "nnm", "f": 3}]).without(1, 10).before
    assert [stage.f for stage in before] == [1, 2]
    (default,) = Median(before=[{"kind": "nnm"}]).without(1, 10).before
    assert default.f == 1, "2 of 10 by default"


# Workers of a kind that no attack of the registry is

CHEAT = Peer("worker", 1)


def cheating(monkeypatch, owner, method, act):
    """Have worker 1 do something else in its third round."""
    honest = getattr(owner, method)

    def cheated(self, *arguments):
        return act(self, honest, *arguments)

    monkeypatch.setattr(owner, method, cheated)


def is_due(role):
    """Return whether a role is worker 1 in its third round."""
    return role.peer == CHEAT and role.round == 2


def with_momentum(role, honest, steps):
    """Train from a momentum to which the worker has not committed."""
    if is_due(role):
        state = role._trainer.state()
        for name, values in state.arrays.items():
            if name.startswith("optimizer."):
                values += np.float32(1.0)
        role._trainer.restore(state)
    return honest(role, steps)


def with_residual(role, honest, steps):
    """Add a false residual, which the worker sends later."""
    if is_due(role):
        role._packer.memory.values += np.float32(1.0)
    return honest(role, steps)


def with_other_batches(role, honest, steps):
    """Train on other batches, and go back to those that are due."""
    position = role._trainer.position()
    if is_due(role):
        role._trainer.go_to([position[0], 0, 0])
    found = honest(role, steps)
    if is_due(role):
        role._trainer.go_to([role._trainer.steps_done, *position[1:]])
    return found


def with_fewer_steps(role, honest, steps):
    """Take one step and count both."""
    if is_due(role):
        honest(role, steps - 1)
        return role._trainer.skip(1)
    return honest(role, steps)


TOPK = {"communication": {"compression": {"kind": "topk"}}}


@pytest.mark.parametrize(
    ("act", "tables"),
    [(with_momentum, {}), (with_residual, TOPK), (with_other_batches, {}), (with_fewer_steps, {})],
)
def test_a_worker_that_trains_from_another_state_is_found_in_that_round_only(monkeypatch, tmp_path, act, tables):
    cheating(monkeypatch, SyncWorker, "take_steps", act)
    _, excluded = play_audited(audited(1.0, **tables), tmp_path)
    assert excluded == {1: (2, UPDATE)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("act", [with_momentum, with_residual])
def test_a_false_state_that_no_audit_has_drawn_is_not_found_later(monkeypatch, tmp_path, act):
    """The worker commits to its false state, and does what follows from it: the page of audits says so."""
    cheating(monkeypatch, SyncWorker, "take_steps", act)
    honest = Auditor.draws
    monkeypatch.setattr(Auditor, "draws", lambda self, worker, round: round != 2 and honest(self, worker, round))
    audits, excluded = play_audited(audited(1.0, **(TOPK if act is with_residual else {})), tmp_path)
    assert len(audits) > 10
    assert not excluded


def owner(commitments):
    """Return the index of the worker of commitments."""
    return commitments._packer.attacker._worker


def test_a_worker_that_hands_over_another_state_is_found(monkeypatch, tmp_path):
    def later(self, honest, round):
        if owner(self) == 1 and round == 2:
            self._before = self._after
        return honest(self, round)

    cheating(monkeypatch, Commitments, "hand_over", later)
    _, excluded = play_audited(audited(1.0), tmp_path)
    assert excluded == {1: (2, "the state before its local steps is not the one that it committed to")}


def test_a_worker_that_claims_more_steps_than_anyone_may_take_is_found(monkeypatch, tmp_path):
    """The validator does not take them."""

    def endless(self, honest, round):
        handed = honest(self, round)
        return replace(handed, steps=2**31) if owner(self) == 1 and round == 2 else handed

    cheating(monkeypatch, Commitments, "hand_over", endless)
    train = {"batch_size": 16, "epochs": 3, "device": "cpu", "local_steps": {"kind": "dylu", "most": 4}}
    run = audited(1.0, train=train, simulation={"kind": "modelled", "step": {"kind": "constant", "seconds": 0.1}})
    _, excluded = play_audited(run, tmp_path)
    assert excluded == {1: (2, "it claims more local steps than the policy ever allows")}


@pytest.mark.parametrize("number", [2**70, -1, 0.5, None])
def test_a_worker_whose_state_has_impossible_numbers_is_found(monkeypatch, tmp_path, number):
    """It has committed to this state."""

    def impossible(self, honest):
        honest(self)
        if owner(self) == 1:
            facts = deepcopy(self._after.facts)
            facts["trainer"]["stream"]["position"] = number
            facts["packer"]["streams"]["skipping"]["buffer_pos"] = number
            self._after = replace(self._after, facts=facts)
        return self._after.checksum()

    cheating(monkeypatch, Commitments, "commit", impossible)
    _, excluded = play_audited(audited(1.0, validation={"audit": {"share": 0.4}}), tmp_path)
    assert list(excluded) == [1]


def test_a_worker_that_commits_to_another_state_is_found(monkeypatch, tmp_path):
    def false(self, honest):
        checksum = honest(self)
        return checksum[::-1] if owner(self) == 1 else checksum

    cheating(monkeypatch, Commitments, "commit", false)
    _, excluded = play_audited(audited(1.0), tmp_path)
    assert excluded == {1: (0, "its local steps give another state")}


def test_a_worker_that_commits_to_a_state_that_is_none_is_found(monkeypatch, tmp_path):
    nothing = PackedState({}, [], np.zeros(0, np.float32))

    def empty(self, honest):
        honest(self)
        if owner(self) == 1:
            self._after = PackedState({"trainer": {"steps": 0}}, nothing.arrays, nothing.values)
        return self._after.checksum()

    cheating(monkeypatch, Commitments, "commit", empty)
    _, excluded = play_audited(audited(1.0), tmp_path)
    assert excluded[1][0] == 0
    run = audited(1.0, validation={"audit": {"share": 0.4}})
    _, excluded = play_audited(run, tmp_path / "later")
    assert list(excluded) == [1]


def test_a_lack_of_memory_proves_nothing(monkeypatch, tmp_path):
    """Else a validator would exclude honest workers."""

    def lacking(*_):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes")

    monkeypatch.setattr(Auditor, "_repeat", lacking)
    with pytest.raises(RunError, match=r"\(audit\): RuntimeError: .* not enough memory"):
        play_audited(audited(1.0), tmp_path)

"""What attacks and their schedules do to whole runs in one process."""

import numpy as np
import pytest
import simulated
import toy_trainers
from interrupted import model, play, play_through, records, small

from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.registry import active
from hpcps.roles.update.packer import Packer
from hpcps.spec.checks import contradictions

ALL = {"participation": 1.0, "skip_rate": 0.0}
RULES = {name: rule.mode for name, rule in active().of("rules").items()}
ONE_GRADIENT = {"local_steps": 1, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0}}
NEEDED = {"dc_asgd": {"train": ONE_GRADIENT, "asynchronous": {"absent": "reset"}}}
"""Keys without which a rule is refused."""


def rounds(folder, process):
    return [line for line in records(folder, process) if line["event"] == "round"]


def tiny(mode="sync", rule="average", workers=3, **tables):
    base = {
        "topology": {"workers": workers},
        "data": {"name": "digits", "limit": 16 * (workers + 1), "test_limit": 20},
        "train": {"mode": mode, "epochs": 2, "batch_size": 4, "local_steps": 2},
        "validation": {"rule": {"kind": rule}},
    }
    for table, values in tables.items():
        base[table] = {**base.get(table, {}), **values}
    return small(**base)


@pytest.mark.sample(2, 10)
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_lets_a_value_that_is_not_finite_into_the_model(rule, tmp_path):
    """So both attacks do the same to every rule: their blocks count as skipped."""
    found = []
    for kind in ("nan", "infinite"):
        run = tiny(RULES[rule], rule, workers=7, attack={"kind": kind, "rate": 0.3}, **NEEDED.get(rule, {}))
        assert not contradictions(run)
        folder = tmp_path / kind
        assert play(run, folder)
        attacked = sum(line["blocks_attacked"] for k in range(7) for line in rounds(folder, f"worker-{k}"))
        rejected = sum(line["rejected_blocks"] for line in rounds(folder, "validator-0"))
        assert 0 < rejected <= attacked
        assert rejected == attacked or run.train.mode == "async", "the last updates may come after the end"
        assert not any(line["event"] == "diverged" for line in records(folder, "server-0"))
        found.append(model(folder))
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(*found)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"kind": "sign_flip"}, {"kind": "negative", "scale": 1.0}),
        ({"kind": "gaussian", "scale": 0.1}, {"kind": "random", "scale": 0.1}),
        ({"kind": "zero"}, {"kind": "drop", "share": 1.0}),
        ({"kind": "zero"}, {"kind": "nan"}),
        ({"kind": "late", "scope": "worker", "seconds": 9.0}, {"kind": "none"}),
        ({"kind": "drop", "share": 0.0}, {"kind": "none"}),
    ],
    ids=str,
)
def test_attacks_that_are_special_cases_of_others(one, other, tmp_path):
    for name, attack in (("one", one), ("other", other)):
        more = {} if attack["kind"] == "none" else {"rate": 0.5}
        assert play(tiny(attack={**attack, **more}), tmp_path / name)
    np.testing.assert_array_equal(model(tmp_path / "one"), model(tmp_path / "other"))


# An epoch has two rounds. An asynchronous worker may begin a cycle after the last.
@pytest.mark.sample(3)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", ["sign_flip", "label_flip", "free_rider", "silent"])
def test_records_tell_when_the_attack_acts(kind, mode, tmp_path):
    attack = {"kind": kind, "rate": 0.4, "scope": "worker", "from_epoch": 1, "every": 2}
    rule = "average" if mode == "sync" else "naive_async"
    more = {"asynchronous": {"absent": "reset"}} if mode == "async" else {}
    run = tiny(mode, rule, attack=attack, train={"epochs": 4}, communication=ALL, **more)
    assert play(run, tmp_path)
    lines = [rounds(tmp_path, f"worker-{k}") for k in range(3)]
    attacked = [[line["round"] for line in each if line["blocks_attacked"] and line["round"] < 8] for each in lines]
    assert sorted(attacked) == [[], [], [2, 4, 6]]
    for line in lines[attacked.index([2, 4, 6])]:
        absent = kind == "silent" and line["blocks_attacked"] > 0
        assert line["participated"] is not absent
        if not absent and line["blocks_attacked"]:
            assert line["blocks_attacked"] == line["blocks_sent"]


@pytest.mark.parametrize("kind", ["random", "randomscale", "gaussian", "drop"])
@pytest.mark.parametrize("schedule", [{"every": 3}, {"from_epoch": 4}], ids=str)
def test_a_schedule_does_not_shift_the_draws_after_it(kind, schedule):
    layout = Layout.of([(f"b{b}", (5,)) for b in range(6)])
    whole, resting = (tiny(attack={"kind": kind, "rate": 0.5, **more}) for more in ({}, schedule))
    sent = []
    for run in (whole, resting):
        packer = Packer(Peer("worker", 0), run, (Peer("validator", 0),), layout, np.zeros)
        trainer = toy_trainers.Adding(layout)
        trainer.train(1)
        base = np.zeros(layout.size, np.float32)
        sent.append([])
        for round in range(12):
            packer.memory.values[:] = 0
            packed = packer.pack(trainer, base, round, epoch=round // 2)
            sent[-1].append([(packed.attacked, part.mask.tolist(), part.payload.tolist()) for part in packed.parts])
    acting = [round for round in range(12) if resting.attack.active(round, round // 2)]
    assert 0 < len(acting) < 12
    for round, (always, sometimes) in enumerate(zip(*sent, strict=True)):
        if round in acting:
            assert always == sometimes
        else:
            assert all(attacked == 0 and set(payload) <= {1.0} for attacked, _, payload in sometimes)
    assert any(attacked for always in sent[0] for attacked, _, _ in always)


@pytest.mark.parametrize(("mode", "rule"), [("sync", "average"), ("async", "naive_async")])
def test_if_all_are_free_riders_the_model_stays_where_it_is(mode, rule, tmp_path):
    for kind in ("free_rider", "zero"):
        assert play(tiny(mode, rule, attack={"kind": kind, "rate": 1.0}), tmp_path / kind)
    np.testing.assert_array_equal(model(tmp_path / "free_rider"), model(tmp_path / "zero"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("sends", ["change", "noise"])
def test_a_free_rider_keeps_the_last_model_over_an_interruption(sends, tmp_path):
    attack = {"kind": "free_rider", "sends": sends, "rate": 0.4, "from_epoch": 1, "every": 3, "on": 2}
    run = tiny(attack=attack, train={"epochs": 4})
    assert play(run, tmp_path / "whole")
    play_through(run, tmp_path / "cut", [190, 120, 90])
    assert any("continues" in line for line in records(tmp_path / "cut", "server-0"))
    np.testing.assert_array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))


def test_so_does_an_asynchronous_one():
    layout = Layout.of([("b", (3,))])
    run = tiny("async", "naive_async", workers=1, attack={"kind": "free_rider", "rate": 1.0}, communication=ALL)
    models = [np.array(values, np.float32) for values in ([1, 2, 3], [2, 2, 5], [4, 3, 4])]
    packer, resumed = (Packer(Peer("worker", 0), run, (Peer("validator", 0),), layout, np.zeros) for _ in range(2))

    def sent_after(packer, values):
        packer.attacker.see_model(lambda out: np.copyto(out, values))
        return packer.pack(toy_trainers.Adding(layout), np.ones(3, np.float32), 0, 0).parts[0].payload.tolist()

    assert sent_after(packer, models[0]) == [0, 0, 0]
    assert sent_after(packer, models[1]) == [1, 0, 2]
    state = packer.state()
    resumed.restore(type(state)({name: values.copy() for name, values in state.arrays.items()}, state.facts))
    assert sent_after(packer, models[2]) == sent_after(resumed, models[2]) == [2, 1, -1]


@pytest.mark.thorough
def test_an_interrupted_run_with_other_attacks_ends_as_one_that_was_not(tmp_path):
    for attack in (
        {"kind": "label_flip", "rate": 0.4, "every": 2},
        {"kind": "silent", "rate": 0.4, "from_epoch": 2},
        {"kind": "gaussian", "around": "own", "rate": 0.4, "every": 2},
    ):
        run, folder = tiny(attack=attack, train={"epochs": 4}), tmp_path / attack["kind"]
        assert play(run, folder / "whole")
        play_through(run, folder / "cut", [190, 120])
        assert any("continues" in line for line in records(folder / "cut", "server-0"))
        np.testing.assert_array_equal(model(folder / "cut"), model(folder / "whole"), err_msg=str(attack))


@pytest.mark.parametrize("absent", ["accumulate", "reset"])
def test_no_update_of_a_silent_worker_is_applied(absent, tmp_path):
    layout = Layout.of([("b", (2,))])
    run = toy_trainers.spec(
        "naive_async", workers=3, epochs=8, attack={"kind": "silent", "rate": 0.4}, asynchronous={"absent": absent}
    )
    trainers = {peer: toy_trainers.Quadratic(layout, 4) for peer in toy_trainers.everyone(run) if peer.role != "server"}
    played = toy_trainers.play(tmp_path, run, trainers)
    attackers = [k for k in range(3) if any(line["blocks_attacked"] for line in played.lines(f"worker-{k}", "round"))]
    assert len(attackers) == 1
    applied = {line["reader"] for line in played.log if line["kind"] == "apply"}
    assert applied == {f"worker-{k}" for k in range(3) if k not in attackers}
    assert all(line["blocks_sent"] == 0 for line in played.lines(f"worker-{attackers[0]}", "round"))


def test_a_late_worker_delays_rounds_in_simulated_time(tmp_path):
    attack = {"kind": "late", "seconds": 4.0, "rate": 0.5, "every": 2}
    second = {"step": simulated.constant(1.0)}
    honest = simulated.simulate(tmp_path / "honest", simulated.spec(second, epochs=4))
    late = simulated.simulate(tmp_path / "late", simulated.spec(second, epochs=4, attack=attack))
    assert simulated.times(honest, "server-0") == [1.0, 2.0, 3.0, 4.0]
    assert simulated.times(late, "server-0") == [5.0, 6.0, 11.0, 12.0]
    np.testing.assert_array_equal(honest.model, late.model)
    delays = [[line["delay"] for line in late.lines(f"worker-{k}", "round")] for k in (0, 1)]
    assert sorted(delays) == [[0.0] * 4, [4.0, 0.0, 4.0, 0.0]]


def test_a_late_update_is_stale(tmp_path):
    attack = {"kind": "late", "seconds": 4.5, "rate": 0.5}
    second = {"step": simulated.constant(1.0)}
    run = simulated.spec(second, mode="async", rule="naive_async", validators=1, epochs=12, attack=attack)
    played = simulated.simulate(tmp_path, run)
    staleness = {}
    for line in played.log:
        if line["kind"] == "apply":
            staleness.setdefault(line["reader"], []).append(line["staleness"])
    low, high = sorted(max(values) for values in staleness.values())
    assert low <= 1
    assert high >= 3

"""Whole runs with a policy of local steps: in one process and in virtual time."""

from itertools import pairwise

import numpy as np
import pytest
from interrupted import model, play, records, small
from simulated import constant, simulate, spec

from hpcps.execution.inprocess import run_in_process
from hpcps.execution.role_driver import RoleDriver
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.identity import run_id


def esync(**keys):
    return {"kind": "esync", **keys}


def unequal(c, policy, *, epochs=150, workers=2, slow=(0,), **tables):
    """Return a run in virtual time whose slow workers take `c[0]` seconds for a step, and the others `c[1]`."""
    return spec(
        {"step": constant(c[1])},
        workers=workers,
        train={"epochs": epochs, "local_steps": policy},
        heterogeneity={"slow": {"workers": list(slow), "factor": c[0] / c[1]}},
        **tables,
    )


def taken(played, process):
    return [line["local_steps"] for line in played.lines(process, "round")]


@pytest.mark.sample(3)
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("c", "epsilon", "expected"),
    [((3.5, 0.03), 0.5, {99, 100}), ((0.3, 0.02), 0.5, {1}), ((0.3, 0.02), 0.01, {14}), ((1.0, 0.0901), 0.05, {10})],
)
def test_fast_workers_take_the_steps_that_fit(tmp_path, c, epsilon, expected, blocking):
    policy = esync(epsilon=epsilon, blocking=blocking)
    played = simulate(tmp_path, unequal(c, policy, workers=3))
    # Without latency the answer comes at once, so it makes no difference whether a worker waits for it.
    assert set(taken(played, "worker-0")) == {1}
    for fast in ("worker-1", "worker-2"):
        first, *others = taken(played, fast)
        assert set(others) <= expected
        assert first == 1, "nobody knows how long the slow one takes"
    lines = played.lines("worker-1", "round")
    assert [line["step_seconds"] for line in lines] == pytest.approx([c[1]] * len(lines))
    total = [sum(steps) for steps in zip(*(taken(played, f"worker-{k}") for k in range(3)), strict=True)]
    assert [line["steps"] for line in played.lines("server-0", "round")] == total


def test_a_change_of_speed_in_the_middle_is_followed(tmp_path):
    """A step of worker 0 takes 1 s at first, and 0.3 s from its ninth on; its median follows after two of them."""
    slow = {"name": "slow", "workers": [0], "factor": 10, "then": [{"epoch": 8, "factor": 3}]}
    run = spec(
        {"step": constant(0.1)},
        train={"epochs": 70, "local_steps": esync(epsilon_share=0.05)},
        heterogeneity={"classes": [slow]},
    )
    played = simulate(tmp_path, run)
    assert set(taken(played, "worker-0")) == {1}
    _, *steps = taken(played, "worker-1")
    assert steps[:7] == [9] * 7
    assert set(steps[7:9]) <= {3, 4}, "worker 0 sends its update, and worker 1 follows"
    assert set(steps[9:]) == {2}


def test_latency_and_the_cost_of_queries_take_steps_from_fast_workers(tmp_path):
    """With 0.03 s of latency both ways and a step of 0.04 s, a step takes 0.1 s if the worker waits for answers."""
    run = {"epochs": 60, "workers": 3}
    steps = {}
    for blocking in (True, False):
        policy = esync(epsilon=0.0, blocking=blocking)
        whole = unequal((2.001, 0.04), policy, **run)
        late = whole.simulation.local.model_copy(update={"latency": 0.03})
        played = simulate(
            tmp_path / str(blocking),
            whole.model_copy(update={"simulation": whole.simulation.model_copy(update={"local": late})}),
        )
        steps[blocking] = taken(played, "worker-1")[1:-1]
    assert set(steps[True]) == {21}  # at 0.1 s each
    assert set(steps[False]) <= {48, 49}  # at 0.04 s each; the first answer of a round takes 0.06 s
    # A query that costs 5 ms at server 0, which has two fast workers to answer.
    costly = unequal((2.001, 0.04), esync(epsilon=0.0), **run)
    costly = costly.model_copy(update={"simulation": costly.simulation.model_copy(update={"query": 0.005})})
    assert max(taken(simulate(tmp_path / "costly", costly), "worker-1")[1:]) < 50


def test_the_epochs_are_those_of_all_workers_together(tmp_path):
    """3 workers, 1 batch an epoch each: an epoch is 3 steps; the model is evaluated after the round that ends it."""
    played = simulate(tmp_path, unequal((1.0, 0.2501), esync(epsilon=0.0), workers=3, epochs=10))
    assert [taken(played, f"worker-{k}") for k in range(3)] == [[1] * 5, [1, 3, 3, 3, 3], [1, 3, 3, 3, 3]]
    # 3, 10, 17, 24 and 31 steps: 1, 3, 5, 8 and 10 epochs
    told = [(line["round"], line["epoch"]) for line in played.lines("worker-0", "evaluation")]
    assert told == [(1, 1), (2, 2), (2, 3), (3, 4), (3, 5), (4, 6), (4, 7), (4, 8), (5, 9), (5, 10)]
    epochs = [line["epoch"] for line in played.lines("server-0", "round")]
    assert epochs == pytest.approx([1, 10 / 3, 17 / 3, 8, 31 / 3])


def test_the_state_server_records_what_it_knows(tmp_path):
    played = simulate(tmp_path, unequal((1.0, 0.1), esync(), workers=3, epochs=40))
    lines = played.lines("server-0", "local_steps")
    assert all(later["time"] - line["time"] >= 1.0 for line, later in pairwise(lines))
    last = lines[-1]
    assert last["who"] == ["worker-0", "worker-1", "worker-2"]
    assert last["c"] == pytest.approx([1.0, 0.1, 0.1])


SHAPES = {
    "average-1-1": {},
    "no-validator-3": {"topology": {"servers": 3, "validators": 0, "workers": 3}},
    "zeno-2-2": {
        "topology": {"servers": 2, "validators": 2, "workers": 4},
        "validation": {"rule": {"kind": "zeno", "rho": -0.01}},
        "attack": {"kind": "random", "scale": 0.5, "rate": 0.4},
    },
    "partitions": {"topology": {"servers": 2, "validators": 0, "workers": 3}, "transport": {"partition": 2048}},
    "adversary": {
        "topology": {"servers": 2, "validators": 2, "workers": 6},
        "attack": {"kind": "ipm", "rate": 0.3, "from_epoch": 2},
    },
    "decay": {
        "topology": {"servers": 1, "validators": 0, "workers": 3},
        "train": {"epochs": 6, "batch_size": 16, "optimizer": {"lr": 0.05}, "lr_decay": {"epochs": [2, 4]}},
    },
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_numbers_of_steps_give_the_result_of_a_fixed_number(shape, tmp_path):
    """In one process, without simulated time, all steps take 0 s, so that `dylu` gives all workers `most` steps."""
    tables = SHAPES[shape]
    train = {"epochs": 6, "batch_size": 16, "optimizer": {"lr": 0.05}, **tables.get("train", {})}
    found, shards = {}, tables.get("topology", {"workers": 3})["workers"] + 1
    # With 3 steps an epoch, every round ends one, so that rates that decay change at the same step.
    for name, steps in (("fixed", 3), ("dylu", {"kind": "dylu", "most": 3})):
        run = small(**{**tables, "data": {"name": "digits", "limit": 48 * shards, "test_limit": 60},
                       "train": {**train, "local_steps": steps}})  # fmt: skip
        folder = tmp_path / name
        assert play(run, folder)
        first = "validator-0" if run.topology.validators else "worker-0"
        lines = [line for line in records(folder, first) if line["event"] == "evaluation"]
        told = [(line["round"], line["epoch"], line["accuracy"], line["loss"]) for line in lines]
        found[name] = (model(folder), told)
    assert len(found["dylu"][1]) == 6
    assert found["dylu"][1] == found["fixed"][1]
    np.testing.assert_array_equal(found["dylu"][0], found["fixed"][0])


@pytest.mark.parametrize("keys", [{"most": 1}, {"most": 1, "blocking": False}])
def test_one_step_each_is_plain_synchronous_sgd(keys, tmp_path):
    models = []
    for steps in (1, esync(**keys)):
        run = small(train={"epochs": 2, "batch_size": 16, "local_steps": steps})
        assert play(run, tmp_path / str(len(models)))
        models.append(model(tmp_path / str(len(models))))
    np.testing.assert_array_equal(*models)


def timed(policy, **tables):
    return small(
        **{
            "train": {"epochs": 8, "batch_size": 16, "optimizer": {"lr": 0.05}, "local_steps": policy},
            "transport": {"kind": "inproc"},
            "simulation": {"kind": "modelled", "step": {"kind": "lognormal", "median": 0.01, "sigma": 0.3}},
            "heterogeneity": {"slow": {"workers": [1], "factor": 5.0}},
            **tables,
        }
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("policy", [esync(), esync(blocking=False), {"kind": "dylu", "most": 6}])
def test_virtual_time_repeats_itself(policy, tmp_path):
    run = timed(policy)
    for name in "ab":
        assert play(run, tmp_path / name)
    np.testing.assert_array_equal(model(tmp_path / "a"), model(tmp_path / "b"))
    for process in ("worker-0", "worker-1", "server-0"):
        lines = [[{k: v for k, v in line.items() if k != "cpu"} for line in records(tmp_path / name, process)]
                 for name in "ab"]  # fmt: skip
        assert lines[0] == lines[1]
    steps = [line["local_steps"] for line in records(tmp_path / "a", "worker-0") if line["event"] == "round"]
    assert max(steps) > 2
    assert len(set(steps)) > 1  # the times of steps vary, and their numbers follow


def test_equal_policies_have_equal_ids_and_a_number_keeps_its_own():
    def identity(policy):
        return run_id(small(train={"epochs": 6, "local_steps": policy}))

    same = (esync(), esync(blocking=True), esync(epsilon_share=0.05), esync(epsilon_share=0.05, most=1000))
    other = (1, {"kind": "dylu"}, esync(epsilon_share=0.1), esync(epsilon=0.05), esync(blocking=False))
    assert len({identity(policy) for policy in same}) == 1
    assert len({identity(policy) for policy in (*same, *other)}) == 6


class CrashedError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(
    "tables",
    [
        {"topology": {"servers": 2, "validators": 0, "workers": 3}},
        {
            "topology": {"servers": 2, "validators": 1, "workers": 4},
            "validation": {"rule": {"kind": "zeno", "rho": -0.01}},
            "attack": {"kind": "ipm", "rate": 0.3},
        },
    ],
)
def test_a_run_goes_on_from_a_checkpoint(tables, tmp_path, monkeypatch):
    """Its steps and epochs are counted on; the speeds are known at once, so that no round is a first one."""
    run = timed(esync(), **tables, checkpoint={"every": 1})
    crash(run, tmp_path, 900, monkeypatch)
    assert play(run, tmp_path)
    lines = records(tmp_path, "server-0")
    start = next(n for n, line in enumerate(lines) if line["event"] == "start" and line["attempt"] == 2)
    valid = lines[: lines[start]["continues"]] + lines[start:]
    rounds = [line for line in valid if line["event"] == "round"]
    assert lines[start]["continues"] > 0
    assert [line["round"] for line in rounds] == list(range(len(rounds)))
    total = np.cumsum([line["steps"] for line in rounds])
    ratio = total / [line["epoch"] for line in rounds]
    assert ratio == pytest.approx(ratio[0])
    assert rounds[-1]["epoch"] >= 8 > rounds[-2]["epoch"]
    evaluated = "validator-0" if run.topology.validators else "worker-0"
    lines = records(tmp_path, evaluated)
    start = next(n for n, line in enumerate(lines) if line["event"] == "start" and line["attempt"] == 2)
    valid = lines[: lines[start]["continues"]] + lines[start:]
    assert [line["epoch"] for line in valid if line["event"] == "evaluation"] == list(range(1, 9))


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [esync(), esync(blocking=False)])
def test_a_resumed_run_ends_as_one_that_was_not_interrupted_if_steps_take_the_same_time(policy, tmp_path, monkeypatch):
    simulation = {"kind": "modelled", "step": {"kind": "constant", "seconds": 0.01}}
    run = timed(policy, simulation=simulation, topology={"servers": 2, "validators": 0, "workers": 3})
    assert play(run, tmp_path / "whole")
    for turns in (700, 600):
        crash(run, tmp_path / "cut", turns, monkeypatch)
    assert play(run, tmp_path / "cut")
    assert sum("continues" in line for line in records(tmp_path / "cut", "worker-1")) == 2
    np.testing.assert_array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))


def crash(run, folder, turns, monkeypatch):
    """Play a run until its process is gone after so many turns of its roles."""
    take, left = RoleDriver.take, iter(range(turns - 1))

    def counted(self):
        if next(left, None) is None:
            raise CrashedError
        return take(self)

    directory = RunDirectory(folder)
    directory.create({"run_id": "small", "run": run.model_dump(mode="json")})
    with monkeypatch.context() as patch:
        patch.setattr(RoleDriver, "take", counted)
        with pytest.raises(CrashedError):
            run_in_process(run.identified("small"), directory)


def test_the_model_moves_by_the_global_rate_times_the_mean_update(tmp_path):
    """Trainers halve their distance to 8 and 5: updates 4 and 2.5 of the model 0, and so on."""
    model = np.float32(0.0)
    for _ in range(3):
        model = model + np.float32(0.5) * ((8 - model) / 2 + (5 - model) / 2) / 2
    tables = {"train": {"epochs": 3, "global_lr": 0.5}}
    assert simulate(tmp_path, spec({}, **tables)).model == pytest.approx(model)
    assert simulate(tmp_path / "v", spec({}, validators=1, **tables)).model == pytest.approx(model)

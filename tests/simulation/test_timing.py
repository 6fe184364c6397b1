"""Whole runs in virtual time, against schedules worked out by hand."""

import pytest
from simulated import Examined, constant, simulate, spec, times

SECOND = {"step": constant(1.0)}


@pytest.mark.parametrize(("cores", "expected"), [(None, [1.0, 2.0]), (2, [1.0, 2.0]), (1, [2.0, 4.0])])
def test_workers_share_the_cores_of_their_host(tmp_path, cores, expected):
    played = simulate(tmp_path, spec({**SECOND, "cores": cores}))
    assert times(played, "worker-0") == times(played, "worker-1") == times(played, "server-0") == expected


def test_hosts_have_cores_of_their_own(tmp_path):
    placement = [["worker-0"], ["worker-1", "server-0"]]
    played = simulate(tmp_path, spec({**SECOND, "cores": 1, "hosts": 2, "placement": placement}))
    assert times(played, "worker-1") == [1.0, 2.0]
    assert {process: lines[0]["host"] for process, lines in played.records.items()} == {
        "worker-0": "host0",
        "worker-1": "host1",
        "server-0": "host1",
    }


def test_latency_is_passed_through_on_the_way_there_and_back(tmp_path):
    # the initial model, the model, a step, the update, the model, a step
    played = simulate(tmp_path, spec({**SECOND, "local": {"latency": 0.125}}))
    assert times(played, "worker-0") == [1.25, 2.5]
    assert times(played, "server-0") == [1.375, 2.625]
    line = played.lines("worker-0", "round")[1]
    assert (line["compute"], line["wait"], line["cpu"], line["cpu_train"]) == (1.0, 0.25, 1.0, 1.0)


def test_a_round_is_as_long_as_its_slowest_worker(tmp_path):
    run = spec(SECOND, workers=3, heterogeneity={"slow": {"workers": [1], "factor": 3.0}})
    played = simulate(tmp_path, run)
    assert times(played, "worker-1") == times(played, "server-0") == [3.0, 6.0]
    assert times(played, "worker-0") == [1.0, 4.0], "it waits for the model"
    assert [line["wait"] for line in played.lines("worker-0", "round")] == [0.0, 2.0]
    assert [line["compute"] for line in played.lines("worker-1", "round")] == [3.0, 3.0]


def test_a_class_changes_its_speed_with_the_epochs_of_its_workers(tmp_path):
    # A step is an epoch of these trainers.
    slow = {
        "name": "slow",
        "workers": [1],
        "factor": 5.0,
        "then": [{"epoch": 1, "factor": 3}, {"epoch": 2, "factor": 1}],
    }
    run = spec(SECOND, workers=3, epochs=4, heterogeneity={"classes": [{"name": "fast", "workers": 2}, slow]})
    assert times(simulate(tmp_path, run), "server-0") == [5.0, 8.0, 9.0, 10.0]


def test_a_slowed_worker_is_slow_without_using_the_core(tmp_path):
    run = spec({**SECOND, "cores": 1}, heterogeneity={"slow": {"workers": [1], "factor": 3.0}})
    # both are through with their work after 2 s, the slow one goes on sleeping for two times as long
    assert times(simulate(tmp_path, run), "server-0") == [6.0, 9.0 + 3.0]


def test_every_task_takes_its_time(tmp_path):
    costs = {
        "step": constant(1.0),
        "adopt": {"call": 0.25},
        "pack": {"element": 0.5},
        "evaluate": 0.125,
        "combine": {"call": 2.0, "element": 0.25},
        "apply": {"element": 4.0},
    }
    played = simulate(tmp_path, spec(costs, validators=1, workers=3, epochs=1))
    assert times(played, "worker-0") == [0.25 + 1 + 0.5]
    assert times(played, "validator-0") == [0.25 + 1 + 0.5 + 2.0 + 3 * 0.25]
    assert times(played, "server-0") == [4.5 + 4.0]
    assert times(played, "validator-0", "evaluation") == [8.5 + 0.25], "the model is there before it is measured"
    assert times(played, "validator-0", "end") == [8.5 + 0.25 + 0.125]
    without = simulate(tmp_path / "without", spec(costs, workers=3, epochs=1))
    assert times(without, "server-0") == [0.25 + 1 + 0.5 + 2.0 + 3 * 0.25], "the server combines"


@pytest.mark.parametrize("cores", [2, 1])
def test_an_evaluation_is_done_beside_the_steps(tmp_path, cores):
    """Two epochs of a step each, which a process does alone: 1 s, and 1.5 s for an evaluation."""
    costs = {**SECOND, "evaluate": 1.5, "cores": cores, "placement": [["worker-0"], ["server-0"]], "hosts": 2}
    played = simulate(tmp_path, spec(costs, workers=1, epochs=2), trainer=Examined)
    assert times(played, "worker-0", "evaluation") == times(played, "server-0")
    if cores == 2:
        # From 1 to 2.5 beside the second step; from 2.5, as they are measured one at a time.
        assert times(played, "server-0") == [1.0, 2.0]
        assert times(played, "worker-0", "end") == [2.5 + 1.5]
        assert [line["compute"] for line in played.lines("worker-0", "round")] == [1.0, 1.0]
    else:
        # They share the core: the step is over at 3, when the evaluation has had 1 s of it.
        assert times(played, "server-0") == [1.0, 3.0]
        assert times(played, "worker-0", "end") == [3.5 + 1.5]
    # What the first one took is in no round: it ended after the last.
    assert [line.get("cpu_evaluate", 0.0) for line in played.lines("worker-0", "round")] == [0.0, 0.0]
    long = simulate(tmp_path / "long", spec(costs, workers=1, epochs=4), trainer=Examined)
    assert [line.get("cpu_evaluate", 0.0) for line in long.lines("worker-0", "round")] == [0.0, 0.0, 1.5, 1.5]
    assert [line["wait"] for line in long.lines("worker-0", "round")][2] == pytest.approx(0.5), "for the one before"


def test_training_does_not_wait_for_an_evaluator_that_takes_ten_times_an_epoch(tmp_path):
    placement = [["worker-0"], ["server-0"], ["evaluator-0"]]
    costs = {**SECOND, "evaluate": 10.0, "placement": placement, "hosts": 3}
    topology = {"servers": 1, "validators": 0, "workers": 1, "evaluators": 1}
    played = simulate(tmp_path, spec(costs, epochs=5, topology=topology), trainer=Examined)
    assert times(played, "server-0") == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [(line["epoch"], line["time"]) for line in played.lines("worker-0", "evaluation")] == [(1, 1.0), (5, 5.0)]
    assert times(played, "worker-0", "not_evaluated") == [2.0, 3.0, 4.0]
    assert times(played, "worker-0", "end") == times(played, "evaluator-0", "end") == [1.0 + 10.0 + 10.0]


def test_messages_cost_their_sender_and_receiver(tmp_path):
    messages = {"send": 1.0, "receive": 0.25, "record": 0.5}
    played = simulate(tmp_path, spec({"messages": messages}, epochs=1))
    # sent at 1, taken at 1.25, sent to worker 0 at 2.25 and to worker 1 at 3.25, each takes it, sends, writes its line
    assert times(played, "worker-0") == [2.25 + 0.25 + 1.0 + 0.5]
    assert times(played, "worker-1") == [3.25 + 0.25 + 1.0 + 0.5]
    # the server sends the next model before it writes of this one
    assert times(played, "server-0") == [4.5 + 0.25 + 2 * 1.0 + 0.5]


def test_waiting_costs_polls_and_delays_what_comes(tmp_path):
    waiting = {"spin": 0.5, "poll": 0.0, "interval": 0.0}
    alone = simulate(tmp_path / "alone", spec({**SECOND, "cores": 1, "waiting": waiting}, workers=1, epochs=1))
    # the server spins beside the worker until it has had half a second
    assert times(alone, "worker-0") == [1.5]
    waiting = {"spin": 0.0, "poll": 0.0, "interval": 1e-3}
    late = simulate(tmp_path / "late", spec({**SECOND, "waiting": waiting}, workers=1, epochs=1))
    assert 1.0 < times(late, "server-0")[0] < 1.0 + 2e-3


def test_the_order_in_which_roles_are_begun_changes_no_synchronous_time(tmp_path):
    run = spec({**SECOND, "cores": 2, "local": {"latency": 0.125, "bandwidth": 1e3}}, workers=3, validators=1)
    one = simulate(tmp_path / "one", run)
    other = simulate(tmp_path / "other", run, order=lambda nodes: nodes[::-1])
    assert one.records.keys() == other.records.keys()
    for process in one.records:
        assert times(one, process) == pytest.approx(times(other, process)), process


def test_a_larger_model_is_simulated_by_a_smaller_one(tmp_path):
    """The model has one element of 4 bytes, and 1 s of a link is 1000 bytes. A worker sends the initial model; in each
    round it gets a model and sends an update.
    """
    costs = {**SECOND, "local": {"bandwidth": 1000.0}, "pack": {"element": 0.001}}
    small, large = (
        simulate(tmp_path / str(scale), spec({**costs, "model_scale": float(scale)}, workers=1)) for scale in (1, 251)
    )
    later = [b - a for a, b in zip(times(small, "server-0"), times(large, "server-0"), strict=True)]
    assert later == pytest.approx([3.25, 5.5])
    for process, lines in (("worker-0", 3), ("server-0", 3)):
        sent = [
            sum(line.get("bytes_sent", 0) for line in played.records[process] if line["event"] in ("round", "end"))
            for played in (small, large)
        ]
        assert sent[1] - sent[0] == lines * 1000
        assert sent[0] < lines * 200

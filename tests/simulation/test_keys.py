"""What `[simulation]` may say, what is wrong in it, and what it does to a run's id."""

import pytest
from simulated import constant, spec

from hpcps.execution.simulation.driver import hosts_of
from hpcps.protocol.messages import Peer
from hpcps.spec.identity import run_id
from hpcps.spec.validate import validate


def mistakes(simulation, kind="inproc", **tables):
    tree = {
        "name": "x",
        "topology": {"workers": 3, "servers": 2},
        "transport": {"kind": kind},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "train": {"epochs": 1},
        **tables,
    }
    if simulation:
        tree["simulation"] = simulation
    _, problems = validate(tree)
    return [f"{'.'.join(map(str, problem.path))}: {problem.message}" for problem in problems]


MODELLED = {"kind": "modelled"}
SLOW = {"slow": {"workers": [1], "factor": 2.0}}


def test_it_is_for_runs_in_one_process():
    assert mistakes(MODELLED) == []
    assert mistakes(MODELLED, "mpi") == [
        'simulation: has an effect only with transport.kind = "inproc": set that, or leave it out'
    ]
    assert mistakes({"kind": "none"}, "mpi") == []


def test_slow_workers_need_time_that_can_be_stretched():
    assert mistakes(MODELLED, heterogeneity=SLOW) == []
    assert mistakes(None, "mpi", heterogeneity=SLOW) == []
    (problem,) = mistakes(None, heterogeneity=SLOW)
    assert "add a [simulation]" in problem


def test_a_range_must_not_be_empty():
    step = {"kind": "uniform", "low": 2.0, "high": 1.0}
    assert mistakes({**MODELLED, "step": step}) == ["simulation.step.high: 1.0 s is below low = 2.0 s"]


@pytest.mark.parametrize(
    ("hosts", "placement", "expected"),
    [
        (2, [["server-0", "validator-0", "server-1"], ["worker-0", "worker-1", "worker-2"]], []),
        (
            1,
            [["server-0", "validator-0", "server-1"], ["worker-0", "worker-1", "worker-2"]],
            ["lists roles for 2 hosts, but simulation.hosts = 1: make them equal"],
        ),
        (
            2,
            [["server-0", "worker-1", "worker-1"], ["worker-0", "worker-3", "server-1"]],
            [
                "worker-2, validator-0 have no host",
                "worker-1 has several entries",
                "worker-3 has a host, but is not in this run",
            ],
        ),
    ],
)
def test_every_role_has_one_host(hosts, placement, expected):
    found = mistakes({**MODELLED, "hosts": hosts, "placement": placement})
    assert found == [f"simulation.placement: {message}" for message in expected]


def test_values_out_of_range_are_all_named():
    found = mistakes(
        {
            "kind": "modelled",
            "cores": 0,
            "local": {"latency": -1.0, "bandwidth": 0.0},
            "placement": [["worker 1"]],
            "step": {"kind": "gaussian"},
            "evalute": 1.0,
        }
    )
    assert sorted(message.partition(":")[0] for message in found) == [
        "simulation.cores",
        "simulation.evalute",
        "simulation.local.bandwidth",
        "simulation.local.latency",
        "simulation.placement.0.0",
        "simulation.step.kind",
    ]
    assert mistakes({"kind": "measured"}) == [
        "simulation.records: missing: the folder of a finished run over MPI, such as results/quickstart/runs/1a2b3c4d5e"
    ]


def test_without_it_a_run_is_the_run_that_it_was():
    plain = spec({}).model_copy(update={"simulation": type(spec({})).model_fields["simulation"].default})
    assert run_id(plain) == "bbb5abb158"
    assert run_id(spec({})) != run_id(plain)
    assert run_id(spec({"cores": 2})) != run_id(spec({}))


def test_roles_are_placed_as_the_launcher_would():
    run = spec({"hosts": 2}, workers=3, validators=1)
    assert hosts_of(run, run.simulation) == {
        Peer("worker", 0): 0,
        Peer("worker", 1): 1,
        Peer("worker", 2): 0,
        Peer("validator", 0): 1,
        Peer("server", 0): 0,
    }
    assert set(hosts_of(spec({}), spec({}).simulation).values()) == {0}
    run = spec({"step": constant(1.0), "hosts": 2, "placement": [["worker-1"], ["server-0", "worker-0"]]})
    assert hosts_of(run, run.simulation)[Peer("worker", 1)] == 0

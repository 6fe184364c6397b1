from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcps.errors import LaunchError
from hpcps.launch.hostfile import Host
from hpcps.launch.local_rank import OWN_RANK, gpu_of, preset_gpu
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan, Rank
from hpcps.spec.schema import Topology


def hosts_of(world):
    """Return what each host holds, in rank order."""
    placed: dict[str, list[str]] = {}
    for rank in world:
        placed.setdefault(rank.host, []).append(str(rank))
    return placed


def test_round_again_within_the_slots():
    placed = hosts_of(place(Topology(servers=1, validators=1, workers=5), [Host("a", 4), Host("b", 1), Host("c", 2)]))
    assert placed == {
        "a": ["worker-0", "worker-3", "validator-0", "server-0"],
        "b": ["worker-1"],
        "c": ["worker-2", "worker-4"],
    }


def test_validators_without_a_server_of_their_own_stand_alone():
    topology = Topology(servers=1, validators=2, workers=1, colocate_validators=True)
    placed = hosts_of(place(topology, [Host("a", 1), Host("b", 1), Host("c", 1)]))
    assert placed == {"a": ["worker-0"], "b": ["validator-1"], "c": ["validator-0", "server-0"]}


def test_gpus_go_round():
    world = place(Topology(servers=1, validators=1, workers=3), [Host("a", 4, ("0", "2")), Host("b", 1)])
    assert {str(rank): rank.gpu for rank in world} == {
        "worker-0": "0",
        "worker-2": "2",
        "validator-0": "0",
        "server-0": "2",
        "worker-1": None,
    }


def test_gpus_of_a_batch_system_go_round_by_their_positions():
    world = place(Topology(servers=1, validators=0, workers=4), [Host("a", 3, gpu_count=2), Host("b", 2, gpu_count=1)])
    assert {str(rank): (rank.host, rank.gpu, rank.gpu_index) for rank in world} == {
        "worker-0": ("a", None, 0),
        "worker-2": ("a", None, 1),
        "server-0": ("a", None, 0),
        "worker-1": ("b", None, 0),
        "worker-3": ("b", None, 0),
    }


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, [None, None]),
        ({"CUDA_VISIBLE_DEVICES": "3,GPU-b"}, ["3", "GPU-b"]),
        ({"CUDA_VISIBLE_DEVICES": "3", "HPCPS_GPUS": "5,6"}, ["3", "3"]),
        ({"HPCPS_GPUS": "5,6"}, ["5", "6"]),
    ],
)
def test_the_gpus_of_this_machine_are_those_that_its_variables_name(variables, gpus):
    world = place(Topology(servers=1, validators=0, workers=2), environment=variables)
    assert [gpu_of(rank, variables) for rank in world[:2]] == gpus


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [("", "2"), ("4,5,6", "6"), ("GPU-a", "GPU-a"), ("4,5", "4")],
)
def test_a_process_takes_its_gpu_from_those_that_it_sees_on_its_host(visible, gpu):
    plan = Plan((Rank(0, "worker", 0, "a", gpu_index=2),), ())
    environment = {OWN_RANK: "0", **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}
    preset_gpu(plan, environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == gpu
    assert gpu_of(plan.world[0], environment) == gpu, "as its record says later"


def test_a_slot_with_a_gpu_of_its_own_gives_it_to_its_process():
    """ZenoPS's files: a line is a process, and some have no GPU; a colocated pair shares a line."""
    topology = Topology(servers=1, validators=1, workers=3, colocate_validators=True)
    world = place(topology, [Host("a", 2, slot_gpus=(None, "1")), Host("b", 2, slot_gpus=("3", "0"))])
    assert {str(rank): (rank.host, rank.gpu) for rank in world} == {
        "worker-0": ("a", None),
        "worker-2": ("a", "1"),
        "worker-1": ("b", "3"),
        "validator-0": ("b", "0"),
        "server-0": ("b", "0"),
    }


def test_the_evaluator_gets_the_last_slot():
    topology = Topology(servers=1, validators=1, workers=2, evaluators=1)
    assert [str(rank) for rank in place(topology, [Host(name, 1) for name in "abcde"])] == [
        "worker-0", "worker-1", "validator-0", "server-0", "evaluator-0",
    ]  # fmt: skip
    with pytest.raises(LaunchError, match="2 workers, 1 validator, 1 server, 1 adversary, 1 evaluator need 6 slots"):
        place(topology, [Host("a", 5)], adversary=True)


def test_the_adversary_comes_last_and_needs_a_slot():
    topology, hosts = Topology(servers=1, validators=1, workers=2), [Host("a", 4), Host("b", 1)]
    assert str(next(rank for rank in place(topology, hosts, adversary=True) if rank.host == "a")) == "worker-0"
    assert [str(rank) for rank in place(topology, hosts, adversary=True)] == [
        "worker-0", "validator-0", "server-0", "adversary-0", "worker-1",
    ]  # fmt: skip
    with pytest.raises(LaunchError, match="2 workers, 1 validator, 1 server, 1 adversary need 5 slots"):
        place(topology, [Host("a", 4)], adversary=True)


def test_too_few_slots_says_how_many_are_missing():
    with pytest.raises(LaunchError) as caught:
        place(Topology(servers=1, validators=1, workers=16), [Host("a", 4), Host("b", 1)], Path("hosts"))
    assert str(caught.value) == (
        "16 workers, 1 validator, 1 server need 18 slots, hosts has 5 on 2 hosts: 13 are missing; "
        "add hosts, or slots to a host (`a slots=17`)"
    )


def test_too_few_slots_of_a_pbs_job_are_got_by_qsub(monkeypatch):
    """Nobody can edit the file that PBS writes."""
    monkeypatch.setenv("PBS_NODEFILE", "/var/spool/pbs/aux/12.server")
    hosts, file = [Host("a", 1), Host("b", 1)], Path("/var/spool/pbs/aux/12.server")
    with pytest.raises(LaunchError) as caught:
        place(Topology(servers=1, validators=1, workers=16), hosts, file)
    assert str(caught.value) == (
        "16 workers, 1 validator, 1 server need 18 slots, /var/spool/pbs/aux/12.server has 2 on 2 hosts: 16 are "
        "missing; a chunk of a PBS job has `mpiprocs` slots, 1 by default: request `mpiprocs=9` in each, such as "
        "`qsub -l select=2:ncpus=9:mpiprocs=9`, or more chunks"
    )
    with pytest.raises(LaunchError, match="add hosts, or slots to a host"):
        place(Topology(servers=1, validators=1, workers=16), hosts, Path("mine"))


counts = st.integers(1, 6)


@given(
    topology=st.builds(
        Topology, servers=counts, validators=st.integers(0, 6), workers=counts, colocate_validators=st.booleans()
    ),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=12),
)
def test_everyone_is_placed_once_and_hosts_are_contiguous(topology, slots):
    hosts = [Host(f"h{i}", count) for i, count in enumerate(slots)]
    try:
        world = place(topology, hosts)
    except LaunchError:
        shared = min(topology.validators, topology.servers) if topology.colocate_validators else 0
        assert sum(slots) < topology.workers + topology.validators + topology.servers - shared
        return
    expected = {("worker", k) for k in range(topology.workers)}
    expected |= {("validator", v) for v in range(topology.validators)} | {
        ("server", s) for s in range(topology.servers)
    }
    assert sorted((rank.role, rank.index) for rank in world) == sorted(expected)
    assert [rank.rank for rank in world] == list(range(len(world)))
    order = [rank.host for rank in world]
    assert order == sorted(order, key=lambda name: int(name[1:]))
    homes = {(rank.role, rank.index): rank.host for rank in world}
    if topology.colocate_validators:
        for v in range(min(topology.validators, topology.servers)):
            assert homes["validator", v] == homes["server", v]
    for host in hosts:
        here = [key for key, home in homes.items() if home == host.name]
        pairs = sum(
            1 for role, i in here if role == "validator" and topology.colocate_validators and i < topology.servers
        )
        assert len(here) - pairs <= host.slots

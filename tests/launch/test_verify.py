import socket

import pytest

from hpcps.launch.local_rank import problems, same_host
from hpcps.launch.plan import Plan, Rank

PLAN = Plan((Rank(0, "worker", 0, "n1"), Rank(1, "server", 0, "n2.example.org")), ())


def test_a_process_in_its_place_has_no_problems():
    assert problems(PLAN, 0, 2, "worker", "n1") == []
    assert problems(PLAN, 1, 2, "server", "n2") == []
    assert problems(PLAN, 1, 2, "", "n2") == []


def test_everything_that_differs_is_said():
    assert problems(PLAN, 1, 2, "worker", "n1") == [
        "rank 1 was started as a worker, the plan has server-0 there",
        "rank 1 (server-0) runs on n1, the plan has it on n2.example.org",
    ]


@pytest.mark.parametrize("size", [1, 3])
def test_a_world_of_another_size(size):
    (problem,) = problems(PLAN, 0, size, "worker", "n1")
    assert f"a world of {size}, the plan has 2 processes" in problem
    assert ("another MPI" in problem) == (size == 1)


@pytest.mark.parametrize(
    ("planned", "actual", "same"),
    [
        ("n1", "n1", True),
        ("n1", "n1.example.org", True),
        ("N1.example.org", "n1", True),
        ("n1.a.org", "n1.b.org", False),
        ("n1", "n11", False),
        ("10.255.255.254", "n1", False),
        ("10.255.255.254", "10", False),
        ("localhost", "n1", True),
        ("127.0.0.1", "n1", True),
        ("no-such-host.invalid", "n1", False),
    ],
)
def test_same_host(planned, actual, same):
    assert same_host(planned, actual) is same


def test_an_alias_of_this_machine_is_this_machine():
    address = socket.gethostbyname(socket.gethostname())
    assert same_host(address, "whatever-it-calls-itself")

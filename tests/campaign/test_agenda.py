"""What is tried again, what is given up and what comes next, whatever happens to launches."""

import socket
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcps.errors import LaunchError
from hpcps.execution.sweep.batch import Ending
from hpcps.execution.sweep.slots import crowding, divide
from hpcps.execution.sweep.sweep_run import PointQueue, stays_here
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.spec.point import Point
from hpcps.spec.schema import Run


def point(index: int, workers: int = 2, **tables: object) -> Point:
    tree = {
        "name": "x", "seed": index, "topology": {"workers": workers}, "model": {"name": "mlp"},
        "data": {"name": "digits"}, "train": {"epochs": 1}, **tables,
    }  # fmt: skip
    return Point(index, Run.model_validate(tree), f"{index:010x}", f"seed {index}")


def test_one_launch_takes_all_that_it_can_play() -> None:
    queue = PointQueue([point(0), point(1, workers=3), point(2), point(3, workers=3)], 0)
    assert [[p.index for p in queue.take(1)] for _ in range(2)] == [[0, 2], [1, 3]]
    assert queue.left == []


def test_several_launches_at_a_time_take_parts_that_get_smaller() -> None:
    queue = PointQueue([point(index) for index in range(16)], 0)
    sizes = []
    while queue.left:
        sizes.append(len(queue.take(2)))
    assert sizes == [4, 3, 3, 2, 1, 1, 1, 1]


def test_a_run_that_fails_is_tried_again_and_then_given_up() -> None:
    queue = PointQueue([point(index) for index in range(4)], 1)
    done = {0}
    batch = queue.take(1)
    ending = Ending(9, "run 0000000001 (seed 1): worker-0 on n1 failed\nits last line", "0000000001")
    assert queue.end_batch(batch, ending, lambda p: p.index in done) == "0000000001: tried again, 1 of 1 times"
    batch = queue.take(1)
    assert [p.index for p in batch] == [1, 2, 3]
    assert queue.end_batch(batch, ending, lambda p: p.index in done) == "continuing with 2 more runs"
    assert [p.index for p in queue.take(1)] == [2, 3]
    assert queue.report() == "  0000000001  seed 1: in 2 attempts: worker-0 on n1 failed"


def test_a_launch_that_begins_no_run_is_not_tried_for_each_of_them() -> None:
    queue = PointQueue([point(0), point(1), point(2, workers=3)], 0)
    batch = queue.take(1)
    assert queue.end_batch(batch, Ending(2, "no route to n07"), lambda p: False) == "continuing with 1 more run"
    assert [failed.point.index for failed in queue.failed] == [0, 1]
    assert [p.index for p in queue.left] == [2]


def test_what_was_stopped_is_neither_lost_nor_done() -> None:
    queue = PointQueue([point(0), point(1)], 0)
    stopped = Ending(143, "stopped", over=True)
    assert queue.end_batch(queue.take(1), stopped, lambda p: p.index == 0) == ""
    assert ([p.index for p in queue.left], queue.failed) == ([1], [])
    queue = PointQueue([point(0), point(1, workers=3)], 0)
    assert queue.end_batch(queue.take(1), stopped, lambda p: p.index == 0) == "run it again for 1 more run"
    assert queue.end_batch(queue.take(1), stopped, lambda p: True) == ""


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=12),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_every_point_ends_done_or_lost_and_none_is_tried_too_often(
    points: list[tuple[int, int]], retry: int, jobs: int
) -> None:
    # Of each: its workers, and how many of its attempts fail.
    plan = [point(index, workers=workers) for index, (workers, _) in enumerate(points)]
    fails = {p.run_id: failures for p, (_, failures) in zip(plan, points, strict=True)}
    queue, done, tries = PointQueue(plan, retry), set(), Counter()
    while queue.left:
        batch = queue.take(jobs)
        assert len({p.run.topology.workers for p in batch}) == 1
        ending = Ending()
        for p in batch:
            tries[p.run_id] += 1
            if tries[p.run_id] <= fails[p.run_id]:
                ending = Ending(1, "it failed", p.run_id)
                break
            done.add(p.run_id)
        queue.end_batch(batch, ending, lambda p: p.run_id in done)
    lost = {failed.point.run_id for failed in queue.failed}
    assert lost == {run_id for run_id, failures in fails.items() if failures > retry}
    assert done == set(fails) - lost
    assert max(tries.values()) <= retry + 1


@pytest.mark.parametrize(
    ("cores", "jobs", "expected"),
    [(2, 1, [2]), (2, 2, [1, 1]), (64, 3, [22, 21, 21]), (7, 4, [2, 2, 2, 1])],
)
def test_every_core_belongs_to_one_launch(cores: int, jobs: int, expected: list[int]) -> None:
    shares = divide(tuple(range(cores)), jobs, [point(0).run])
    assert [len(share) for share in shares] == expected
    assert [core for share in shares for core in share] == list(range(cores))


def test_more_launches_than_cores_are_refused() -> None:
    runs = [point(0).run, point(1, train={"epochs": 1, "threads": 3}).run]
    with pytest.raises(LaunchError, match=r"--jobs 3: this command may use 2 cores: use at most --jobs 2"):
        divide((4, 5), 3, runs[:1])
    with pytest.raises(LaunchError, match=r"a process of these runs has 3 threads: use at most --jobs 2"):
        divide(tuple(range(8)), 3, runs)
    assert len(divide((0,), 1, runs)) == 1  # by itself it runs as it always did


def test_it_is_said_where_processes_share_cores_that_they_would_not_share_alone() -> None:
    run = point(0, workers=16).run
    assert crowding(divide(tuple(range(64)), 3, [run]), [run]) == ""
    assert "4 launches at a time: the 18 processes of a run share 16" in crowding(
        divide(tuple(range(64)), 4, [run]), [run]
    )
    inproc = point(0, workers=16, transport={"kind": "inproc"}).run
    assert crowding(divide((0, 1), 2, [inproc]), [inproc]) == ""


@pytest.mark.parametrize(
    ("hosts", "spares", "stays"),
    [
        (("localhost", socket.gethostname()), (), True),
        (("localhost", "n7.invalid"), (), False),
        (("localhost",) * 2, ("n8",), False),
    ],
)
def test_checkpoints_are_in_memory_only_if_all_processes_are_here(
    hosts: tuple[str, ...], spares: tuple[str, ...], stays: bool
) -> None:
    world = tuple(Rank(rank, "worker", rank, host) for rank, host in enumerate(hosts))
    survive = {"workers": bool(spares), "spares": spares}
    plan = Plan(world, (PlannedRun("0123456789", "", "run", {"run": {"survive": survive}}),))
    assert stays_here(plan) == stays

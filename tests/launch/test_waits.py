"""Runs that wait for replacements for longer than they may."""

import json

import pytest

from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.waits import Waits
from hpcps.records.run_directory import RunDirectory

PAUSED = {"event": "paused", "role": "validator", "index": 0, "round": 3, "workers": 2, "needed": 3}
WAITS = "validator-0 waits for replacements: it has 2 workers, and needs 3"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def plan_of(folder, **survive):
    spec = {"run": {"transport": {"timeout": 60}, "survive": survive}}
    ranks = ("server", 0), ("validator", 0), ("worker", 0)
    world = tuple(Rank(n, role, index, "here") for n, (role, index) in enumerate(ranks))
    return Plan(world, (PlannedRun("1", "one", str(folder), spec),))


def written(folder, *lines):
    (folder / "records").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "records" / "validator-0.jsonl").write_text(text)


def test_a_run_that_waits_for_longer_than_it_may_is_noticed(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, {"event": "round"}, PAUSED)
    assert waits.too_long(run) == ""
    clock.now += 19
    assert waits.too_long(run) == ""
    clock.now += 1
    assert waits.too_long(run) == WAITS
    assert waits.too_long(None) == ""


@pytest.mark.parametrize("last", [{"event": "round"}, {"event": "start"}, {"event": "end"}])
def test_a_run_that_does_not_wait_any_more_is_not(last, tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED, last)
    for _ in range(3):
        assert waits.too_long(run) == ""
        clock.now += 30


def test_another_line_is_no_end_of_the_wait_but_a_change_begins_it_anew(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED)
    assert waits.too_long(run) == ""
    clock.now += 15
    written(tmp_path, PAUSED, {"event": "evaluation"})
    assert waits.too_long(run) == ""
    clock.now += 15
    assert waits.too_long(run) == ""
    clock.now += 5
    assert waits.too_long(run) == WAITS


@pytest.mark.parametrize("survive", [{}, {"workers": False, "wait": 1}, {"workers": True}])
def test_a_run_that_survives_nothing_waits_for_nobody(survive, tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, **survive), clock)
    written(tmp_path, PAUSED)
    for _ in range(2):
        assert waits.too_long(run) == ""
        clock.now += 1000

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


def after(waits, run, clock, *seconds):
    """Return what is said after further seconds, with a look each second."""
    said = []
    for count in seconds:
        for _ in range(count):
            clock.now += 1
            last = waits.too_long(run)
        said.append(last)
    return said


def test_a_run_that_waits_for_longer_than_it_may_is_noticed(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, {"event": "round"}, PAUSED)
    assert after(waits, run, clock, 1, 19, 1) == ["", "", WAITS]
    assert waits.too_long(None) == ""


@pytest.mark.parametrize("last", [{"event": name} for name in ("start", "closed", "round", "end")])
def test_a_run_that_does_not_wait_any_more_is_not(last, tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED)
    assert after(waits, run, clock, 15) == [""]
    written(tmp_path, PAUSED, last)
    assert after(waits, run, clock, 60) == [""]
    written(tmp_path, PAUSED, last, PAUSED)
    assert after(waits, run, clock, 20, 1) == ["", WAITS]


def test_further_losses_and_other_lines_do_not_end_a_wait(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    lines = [PAUSED]
    for event in ("lost", "evaluation", "replaced", "paused"):
        written(tmp_path, *lines)
        assert after(waits, run, clock, 5) == [""]
        lines.append(PAUSED | {"event": event})
    assert after(waits, run, clock, 1) == [WAITS]


def test_a_wait_of_an_earlier_attempt_does_not_count(tmp_path):
    """It was killed while it waited, so its record ends with that."""
    written(tmp_path, {"event": "round"}, PAUSED)
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    assert after(waits, run, clock, 60) == [""]
    written(tmp_path, {"event": "round"}, PAUSED, {"event": "start"}, PAUSED)
    assert after(waits, run, clock, 20, 1) == ["", WAITS]


def test_the_time_in_which_everything_is_suspended_does_not_count(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED)
    assert after(waits, run, clock, 2) == [""]
    clock.now += 1000
    assert waits.too_long(run) == ""
    assert after(waits, run, clock, 13, 1) == ["", WAITS]


@pytest.mark.parametrize(("timeout", "longest"), [(60, 30), (600, 120)])
def test_without_the_key_a_run_waits_for_less_than_its_processes(timeout, longest, tmp_path):
    plan = plan_of(tmp_path, workers=True)
    plan.runs[0].spec["run"]["transport"]["timeout"] = timeout
    assert plan.longest_wait == longest


@pytest.mark.parametrize("survive", [{}, {"workers": False, "wait": 1}])
def test_a_run_that_survives_nothing_waits_for_nobody(survive, tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    waits = Waits(plan_of(tmp_path, **survive), clock)
    written(tmp_path, PAUSED)
    assert after(waits, run, clock, 1000) == [""]

"""Runs that wait for replacements for longer than they may."""

import json

import pytest

from hpcps.launch.patience import Patience
from hpcps.launch.plan import Plan, PlannedRun, Rank
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


def written(folder, *lines, process="validator-0"):
    (folder / "records").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "records" / f"{process}.jsonl").write_text(text)


def after(patience, run, clock, *seconds):
    """Return what is said after further seconds, with a look each second."""
    said = []
    for count in seconds:
        for _ in range(count):
            clock.now += 1
            last = patience.is_over(run)
        said.append(last)
    return said


def test_a_run_that_patience_for_longer_than_it_may_is_noticed(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, {"event": "round"}, PAUSED)
    assert after(patience, run, clock, 1, 19, 1) == ["", "", WAITS]
    assert patience.is_over(None) == ""


@pytest.mark.parametrize("last", [{"event": name} for name in ("start", "closed", "round", "end")])
def test_a_run_that_does_not_wait_any_more_is_not(last, tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED)
    assert after(patience, run, clock, 15) == [""]
    written(tmp_path, PAUSED, last)
    assert after(patience, run, clock, 60) == [""]
    written(tmp_path, PAUSED, last, PAUSED)
    assert after(patience, run, clock, 20, 1) == ["", WAITS]


def test_further_losses_and_other_lines_do_not_end_a_wait(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    lines = [PAUSED]
    for event in ("lost", "evaluation", "replaced", "paused"):
        written(tmp_path, *lines)
        assert after(patience, run, clock, 5) == [""]
        lines.append(PAUSED | {"event": event})
    assert after(patience, run, clock, 1) == [WAITS]


def test_a_wait_of_an_earlier_attempt_does_not_count(tmp_path):
    """It was killed while it waited, so its record ends with that."""
    written(tmp_path, {"event": "round"}, PAUSED)
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    assert after(patience, run, clock, 60) == [""]
    written(tmp_path, {"event": "round"}, PAUSED, {"event": "start"}, PAUSED)
    assert after(patience, run, clock, 20, 1) == ["", WAITS]


def test_the_time_in_which_everything_is_suspended_does_not_count(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED)
    assert after(patience, run, clock, 2) == [""]
    clock.now += 1000
    assert patience.is_over(run) == ""
    assert after(patience, run, clock, 13, 1) == ["", WAITS]


@pytest.mark.parametrize(("timeout", "longest"), [(60, 30), (600, 120)])
def test_without_the_key_a_run_patience_for_less_than_its_processes(timeout, longest, tmp_path):
    plan = plan_of(tmp_path, workers=True)
    plan.runs[0].spec["run"]["transport"]["timeout"] = timeout
    assert plan.longest_wait == longest


@pytest.mark.parametrize("survive", [{}, {"workers": False, "wait": 1}])
def test_a_run_that_survives_nothing_patience_for_nobody(survive, tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, **survive), clock)
    written(tmp_path, PAUSED)
    assert after(patience, run, clock, 1000) == [""]


def test_a_combiner_that_was_lost_while_it_waited_waits_no_more(tmp_path):
    """Server 0 has ended the round without it."""
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    written(tmp_path, PAUSED)
    written(tmp_path, {"event": "start"}, {"event": "round", "round": 2}, process="server-0")
    assert after(patience, run, clock, 15) == [""]
    written(tmp_path, {"event": "start"}, *({"event": "round", "round": n} for n in (2, 3)), process="server-0")
    assert after(patience, run, clock, 60) == [""]


def test_a_resumed_run_may_wait_in_an_earlier_round(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    written(tmp_path, {"event": "round", "round": 9}, process="server-0")
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    lines = {"event": "round", "round": 9}, {"event": "start"}, {"event": "round", "round": 2}
    written(tmp_path, *lines, process="server-0")
    written(tmp_path, {"event": "start"}, PAUSED)
    assert after(patience, run, clock, 20, 1) == ["", WAITS]


def test_each_round_has_its_own_wait(tmp_path):
    clock, run = Clock(), RunDirectory(tmp_path)
    patience = Patience(plan_of(tmp_path, workers=True, wait=20), clock)
    lines = [PAUSED]
    written(tmp_path, *lines)
    assert after(patience, run, clock, 15) == [""]
    lines += [{"event": "round", "round": 3}, PAUSED | {"round": 4}]
    written(tmp_path, *lines)
    assert after(patience, run, clock, 20, 1) == ["", WAITS]

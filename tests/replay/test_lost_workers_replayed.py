"""Runs in virtual time that lose workers are replayed to the same bits; changes of records and of rules are found."""

import json
import random
import shutil
from pathlib import Path

import interrupted
import pytest
from executed import run_here
from recorded import lines, record, replayed
from survive.test_lost_workers import STEP, survivors

from hpcps.execution.replay.driver import ReplayDriver
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.losses import Positions
from hpcps.roles.sync.quorum import QuorumCollector
from hpcps.spec.identity import run_id


def play(run, folder, **options):
    """Play a run that a replay can identify."""
    return interrupted.play(run, folder, name=run_id(run), **options)


def failing(often=0.8, noticed=0.03, repair=0.1, seed=1, **tables):
    """Return a run of ten rounds whose workers fail again and again."""
    tables["train"] = {"epochs": 2, **tables.get("train", {})}
    run = survivors({"every": often, "noticed": noticed, "repair": repair}, **tables)
    return run.model_copy(update={"seed": seed})


def costs(**tables):
    """Return a simulation in which processes fail in every phase of a round."""
    slow = {"combine": {"call": 0.05}, "adopt": {"call": 0.05}, "messages": {"send": 0.03}, "local": {"latency": 0.02}}
    return {**slow, "step": {"kind": "uniform", "low": 0.01, "high": 2 * STEP}, **tables}


RUNS = {
    # Messages are under way from a worker that is lost, and to it, when its replacement starts.
    "servers": failing(
        servers=3,
        noticed=0.0,
        repair=0.0,
        simulation=costs(local={"latency": 0.05}, remote={"latency": 0.05}, hosts=2),
        checkpoint={"rounds": 1},
    ),
    "validators": failing(
        servers=2,
        validators=2,
        workers=5,
        simulation=costs(),
        validation={"rule": {"kind": "zeno"}},
        communication={"participation": 0.7, "skip_rate": 0.3},
        attack={"kind": "sign_flip", "rate": 0.3},
    ),
    "what workers keep": failing(
        seed=3,
        servers=2,
        simulation=costs(),
        train={"optimizer": {"lr": 0.05, "momentum": 0.9}},
        communication={"compression": {"kind": "topk", "k": 0.1, "memory": "residual", "direction": "both"}},
    ),
    "slow workers": failing(
        validators=1,
        heterogeneity={
            "slow": {"workers": [3], "factor": 3.0},
            "classes": [{"name": "imposed", "workers": [1], "seconds": STEP}],
            "delay": {"kind": "uniform", "low": 0.0, "high": 0.3},
        },
        simulation={"step": {"kind": "none"}},
        topology={"servers": 1, "validators": 1, "workers": 4, "evaluators": 1},
    ),
    "asynchronous": failing(
        validators=2,
        servers=2,
        simulation=costs(),
        train={"mode": "async", "epochs": 3},
        validation={"rule": {"kind": "naive_async"}},
        communication={"compression": {"kind": "int8", "direction": "both"}},
    ),
    "asynchronous, one server": failing(
        simulation=costs(), train={"mode": "async", "epochs": 3}, validation={"rule": {"kind": "naive_async"}}
    ),
    "a quorum": failing(workers=6, servers=2, simulation=costs(), train={"quorum": 0.5, "late": "next"}),
    "too few": failing(often=0.5, noticed=0.0, validators=1, survive={"min_workers": 3}),
    "nobody is lost": survivors(),
}


def losses(directory):
    """Return how many losses the combiners have recorded."""
    return sum(file.read_text().count('"event": "lost"') for file in directory.records)


def assert_equal(directory, folder, left=0):
    """Assert that a replay gives the same records, but so many lines of crashes, and the same model."""
    result, _ = replayed(directory, folder)
    assert result.difference is None, result.difference
    assert result.models == len(list(directory.path.glob("final/*.npy")))
    assert result.left <= left


@pytest.mark.sample(2, 5)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_replayed(name, tmp_path):
    directory = run_here(RUNS[name], tmp_path / "run")
    assert (losses(directory) > 3) is (name != "nobody is lost")
    assert_equal(directory, tmp_path / "replay")
    for file in directory.records:  # those of the replay have the same lines; a lost worker writes none after its last
        written, there = ([line["event"] for line in lines(each, file.stem) if line["event"] != "start"]
                          for each in (RunDirectory(tmp_path / "replay"), directory))  # fmt: skip
        assert written == there


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_crashes_between_losses_are_replayed(seed, tmp_path):
    """The run resumes from the checkpoint that the replay has written itself; also before the run is done."""
    chance = random.Random(seed)
    run = failing(often=1.5, servers=2 - seed, validators=seed, seed=seed, checkpoint={"every": 1})
    directory = RunDirectory(tmp_path / "run")
    assert not play(run, directory.path, crash_at=chance.randrange(250, 350))
    assert_equal(directory, tmp_path / "unfinished", left=20)
    play(run, directory.path, crash_at=chance.randrange(100, 250))
    assert directory.done or play(run, directory.path)
    assert_equal(directory, tmp_path / "replay", left=40)


@pytest.mark.sample(1)
@pytest.mark.parametrize("validators", [0, 1])
def test_a_run_that_resumes_without_a_lost_worker_is_replayed(validators, tmp_path):
    """Its checkpoint has no part of worker 2, which goes on where its combiner says."""
    run = survivors({"process": "worker-2", "at": [0.5], "repair": 3600}, validators=validators, servers=2)
    directory = RunDirectory(tmp_path / "run")
    decider = directory.path / "records" / ("validator-0.jsonl" if validators else "server-0.jsonl")
    assert not play(run, directory.path, stop=lambda: '"event": "lost"' in decider.read_text())
    assert play(run, directory.path)
    starts = [line for line in lines(directory, "worker-2") if line["event"] == "start"]
    assert [line.get("without_part") for line in starts] == [None, True]
    assert_equal(directory, tmp_path / "replay")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of two servers, whose follower takes messages of lost workers and of replacements."""
    return run_here(RUNS["what workers keep"], tmp_path_factory.mktemp("done") / "run")


def changed(directory, folder, process, change):
    """Copy a run; change the lines of a record. Return the copy."""
    copy = RunDirectory(Path(shutil.copytree(directory.path, folder / "changed")))
    text = "".join(f"{json.dumps(line)}\n" for line in change(lines(directory, process)))
    record(copy, process).write_text(text)
    return copy


def killed_earlier(found):
    """Leave out all lines of the processes that were lost, but those that start them."""
    starts = [number for number, line in enumerate(found) if line["event"] == "start"]
    return [line for number, line in enumerate(found) if number in starts or number > starts[-1]]


def test_the_record_of_a_lost_worker_may_end_before_its_messages(done, tmp_path):
    """It was killed after it had sent what others counted, and before it wrote that down."""
    for worker in (1, 2, 3):
        assert len(killed_earlier(lines(done, f"worker-{worker}"))) < len(lines(done, f"worker-{worker}")) - 1
        done = changed(done, tmp_path / str(worker), f"worker-{worker}", killed_earlier)
    assert_equal(done, tmp_path / "replay")


@pytest.mark.sample(1)
@pytest.mark.parametrize("repair", [0.3, 3600])
def test_a_worker_that_was_killed_before_its_first_line(repair, tmp_path):
    """It has sent nothing; the run may end without a record of it."""
    run = survivors({"process": "worker-2", "at": [0.01], "repair": repair})
    directory = run_here(run, tmp_path / "run")
    own = lines(directory, "worker-2")
    if len(own) == 1:
        record(directory, "worker-2").unlink()
    else:
        directory = changed(directory, tmp_path, "worker-2", lambda found: found[1:])
    assert_equal(directory, tmp_path / "replay")


def first(event):
    """Return what finds the first line of an event."""
    return lambda line: line["event"] == event


CHANGES = {
    "which answers counted": ("server-0", first("lost"), lambda line: {"counted": not line["counted"]}, "`counted`: "),
    "who was lost": ("server-0", first("lost"), lambda line: {"process": "worker-9"}, "`process`: the record has "),
    "the first round": ("server-0", first("replaced"), lambda line: {"first": line["first"] + 1}, "`first`: the rec"),
    "who took part": (
        "server-1",
        lambda line: line["event"] == "round" and len(line["participants"]) < 4,
        lambda line: {"participants": [0]},
        "`participants`: the record has ",
    ),
    "a loss": ("worker-2", first("round"), lambda line: {"loss": line["loss"] + 1e-9}, "`loss`: the record has "),
    "no such process": (
        "server-1",
        first("round"),
        lambda line: {"order": ["lost server-0"]},
        "`order` has `lost server-0`, which is no event of this run",
    ),
    "no number": (
        "server-0",
        first("replaced"),
        lambda line: {"order": [name.rpartition(" ")[0] if " " in name else name for name in line["order"]]},
        "which is no event of this run",
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(change, done, tmp_path):
    process, choose, alter, what = CHANGES[change]
    found = lines(done, process)
    number = next(number for number, line in enumerate(found) if choose(line))
    altered = {**found[number], **alter(found[number])}
    copy = changed(done, tmp_path, process, lambda each: [*each[:number], altered, *each[number + 1 :]])
    result, _ = replayed(copy, tmp_path / "replay")
    assert result.difference.where == f"records/{process}.jsonl, line {number + 1}", result.difference
    assert what in result.difference.what


def with_order(change):
    """Return what changes the first order of a record in which something is changed."""

    def changed_lines(found):
        for line in found:
            before = line.get("order", [])
            line["order"] = change(before)
            if line["order"] != before:
                return found
        raise AssertionError("nothing is changed")

    return changed_lines


def without(start):
    """Return what leaves out the events of an order that begin so."""
    return lambda order: [name for name in order if not name.startswith(start)]


ORDERS = {
    "a loss": ("server-0", without("lost ")),
    "a replacement": ("server-0", without("replaced ")),
    "a replacement, for a server that does not decide": ("server-1", without("replaced ")),
    "the first message of a replacement": (
        "worker-1",
        lambda order: [name + "0" if "skip" in name else name for name in order],
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ORDERS)
def test_membership_is_part_of_the_order(name, done, tmp_path):
    process, change = ORDERS[name]
    copy = changed(done, tmp_path, process, with_order(change))
    result, _ = replayed(copy, tmp_path / "replay")
    assert result.difference is not None


@pytest.mark.sample(1)
@pytest.mark.parametrize("ahead", ["server", "worker"])
def test_it_makes_no_difference_whose_turn_it_is(ahead, tmp_path, monkeypatch):
    """Servers learn of a replacement before its predecessor has written its last line, or afterwards."""
    run = failing(noticed=0.0, repair=0.0, servers=2, simulation=costs(), checkpoint={"rounds": 1})
    directory, step = run_here(run, tmp_path / "run"), ReplayDriver.step

    def go_ahead(self):
        moved = moves = step(self)
        while moves and self.peer.role == ahead and not self.finished:
            moves = step(self)
        return moved

    monkeypatch.setattr(ReplayDriver, "step", go_ahead)
    assert_equal(directory, tmp_path / "replay")


LOSE = QuorumCollector._lose


def lose_without_its_answer(self, lost):
    """Go on without a worker, and never count its last answer."""
    self._answers.pop(lost.peer, None)
    yield from LOSE(self, lost)


RULES = {
    "an answer that is complete does not count": (QuorumCollector, "_lose", lose_without_its_answer, "`counted`: "),
    "a replacement begins anew": (Positions, "of", lambda self, peer: None, "`bytes_sent`: the record has "),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_changed_rule_is_found(rule, done, tmp_path, monkeypatch):
    owner, name, other, what = RULES[rule]
    monkeypatch.setattr(owner, name, other)
    result, _ = replayed(done, tmp_path / "replay")
    assert what in result.difference.what, result.difference

"""Runs that lose workers, crash, and go on from a checkpoint."""

import json

import pytest
from interrupted import model, play, play_through
from survive.test_lost_workers import LAST, STEP, survivors

from hpcps.execution.resume import lines_before
from hpcps.protocol.messages import Peer
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator


def valid(folder, process, event):
    lines, _ = read_lines(folder / "records" / f"{process}.jsonl").valid()
    return [line for line in lines if line["event"] == event]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("validators", "servers"), [(0, 1), (0, 2), (2, 1)])
def test_stopped_at_a_checkpoint(validators, servers, tmp_path):
    """Without a loss the model is that of a run that was not stopped."""
    run = survivors(validators=validators, servers=servers, checkpoint={"every": 1})
    assert play(run, tmp_path / "whole")
    assert not play(run, tmp_path / "stopped", stop=lambda: True)
    assert play(run, tmp_path / "stopped")
    assert model(tmp_path / "stopped").tobytes() == model(tmp_path / "whole").tobytes()


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_crashes_and_losses(seed, tmp_path):
    """Each worker goes on after its last update that was combined, also if that was before the checkpoint."""
    draw = generator(seed, "worker", 1, "crashes")
    validators, servers = ((0, 1), (0, 2), (2, 1))[seed % 3]
    run = survivors({"every": 1.5, "repair": 0.1}, validators=validators, servers=servers, checkpoint={"every": 1})
    run = run.model_copy(update={"seed": seed})
    crashes = [int(draw.integers(200, 900)) for _ in range(3)]
    play_through(run, tmp_path, crashes)
    for worker in range(4):
        combiner = f"validator-{worker % validators}" if validators else "server-0"
        rounds = valid(tmp_path, combiner, "round")
        assert [line["round"] for line in rounds] == list(range(len(rounds)))
        arrived = [line["round"] for line in rounds if worker in line["arrived"]]
        steps = {line["round"]: line["step"] for line in valid(tmp_path, f"worker-{worker}", "round")}
        wrong = [r for n, r in enumerate(arrived) if r in steps and steps[r] != 2 * (n + 1)]
        assert not wrong, (worker, arrived, steps)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_crashes_and_losses_with_a_quorum(seed, tmp_path):
    draw = generator(seed, "worker", 1, "crashes with a quorum")
    validators, servers = ((0, 1), (0, 2), (2, 1))[seed % 3]
    tables = {"train": {"quorum": 0.5, "late": "next"}, "checkpoint": {"every": 1}, "simulation": {}}
    tables["simulation"]["step"] = {"kind": "uniform", "low": 0.01, "high": 6 * STEP}
    run = survivors({"every": 1.5, "repair": 0.1}, validators=validators, servers=servers, workers=6, **tables)
    run = run.model_copy(update={"seed": seed})
    play_through(run, tmp_path, [int(draw.integers(300, 1200)) for _ in range(3)])
    for combiner in [f"validator-{v}" for v in range(validators)] or ["server-0"]:
        rounds = [line["round"] for line in valid(tmp_path, combiner, "round")]
        assert rounds == list(range(len(rounds)))


def speeds(**seconds):
    return {"classes": [{"name": name, "workers": [int(name[1:])], "seconds": each} for name, each in seconds.items()]}


def of_checkpoint(folder, position):
    """Return the processes of which a checkpoint has parts."""
    return set(json.loads((folder / "checkpoints" / f"{position:09}" / "manifest.json").read_text())["parts"])


def crashed_after(run, folder, position):
    """Crash a run after it has sealed a checkpoint; return the processes of which it has parts."""
    manifest = folder / "checkpoints" / f"{position:09}" / "manifest.json"
    assert not play(run, folder, crash_when=manifest.is_file)
    return of_checkpoint(folder, position)


def goes_on(run, folder):
    """Have a crashed run go on, and check the steps of each worker at its answers that entered rounds."""
    assert play(run, folder)
    combiners = [f"validator-{v}" for v in range(run.topology.validators)] or ["server-0"]
    for worker in range(run.topology.workers):
        rounds = valid(folder, combiners[worker % len(combiners)], "round")
        arrived = [line["round"] for line in rounds if worker in line["arrived"]]
        steps = {line["round"]: line["step"] for line in valid(folder, f"worker-{worker}", "round")}
        assert [steps[round] for round in arrived] == [2 * (n + 1) for n in range(len(arrived))], (worker, arrived)


def test_a_checkpoint_has_no_part_of_a_lost_worker(tmp_path):
    """Worker 2 has written its part of the checkpoint at 5 after 0.85 s; the others do so at 1 s."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.025, w3=0.1), "simulation": {"step": {"kind": "none"}}}
    run = survivors({"process": "worker-2", "at": [0.9]}, checkpoint={"every": 1}, **tables)
    assert "worker-2" not in crashed_after(run, tmp_path, 5)
    goes_on(run, tmp_path)


def test_a_worker_that_is_lost_for_good_holds_up_no_checkpoint(tmp_path):
    run = survivors({"process": "worker-2", "at": [0.5], "repair": 3600}, validators=2, checkpoint={"every": 1})
    assert "worker-2" not in crashed_after(run, tmp_path, 10)
    goes_on(run, tmp_path)


def test_a_checkpoint_begins_before_a_validator_says_who_was_lost(tmp_path):
    """Validator 0 closes round 3 at 1.4 s, worker 2 is lost, and the slow worker 3 ends the round at 1.6 s."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.1, w3=0.2), "simulation": {"step": {"kind": "none"}}}
    run = survivors({"process": "worker-2", "at": [1.5]}, validators=2, checkpoint={"every": 1}, **tables)
    assert "worker-2" not in crashed_after(run, tmp_path, 5)
    goes_on(run, tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("validators", [0, 1])
@pytest.mark.parametrize(("repair", "there"), [(0.05, True), (0.2, False), (3600, False)])
def test_a_run_that_lacks_a_worker_stops_at_a_checkpoint(repair, there, validators, tmp_path):
    """Worker 2 is lost at 0.5 s, and a stop is requested. The round that ends with a checkpoint begins at 0.6 s."""
    run = survivors({"process": "worker-2", "at": [0.5], "repair": repair}, validators=validators)
    decider = tmp_path / "records" / ("validator-0.jsonl" if validators else "server-0.jsonl")
    assert not play(run, tmp_path, stop=lambda: '"event": "lost"' in decider.read_text())
    assert ("worker-2" in of_checkpoint(tmp_path, 4)) == there
    goes_on(run, tmp_path)


@pytest.mark.parametrize("lost", [False, True])
def test_the_lines_before_a_replacement_whose_predecessor_wrote_none_stay_valid(lost, tmp_path):
    """The run resumes, and worker 2 is killed before its first line: those before the checkpoint still count."""
    run = survivors({"process": "worker-2", "at": [0.5], "repair": 3600}, validators=1)
    decider = tmp_path / "records" / "validator-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: not lost or '"event": "lost"' in decider.read_text())
    rounds = len(valid(tmp_path, "worker-2", "round"))
    directory, worker = RunDirectory(tmp_path), Peer("worker", 2)
    kept = lines_before(directory, run.identified("small"), worker, attempt=2).lines
    found = read_lines(tmp_path / "records" / "worker-2.jsonl").lines[:kept]
    assert sum(line["event"] == "round" for line in found) == rounds
    assert lines_before(directory, run.identified("small"), worker, attempt=1).lines >= kept
    directory.checkpoints.clear()
    assert lines_before(directory, run.identified("small"), worker, attempt=2).lines == 0


def test_a_late_worker_is_lost_while_the_run_stops(tmp_path):
    """The round ends without worker 3 at 0.2 s; the checkpoint waits for its answer, which is due at 1 s."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.1, w3=0.5), "simulation": {"step": {"kind": "none"}}}
    run = survivors({"process": "worker-3", "at": [0.5]}, train={"quorum": 0.5, "late": "next"}, **tables)
    assert not play(run, tmp_path, stop=lambda: True)
    assert "worker-3" not in of_checkpoint(tmp_path, 1)
    assert [line["event"] for line in valid(tmp_path, "server-0", "lost")] == ["lost"]
    assert play(run, tmp_path)


@pytest.mark.parametrize(
    ("process", "tables"),
    [
        ("worker-2", {"survive": {"min_workers": 4}}),
        ("worker-2", {"survive": {"min_workers": 4}, "validators": 1}),
        ("validator-0", {"survive": {"validators": True}, "validators": 1}),
    ],
)
def test_a_run_that_stops_does_not_wait_for_a_replacement(process, tables, tmp_path):
    """It is lost in the last round before the stop, in which no replacement takes part."""
    run = survivors({"process": process, "at": [0.75], "repair": 0.1}, **tables)
    server = tmp_path / "records" / "server-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"round": 1' in server.read_text())
    (position,) = RunDirectory(tmp_path).checkpoints.positions()
    assert process not in of_checkpoint(tmp_path, position)
    assert play(run, tmp_path)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("validators", "servers"), [(0, 1), (0, 2), (1, 1), (2, 2)])
@pytest.mark.parametrize("quorum", [{}, {"quorum": 0.5, "late": "next"}])
def test_a_round_that_waits_for_replacements_ends_if_the_run_is_to_stop(quorum, validators, servers, tmp_path):
    """Worker 2 is lost for good in round 2, and all are needed. At the loss of worker 3 server 0 hears of a stop."""
    least = {"min_workers": 2 if validators == 2 else 4}
    failures = [{"process": f"worker-{k}", "at": [at], "repair": 3600} for k, at in ((2, 0.5), (3, 2.0))]
    run = survivors(*failures, validators=validators, servers=servers, survive=least, train=quorum)
    decider = tmp_path / "records" / ("validator-0.jsonl" if validators else "server-0.jsonl")
    assert not play(run, tmp_path, stop=lambda: '"event": "paused"' in decider.read_text())
    waited = [line["round"] for line in valid(tmp_path, decider.stem, "paused")]
    rounds = {line["round"]: line for line in valid(tmp_path, decider.stem, "round")}
    there = {0, 1} if validators < 2 else {0}
    assert rounds[waited[0]]["arrived"]
    assert 2 not in rounds[waited[0]]["arrived"]
    (position,) = RunDirectory(tmp_path).checkpoints.positions()
    assert position == waited[0] + 2
    assert "worker-2" not in of_checkpoint(tmp_path, position)
    assert {f"worker-{k}" for k in there} <= of_checkpoint(tmp_path, position)
    assert play(run, tmp_path)
    whole = [line["round"] for line in valid(tmp_path, decider.stem, "round")]
    assert whole == list(range(len(whole)))


def test_a_run_without_any_validator_stops_at_a_checkpoint(tmp_path):
    failures = [{"process": who, "at": [at], "repair": 3600} for who, at in (("validator-0", 0.5), ("worker-3", 2.0))]
    run = survivors(*failures, survive={"validators": True}, validators=1, servers=2)
    server = tmp_path / "records" / "server-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"event": "paused"' in server.read_text())
    ((wait,), (position,)) = valid(tmp_path, "server-0", "paused"), RunDirectory(tmp_path).checkpoints.positions()
    assert position == wait["round"] + 2
    assert {"worker-0", "worker-1"} <= of_checkpoint(tmp_path, position)
    assert play(run, tmp_path)


def test_in_the_last_rounds_a_run_waits_because_no_checkpoint_comes(tmp_path):
    failures = [{"process": f"worker-{k}", "at": [2 * STEP * (LAST - 1.5) + k], "repair": 5.0} for k in (0, 1)]
    run = survivors(*failures, survive={"min_workers": 4}, validators=1)
    decider = tmp_path / "records" / "validator-0.jsonl"
    assert play(run, tmp_path, stop=lambda: '"event": "paused"' in decider.read_text())
    rounds = valid(tmp_path, "validator-0", "round")
    waits = valid(tmp_path, "validator-0", "paused")
    assert {wait["round"] for wait in waits} == {LAST - 2, LAST - 1}
    assert all(line["arrived"] for line in rounds)


@pytest.mark.parametrize("validators", [0, 1])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_round_that_waits_and_announces_a_checkpoint_ends_if_the_run_is_to_stop(rounds, validators, tmp_path):
    """Worker 2 is lost in round 2; the further loss has server 0 look for a stop."""
    failures = [{"process": f"worker-{k}", "at": [at], "repair": 3600} for k, at in ((2, 0.5), (3, 2.0))]
    run = survivors(*failures, validators=validators, survive={"min_workers": 4}, checkpoint={"rounds": rounds})
    decider = tmp_path / "records" / ("validator-0.jsonl" if validators else "server-0.jsonl")
    assert not play(run, tmp_path, stop=lambda: '"event": "paused"' in decider.read_text())
    assert max(RunDirectory(tmp_path).checkpoints.positions()) <= 5
    assert play(run, tmp_path)


def test_a_worker_that_answered_and_was_lost_goes_on_after_its_answer_that_the_end_of_the_wait_took(tmp_path):
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.025, w3=0.1), "simulation": {"step": {"kind": "none"}}}
    failures = [{"process": f"worker-{k}", "at": [at], "repair": 3600} for k, at in ((2, 0.5), (3, 0.55))]
    run = survivors(*failures, survive={"min_workers": 4}, **tables)
    server = tmp_path / "records" / "server-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"event": "paused"' in server.read_text())
    assert [line["counted"] for line in valid(tmp_path, "server-0", "lost")] == [True, False]
    assert play(run, tmp_path)
    for worker in range(4):
        arrived = [line["round"] for line in valid(tmp_path, "server-0", "round") if worker in line["arrived"]]
        steps = {line["round"]: line["step"] for line in valid(tmp_path, f"worker-{worker}", "round")}
        assert [steps[round] for round in arrived] == [2 * (n + 1) for n in range(len(arrived))]


@pytest.mark.parametrize("validators", [0, 1])
@pytest.mark.parametrize("late", ["next", "drop"])
def test_a_quorum_waits_for_no_answers_that_were_dropped(late, validators, tmp_path):
    """The slow worker 3 is late in round 1. Worker 2 is lost for good then, and three of four are a quorum."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.1, w3=0.7), "simulation": {"step": {"kind": "none"}}}
    failure = {"process": "worker-2", "at": [0.45], "repair": 50}
    run = survivors(failure, validators=validators, train={"quorum": 0.75, "late": late}, **tables)
    assert play(run, tmp_path)
    decider = "validator-0" if validators else "server-0"
    assert len(valid(tmp_path, decider, "round")) == LAST


def test_an_answer_that_is_sent_again_after_a_resume_enters_once(tmp_path):
    """Worker 3 owes an answer at the checkpoint, sends it again, and is lost: its replacement goes on after it."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.1, w3=0.15), "simulation": {"step": {"kind": "none"}}}
    failure = {"process": "worker-3", "at": [0.35], "repair": 0.01}
    run = survivors(failure, train={"quorum": 0.5, "late": "next"}, **tables)
    assert not play(run, tmp_path, stop=lambda: True)
    assert play(run, tmp_path)
    assert valid(tmp_path, "server-0", "lost")
    lines = valid(tmp_path, "server-0", "round")
    of = [line["round"] - dict(line["late"]).get(3, 0) for line in lines if 3 in line["arrived"]]
    steps = {line["round"]: line["step"] for line in valid(tmp_path, "worker-3", "round")}
    assert [steps[round] for round in of] == [2 * (n + 1) for n in range(len(of))]

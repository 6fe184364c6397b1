import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcps.cli.main import main
from hpcps.cli.status import overview
from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.records.acceptance import RunAcceptance
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix
from hpcps.records.forecast import Forecast, summary, time_left, work_left
from hpcps.records.locate import locate, run_folder
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SILENT_AFTER, RunStatus, SweepProgress, kinds_of
from hpcps.records.sweep import write_sweep
from hpcps.records.writer import RecordWriter
from hpcps.spec.load import load_experiment

SPEC = {
    "run_id": "0123456789", "label": "zeno · negative 6", "index": 0, "swept": {},
    "run": {"topology": {"validators": 1, "workers": 2}, "train": {"epochs": 4}},
}  # fmt: skip


@pytest.fixture
def directory(tmp_path):
    found = RunDirectory(tmp_path / "results" / "demo" / "runs" / "0123456789")
    found.create(SPEC)
    return found


def play(directory, role, index, rounds, compute=0.4, first=0, **fields):
    """Write rounds of 4 steps each; 8 steps are an epoch, which validator 0 evaluates."""
    seconds = [float(first)]
    with RecordWriter(directory.path, "0123456789", role, index, f"n{index}", clock=lambda: seconds[0]) as record:
        if not first:
            record.write("start")
        for r in range(first, rounds):
            seconds[0] += 1.0
            record.write("round", round=r, step=4 * (r + 1), epoch=(r + 1) / 2, compute=compute, **fields)
            if role == "validator" and r % 2:
                record.write(
                    "evaluation", round=r + 1, epoch=(r + 1) // 2, accuracy=0.1 * r, acceptance_rate_sent_epoch=0.7
                )
    return record.path


def test_a_run_without_records_has_not_started(directory, tmp_path):
    (status,) = SweepProgress([directory.path]).poll()
    assert (status.state, status.epoch, status.epochs, status.accuracy) == ("not started", 0, 4, None)
    assert status.label == "zeno · negative 6"
    (absent,) = SweepProgress([tmp_path / "nowhere" / "00ff"]).poll()
    assert (absent.state, absent.run_id) == ("not started", "00ff")


def test_a_running_one(directory):
    play(directory, "worker", 0, 3, compute=0.4)
    play(directory, "worker", 1, 3, compute=2.0)
    play(directory, "validator", 0, 2, received_pairs=60, sent_pairs=50, accepted_sent_pairs=30)
    (status,) = SweepProgress([directory.path]).poll()
    assert status.state == "running"
    assert (status.round, status.epoch, status.accuracy, status.acceptance.rate) == (2, 1.0, pytest.approx(0.1), 0.6)
    assert (status.slowest, status.slowest_step) == ("worker-1", 0.5)
    assert status.age < 60


def test_before_the_first_evaluation_the_rounds_tell_the_acceptance(directory):
    play(directory, "validator", 0, 1, received_pairs=60, sent_pairs=50, accepted_sent_pairs=30)
    (status,) = SweepProgress([directory.path]).poll()
    assert (status.acceptance.rate, status.accuracy) == (0.6, None)


def test_the_acceptance_is_that_of_the_whole_run_up_to_its_latest_evaluation(directory):
    """Of all validators; the record of validator 0 is longer than the tail of others that is read."""
    lines = [{"event": "start"}]
    for number in range(400):
        pairs = {"received_pairs": 10, "sent_pairs": 10, "accepted_sent_pairs": 10 * (number == 0)}
        lines.append(
            {"event": "round", "round": number, "time": number, "participants": [0], "kept_out": ["x" * 500]} | pairs
        )
    path = directory.path / "records/validator-0.jsonl"
    path.parent.mkdir(exist_ok=True)
    lines.insert(-100, {"event": "evaluation", "round": 300, "epoch": 1, "time": 300, "accuracy": 0.5})
    lines.append({"event": "end", "what": "x" * 2**21})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copy(path, path.with_stem("validator-1"))
    (status,) = SweepProgress([directory.path]).poll()
    assert status.acceptance == RunAcceptance(sent=6000, accepted=20, rounds=300, empty=299)
    assert status.acceptance.stalled
    shown = overview([status])
    assert "running, stalled" in shown
    assert "0.3 %" in shown
    assert "the rule accepted no update in 299 of 300 rounds" in shown
    assert "accepted: of the (update, block) pairs sent, from the start of the run to its latest evaluation" in shown


def test_a_run_is_silent_unless_it_is_slow_itself(directory):
    path = play(directory, "worker", 0, 3)
    progress = SweepProgress([directory.path])
    now = path.stat().st_mtime
    assert progress.poll(now + SILENT_AFTER - 1)[0].state == "running"
    silent = progress.poll(now + SILENT_AFTER + 1)[0]
    assert (silent.state, round(silent.age)) == ("silent", SILENT_AFTER + 1)
    assert progress.poll(now - 5)[0].age == 0  # a clock of another host
    with path.open("a") as file:
        file.write(json.dumps({"event": "round", "round": 3, "step": 16, "time": 1000.0}) + "\n")
    assert progress.poll(path.stat().st_mtime + 4000)[0].state == "running"


def test_done_and_stopped_and_diverged(directory):
    path = play(directory, "worker", 0, 2)
    progress = SweepProgress([directory.path])
    assert progress.poll()[0].state == "running"
    with path.open("a") as file:
        file.write('{"event": "diverged", "round": 2}\n{"event": "end", "reason": "stopped"}\n')
    (status,) = progress.poll()
    assert (status.state, status.diverged) == ("stopped", True)
    directory.finish(3.0)
    assert progress.poll()[0].state == "done"


def test_an_evaluator_is_awaited_only_while_the_run_goes_on(directory):
    seconds = [0.0]

    def record(role, *events):
        with RecordWriter(directory.path, "0123456789", role, 0, "n0", clock=lambda: seconds[0]) as writer:
            writer.write("start")
            for name, fields in events:
                seconds[0] += 1.0
                writer.write(name, **fields)

    record("worker", ("round", {"round": 7, "step": 8, "epoch": 4.0}), ("end", {"reason": "finished"}))
    decided = [("evaluation" if epoch == 2 else "not_evaluated", {"epoch": epoch}) for epoch in (1, 2, 3)]
    record("validator", ("round", {"round": 6, "epoch": 3.0}), *decided, ("round", {"round": 7, "epoch": 4.0}))
    record("evaluator")
    (status,) = SweepProgress([directory.path]).poll()
    awaited = "the training is over, and the evaluation of the last model is awaited"
    assert status.evaluator == f"evaluator-0: 1 of 3 epochs evaluated; {awaited}"
    assert (status.left, time_left([status])) == (0, None)
    assert "left" not in overview([status]).split("\n")[0]
    directory.fail("evaluator", 0, "n0", None, "waiting", "it was killed")
    (status,) = SweepProgress([directory.path]).poll()
    assert (status.state, status.evaluator) == ("failed", "evaluator-0: 1 of 3 epochs evaluated")


def test_a_failure_names_its_cause(directory):
    play(directory, "worker", 1, 2)
    directory.fail("worker", 1, "n07", 2, "exchange", ValueError("no such block"))
    time.sleep(0.01)
    directory.fail("server", 0, "n01", 2, "wait", "worker-1 is gone")
    (status,) = SweepProgress([directory.path]).poll()
    assert status.state == "failed"
    assert (status.failures[0].role, status.failures[0].host, status.failures[0].phase) == ("worker", "n07", "exchange")
    assert status.last_line["round"] == 1
    text = overview([status])
    assert "first worker-1 on n07 failed in round 2, phase exchange: ValueError: no such block" in text
    assert '"round": 1' in text
    assert text.index("worker-1 on n07") < text.index("server-0 on n01")


def test_polling_reads_only_what_is_new(directory):
    path = play(directory, "validator", 0, 2)
    progress = SweepProgress([directory.path])
    progress.poll()
    # What was read is not read again: damage it, and nothing changes.
    content = path.read_bytes()
    path.write_bytes(b"x" * (len(content) - 1) + b"\n")
    assert progress.poll()[0].round == 2
    line = json.dumps({"event": "round", "round": 7, "step": 32, "epoch": 4.0}).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line[:20])
    assert progress.poll()[0].round == 2
    with path.open("ab") as file:
        file.write(line[20:])
    assert progress.poll()[0].round == 8


def test_an_overview_is_a_table(directory, tmp_path):
    play(directory, "worker", 0, 3, compute=0.4)
    play(directory, "validator", 0, 3, received_pairs=50, sent_pairs=50, accepted_sent_pairs=30)
    runs = SweepProgress([directory.path, tmp_path / "ffff"]).poll()
    runs[1] = replace(runs[1], label="average · none")
    head, one, two, _ = overview(runs).splitlines()
    assert head.split("  ")[0] == "run"
    for expected in ("0123456789", "zeno · negative 6", "running", "1.5/4", "10.0 %", "60.0 %", "100 ms", " ago"):
        assert expected in one
    assert two.split() == ["ffff", "average", "·", "none", "not", "started"]


def test_what_a_person_types_finds_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    for name in ("fig3_sync", "fig4_sync", "fig4"):
        (results / name / "runs").mkdir(parents=True)
    assert locate("fig3", results).results == results / "fig3_sync"
    assert locate("fig4", results).results == results / "fig4"
    assert locate(str(results / "fig3_sync"), results).results == results / "fig3_sync"
    with pytest.raises(RunError, match="'fig' matches fig3_sync, fig4, fig4_sync"):
        locate("fig", results)
    with pytest.raises(RunError, match="did you mean 'fig3_sync'"):
        locate("fig3_snyc", results)
    with pytest.raises(RunError, match="no experiment file"):
        locate("absent.toml", results)


def test_a_beginning_does_not_mean_the_runs_of_a_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Path("results")
    (results / "s2.search" / "runs").mkdir(parents=True)
    with pytest.raises(RunError, match=r"no runs of 's2', only those of a search: s2\.search"):
        locate("s2", results)
    assert locate("s2.search", results).results == locate("s2.s", results).results == results / "s2.search"
    (results / "s2long" / "runs").mkdir(parents=True)
    assert locate("s2", results).results == results / "s2long"


def test_the_repository_is_not_needed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="are: none"):
        locate("fig3", tmp_path / "results")
    assert os.listdir(tmp_path) == []


def test_updates_that_are_all_refused_are_not_accepted(directory):
    refused = {"sent_pairs": 0, "accepted_sent_pairs": 0, "rejected_blocks": 12, "acceptance_rate": 1.0}
    path = play(directory, "validator", 0, 1, **refused)
    (status,) = SweepProgress([directory.path]).poll()
    assert (status.acceptance.rate, status.refused) == (None, 12)
    line = {"event": "evaluation", "epoch": 1, "accuracy": 0.1, "acceptance_rate_epoch": 1.0}
    line |= {"acceptance_rate_sent_epoch": None, "rejected_blocks_cumulative": 40}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    text = overview(SweepProgress([directory.path]).poll())
    assert "40 blocks" in text
    assert "100.0 %" not in text


def running(directory, rounds, **fields):
    path = play(directory, "validator", 0, rounds, **fields)
    return path, path.stat().st_mtime


def test_the_time_left_follows_from_the_pace_of_this_attempt(directory):
    path, now = running(directory, 3)  # an epoch is two rounds of a second each
    progress = SweepProgress([directory.path])
    (status,) = progress.poll(now)
    assert (status.pace, status.left) == (2.0, 5.0)
    assert progress.poll(now + 2)[0].left == pytest.approx(3.0)
    assert progress.poll(now + 60)[0].left == 0  # longer than usual, but not a stall
    assert progress.poll(now + 2 * SILENT_AFTER)[0].left is None
    with path.open("a") as file:
        file.write('{"event": "start", "attempt": 2}\n')
        for second in (10, 30):
            file.write(json.dumps({"event": "round", "round": 3, "time": second, "epoch": second / 10}) + "\n")
    (status,) = progress.poll(path.stat().st_mtime)
    assert (status.attempt, status.pace, status.left) == (2, 10.0, 10.0)
    directory.finish(40.0)
    (status,) = progress.poll()
    assert (status.pace, status.left) == (10.0, None)


def test_a_sweep_takes_as_long_as_what_runs_and_what_has_not_begun(directory):
    _, now = running(directory, 3)
    (one,) = SweepProgress([directory.path]).poll(now)  # 5 s left, 2 s an epoch
    waiting = replace(one, state="not started", pace=None, left=None, epoch=0.0, epochs=10)
    done = replace(one, state="done", pace=4.0, left=None, epoch=4.0)
    failed = replace(waiting, state="failed")
    assert time_left([one]) == Forecast(5.0)
    assert time_left([one, waiting, failed]) == Forecast(5.0 + 10 * 2.0)
    assert time_left([one, done, waiting]) == Forecast(5.0 + 10 * 4.0)  # the pace of what is done
    assert time_left([one, one, waiting]) == Forecast((5.0 + 5.0 + 20.0) / 2)
    assert time_left([one, replace(one, left=100.0)]) == Forecast(100.0)
    assert time_left([waiting, done]) is None
    assert time_left([replace(one, pace=None, left=None), waiting]) is None
    assert summary([one, done, waiting]) == (
        "3 runs: 1 running, 1 done, 1 not started; 31 % of all epochs; about 45 s left"
    )
    assert summary([done]) == "1 run: 1 done"


def test_the_work_left_is_that_of_unfinished_runs_one_after_another(directory):
    _, now = running(directory, 3)
    (one,) = SweepProgress([directory.path]).poll(now)  # 5 s left, 2 s an epoch
    done = replace(one, state="done", pace=4.0, left=None, epoch=4.0)
    stopped = replace(one, state="stopped", left=None, epoch=3.0, epochs=10)
    failed = replace(stopped, state="failed", epoch=0.0)
    assert work_left([one, done, stopped, failed], [one, done]) == Forecast(5.0 + 7 * 4.0 + 10 * 4.0)
    assert work_left([stopped], [one]) == Forecast(7 * 2.0)
    assert work_left([stopped, replace(stopped, kinds=("other",))], [done]) == Forecast(7 * 4.0, others=1)
    assert work_left([done], [done]) is None


def unequal(model, epochs, rule="average", state="not started", **fields):
    """A run whose pace depends on the model: seconds for one, milliseconds for the other."""
    run = {
        "model": {"backend": "torch", "name": model}, "data": {"name": "digits"}, "topology": {"workers": 4},
        "train": {"epochs": epochs}, "validation": {"rule": {"kind": rule, "before": []}}, "attack": {"kind": "none"},
    }  # fmt: skip
    left = RunStatus(Path(), model, "", "not started").planned(model, run)
    return replace(left, state=state, **fields)


def test_the_forecast_of_unequal_runs_is_per_kind():
    """One epoch of a large model takes a minute, and one of a small model 10 ms."""
    slow = unequal("resnet", 1, state="done", epoch=1.0, pace=60.0)
    fast = unequal("mlp", 100, state="running", epoch=50.0, pace=0.01, left=0.5)
    waiting = [unequal("mlp", 100)] * 39
    assert time_left([slow, fast, *waiting]).seconds == pytest.approx(0.5 + 39 * 1.0)
    assert time_left([slow, fast, *waiting, unequal("resnet", 1)]).seconds == pytest.approx(0.5 + 39 + 60)
    # Another rule, another number of epochs: as other runs of this model.
    assert time_left([slow, fast, unequal("mlp", 300, "median")]).seconds == pytest.approx(0.5 + 3.0)
    # What is done says more than what runs, and the same rule more than another one.
    other = unequal("mlp", 100, "median", state="done", epoch=100.0, pace=0.03)
    assert time_left([fast, other, unequal("mlp", 100, "median")]).seconds == pytest.approx(0.5 + 3.0)
    assert time_left([fast, other, unequal("mlp", 300, "median")]).seconds == pytest.approx(0.5 + 9.0)


def test_runs_of_kinds_without_progress_are_not_in_the_forecast():
    slow = unequal("resnet", 2, state="running", epoch=1.0, pace=60.0, left=60.0)
    fast = [unequal("mlp", 1000)] * 3
    assert time_left([slow, *fast]) == Forecast(60.0, others=3)
    assert summary([slow, *fast]).endswith("; about 60 s left without 3 runs of other kinds")
    begun = unequal("mlp", 1000, state="running")
    assert time_left([slow, begun]) == Forecast(60.0, others=1)


def test_the_kinds_of_a_run_ignore_its_seed_and_its_rates():
    sweep = "[[sweep]]\n'validation.rule.kind' = ['average', 'median']\n[[sweep]]\nseed = [1, 2]\n"
    points = load_experiment("x.toml", content=FILE.partition("[[")[0] + sweep).points
    one, two, three, _ = (kinds_of(point.run.model_dump(mode="json")) for point in points)
    assert one == two
    assert [a == b for a, b in zip(one, three, strict=True)] == [False, False, True, True]


def test_earlier_attempts_are_counted_and_their_causes_kept(directory):
    directory.fail("worker", 1, "n07", 2, "exchange", ValueError("no such block"))
    for number in (1, 2):
        directory.create(SPEC)
        assert (directory.failures, len(directory.earlier_failures)) == ((), number)
        directory.fail("server", number, "n01", 2, "wait", "worker-1 is gone")
    (status,) = SweepProgress([directory.path]).poll()
    assert (status.attempt, [failure.role for failure in status.earlier]) == (3, ["server", "worker"])
    text = overview([status])
    told = [text.index(f"{who}-{n} on n0") for who, n in (("server", 2), ("server", 1), ("worker", 1))]
    assert told == sorted(told), "the newest attempt first"
    assert "failed  0.0/4  3." in text
    assert "an earlier attempt: worker-1 on n07 failed in round 2, phase exchange: ValueError: no such block" in text
    directory.create(SPEC)
    directory.finish(1.0)
    assert "earlier" not in overview(SweepProgress([directory.path]).poll())


FILE = """
name = "demo"
topology.workers = 2
model.name = "mlp"
data.name = "digits"
train.epochs = 4
[[sweep]]
seed = [1, 2]
"""


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A file of two points, one of which is done as it is, and both, one not finished, with fewer epochs."""

    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    file = tmp_path / "experiments" / "demo.toml"
    file.write_text(FILE)
    for overrides, count in (((), 1), (("train.epochs=2",), 2)):
        for point in load_experiment(file, overrides).points[:count]:
            directory = RunDirectory(run_folder(point, tmp_path / "results"))
            directory.create(point.spec)
            if point.index == 0:
                directory.finish(8.0)
    return tmp_path / "results"


def shown(capsys, *arguments):
    code = main(["status", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_sweep_is_shown_whole_and_runs_of_other_values_apart(results, capsys):
    for arguments in (["demo"], ["experiments/demo.toml"], []):
        code, text = shown(capsys, *arguments)
        assert code == 0
        head, _, *rows = text.strip().splitlines()
        assert head == "demo: 4 runs: 2 done, 2 not started; 50 % of all epochs"
        labels = [row[12:].split("  ")[0] for row in rows]
        assert labels == ["seed 1", "seed 2", "seed 1 (train.epochs=2)", "seed 2 (train.epochs=2)"]


def test_points_are_selected_as_for_run(results, capsys):
    def rows(*arguments):
        code, text = shown(capsys, *arguments)
        head, _, *rows = text.strip().splitlines()
        return code, head, [row[12:].split("  ")[0] for row in rows]

    for what in ("demo", "experiments/demo.toml", str(results / "demo")):
        assert rows(what, "--only", "seed=1") == (0, "demo: 1 run: 1 done", ["seed 1"])
        head = "demo: 2 runs: 1 done, 1 not started; 50 % of all epochs"
        assert rows(what, "--set", "train.epochs=2") == (0, head, ["seed 1", "seed 2"])
    head = "demo: 1 run: 1 not started; 0 % of all epochs"
    assert rows("demo", "--set", "train.epochs=3", "--only", "0-1", "--only", "seed=2") == (0, head, ["seed 2"])
    for arguments, words in (
        (["demo", "--only", "zeno"], 'no point matches "zeno"'),
        (["--only", "0"], "--set and --only choose points of one experiment: name it"),
        (["demo", "--set", "train.epoch=3"], "train.epoch: unknown key"),
    ):
        code, text = shown(capsys, *arguments)
        assert (code, words in text) == (2, True)


def test_a_file_with_plugins_is_selected_from_what_was_launched(results, capsys):
    file = results.parent / "experiments" / "demo.toml"
    points = [point.spec for point in load_experiment(file).points]
    file.write_text(f'plugins = ["./rule.py"]\n{FILE}')
    code, text = shown(capsys, "demo", "--only", "1")
    assert (code, "the points of demo are not known before `hpcps run`" in text) == (2, True)
    write_sweep(results / "demo", file, (), points)
    code, text = shown(capsys, "demo", "--only", "1")
    assert (code, text.splitlines()[0]) == (0, "demo: 1 run: 1 not started; 0 % of all epochs")


def test_a_file_that_nobody_has_run_as_it_is_does_not_fill_the_screen(results, capsys):
    for point in load_experiment("experiments/demo.toml").points:
        shutil.rmtree(results / "demo" / "runs" / point.run_id, ignore_errors=True)
    _, text = shown(capsys, "demo")
    head, _, *rows = text.splitlines()
    assert head.startswith("demo (train.epochs=2): 2 runs: ")
    assert [row[12:18] for row in rows[:2]] == ["seed 1", "seed 2"]
    assert "train.epochs" not in "".join(rows)
    assert "  the 2 points of the file without --set have not started\n" in text


def test_a_file_with_mistakes_does_not_hide_its_runs(results, capsys):
    (results.parent / "experiments" / "demo.toml").write_text("name = ")
    code, text = shown(capsys)
    assert (code, text.splitlines()[0]) == (0, "demo: 3 runs: 2 done, 1 not started; 75 % of all epochs")


def test_a_run_is_meant_by_four_digits_of_its_id_or_more(results, capsys):
    (one, *_) = sorted(path.name for path in (results / "demo" / "runs").iterdir())
    for text in (one, one[:4]):
        code, out = shown(capsys, text)
        assert (code, out.count("demo: 1 run: "), one in out) == (0, 1, True)
    for text in (one[0], one[:3]):
        code, out = shown(capsys, text)
        assert (code, "no experiment" in out) == (2, True)


@pytest.mark.parametrize("what", ["x" * 5000, "a/" * 3000, "[", "*", "\x00"])
def test_nonsense_gets_an_answer_not_a_traceback(results, capsys, what):
    code, text = shown(capsys, what)
    assert code == 2
    assert text.startswith("hpcps: ")
    assert len(text) < 7000


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_was_reached_before_a_checkpoint_still_holds(directory, goes_on):
    play(directory, "validator", 0, 4)
    part = CheckpointPart(State(), Prefix(7), elapsed=4.0) if goes_on else None
    with RecordWriter(directory.path, "0123456789", "validator", 0, "n0", part=part) as record:
        record.write("start")
    (status,) = SweepProgress([directory.path]).poll()
    assert status.attempt == 2
    assert (status.epoch, status.accuracy) == ((2.0, pytest.approx(0.3)) if goes_on else (0.0, None))


def test_the_local_steps_of_a_policy_are_shown_while_it_runs(directory):
    play(directory, "worker", 0, 2)
    with RecordWriter(directory.path, "0123456789", "server", 0, "n0") as record:
        record.write("start")
        record.write(
            "local_steps", time=12.5, round=3, who=["worker-0", "worker-1", "worker-2"], k=[1, 12, 0],
            c=[3.5, 0.0312, None], te=[9.25, 12.4, None], ready=[True, False, False],
        )  # fmt: skip
    (status,) = SweepProgress([directory.path]).poll()
    text = overview([status])
    assert "0123456789: worker-0: k 1, c 3.5 s, te 9.2 s of 12.5 s, sends its update\n" in text
    assert "0123456789: worker-1: k 12, c 0.0312 s, te 12.4 s of 12.5 s\n" in text
    assert text.endswith("0123456789: worker-2: k 0, c unknown, has not begun the round")
    with RecordWriter(directory.path, "0123456789", "server", 0, "n0") as record:
        record.write("start")
    assert "worker-1: k" not in overview(SweepProgress([directory.path]).poll()), "those of an earlier attempt"
    directory.finish(3.0)
    assert "worker-1: k" not in overview(SweepProgress([directory.path]).poll())


@pytest.mark.parametrize("damage", [{"k": 3}, {"who": None}, {"c": ["x"], "te": [{}], "k": [None]}, {"ready": "yes"}])
def test_damaged_local_steps_are_no_failure(directory, damage):
    play(directory, "worker", 0, 2)
    line = {"who": ["worker-0"], "k": [1], "c": [0.1], "te": [1.0], "ready": [False]} | damage
    with RecordWriter(directory.path, "0123456789", "server", 0, "n0") as record:
        record.write("local_steps", **line)
    assert "0123456789" in overview(SweepProgress([directory.path]).poll())


def test_only_finds_runs_with_set_of_an_experiment_whose_file_is_elsewhere(results, capsys, tmp_path):
    file = results.parent / "experiments" / "demo.toml"
    points = load_experiment(file, ["train.epochs=2"]).points
    elsewhere = tmp_path / "elsewhere"
    write_sweep(elsewhere / "demo", file, ["train.epochs=2"], [point.spec for point in points])
    RunDirectory(elsewhere / "demo" / "runs" / points[0].run_id).create(points[0].spec)
    file.unlink()
    code, text = shown(capsys, str(elsewhere / "demo"), "--only", "0")
    assert (code, text.splitlines()[0].startswith("demo: 1 run: 1 ")) == (0, True)
    code, text = shown(capsys, str(elsewhere / "demo"), "--only", "zeno")
    assert (code, 'no point matches "zeno"' in text) == (2, True)

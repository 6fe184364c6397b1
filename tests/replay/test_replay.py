"""Asynchronous runs whose roles took turns by chance are replayed to the same bits; changes of records are found."""

import json
import platform
import random
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from recorded import asynchronous, lines, play, quorum, record, replayed

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.execution.replay.driver import ReplayDriver
from hpcps.execution.role_driver import RoleDriver
from hpcps.records.collect import collect
from hpcps.records.provenance import installed_code, machine
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.evaluation_job import Died, TrainerEvaluations
from hpcps.roles.events import InBackground
from hpcps.spec.identity import run_id
from hpcps.spec.schema import Run

RUNS = {
    "validators": asynchronous((2, 2, 4), validation={"rule": {"kind": "zeno++"}}, attack={"kind": "sign_flip"}),
    "share": asynchronous((1, 1, 3), asynchronous={"updates_per_refresh": "share", "absent": "reset"}),
    "servers combine": asynchronous((2, 0, 3), asynchronous={"absent": "reset"}),
    "adversary": asynchronous((1, 2, 5), attack={"kind": "ipm", "rate": 0.4}),
    "delays": asynchronous((1, 1, 3), heterogeneity={"delay": {"kind": "lognormal", "median": 0.5, "sigma": 1.0}}),
    "evaluator": asynchronous((1, 1, 3), topology={"evaluators": 1}),
    "quorum": quorum(attack={"kind": "sign_flip", "rate": 0.3}),
    "grace": quorum((2, 0, 4), train={"quorum": 2, "grace": 0.5, "late": "next"}, transport={"partition": 4096}),
    "abandon": quorum((1, 1, 4), train={"abandon": True}),
    "slow workers": asynchronous(
        (2, 1, 4),
        heterogeneity={
            "slow": {"workers": [3], "factor": 3.0},
            "classes": [{"name": "imposed", "workers": [1], "seconds": 0.5}],
        },
    ),
}


def assert_equal(directory, folder, left=0):
    """Assert that a replay gives the same records, but so many at the end of attempts, and the same model."""
    result, _ = replayed(directory, folder)
    assert result.difference is None, result.difference
    assert result.models == len(list(directory.path.glob("final/*.npy")))
    assert result.left <= left
    assert result.lines > 20


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_replayed(name, tmp_path):
    directory = play(RUNS[name], tmp_path, seed=name)
    assert (directory.path / "DONE").exists()
    assert_equal(directory, tmp_path / "replay")


def test_the_ends_of_the_process_that_evaluates_are_replayed(tmp_path):
    evaluating, calls = TrainerEvaluations.evaluating, iter(range(100))

    def dying(self, job):
        if next(calls) not in (1, 3, 4):
            return evaluating(self, job)
        return InBackground("evaluate", lambda: (job, Died(self.pid, "was killed")), self.cancel)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainerEvaluations, "evaluating", dying)
        patch.setattr(TrainerEvaluations, "restart", lambda self: setattr(self, "pid", self.pid + 1))
        directory = play(asynchronous((1, 1, 3), epochs=6, topology={"evaluators": 1}), tmp_path, seed=1)
    died = [line["again"] for line in lines(directory, "evaluator-0") if line["event"] == "evaluator_died"]
    assert died == [True, True, False]
    assert_equal(directory, tmp_path / "replay")


SLOW = [pytest.param(name, marks=pytest.mark.soak) for name in ("servers combine", "delays", "evaluator")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["validators", "grace", *SLOW])
def test_interrupted_runs_are_replayed(name, tmp_path):
    """A crash before and after a checkpoint, and a stop at a checkpoint; also before the run is done."""
    play(RUNS[name], tmp_path, seed=1, crash=lambda d: record(d, "server-0").read_text().count("\n") > 4)
    later = iter(range(random.Random(name).randrange(80)))
    sealed = lambda d: d.checkpoints.positions() and next(later, None) is None  # noqa: E731
    directory = play(RUNS[name], tmp_path, seed=2, crash=sealed)
    assert_equal(directory, tmp_path / "unfinished", left=40)
    polls = iter(range(20))
    play(RUNS[name], tmp_path, seed=3, stop=lambda: next(polls, None) is None)
    assert lines(directory, "server-0")[-1]["reason"] == "suspended"
    play(RUNS[name], tmp_path, seed=4)
    starts = [line for line in lines(directory, "worker-1") if line["event"] == "start"]
    assert ["continues" in line for line in starts] == [False, False, True, True]
    assert_equal(directory, tmp_path / "replay", left=40)


@pytest.mark.sample(1)
@pytest.mark.parametrize("counted", ["together", "apart"])
def test_an_attempt_that_not_all_processes_began_is_left_out(counted, tmp_path):
    """It was killed in its first milliseconds. In records of earlier versions each process counted its own attempts."""
    run, runs = RUNS["validators"], tmp_path / "results/runs"
    directory = play(run, runs, seed=1, crash=lambda d: record(d, "server-0").read_text().count("\n") > 2)
    late = [record(directory, f"worker-{k}") for k in (2, 3)]
    for file in late:
        file.write_text("")
    with pytest.raises(RunError, match="worker-2, worker-3 has records of no attempt"):
        replayed(directory, tmp_path / "unfinished")
    play(run, runs, seed=2, crash=lambda d: bool(d.checkpoints.positions()))
    play(run, runs, seed=3)
    for file in directory.records:
        starts = [line["attempt"] for line in lines(directory, file.stem) if line["event"] == "start"]
        assert starts == ([2, 3] if file in late else [1, 2, 3])
    for file in late if counted == "apart" else ():
        one_less = re.sub('"attempt": (.)', lambda found: f'"attempt": {int(found[1]) - 1}', file.read_text())
        file.write_text(one_less)
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference
    assert (result.attempts, result.models) == (2, 2)
    assert 0 < result.left < 60
    table = collect(tmp_path / "results").table
    assert table.loc[table["role"] == "worker", "index"].nunique() == 4


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return play(RUNS["validators"], tmp_path_factory.mktemp("done"), seed="done")


def test_without_the_recorded_order_the_replay_differs(done, tmp_path, monkeypatch):
    monkeypatch.setattr(ReplayDriver, "_next", RoleDriver._next)
    result, _ = replayed(done, tmp_path / "replay")
    assert result.difference is not None


def changed(directory, folder, process, choose, change):
    """Copy a run and change a line of a record; return the copy and the number of the line."""
    copy = RunDirectory(Path(shutil.copytree(directory.path, folder / directory.path.name)))
    text = record(copy, process).read_text().splitlines()
    number = next(number for number, line in enumerate(text) if number > len(text) // 2 and choose(json.loads(line)))
    line = json.loads(text[number])
    text[number : number + 1] = change(line)
    record(copy, process).write_text(
        "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in text)
    )
    return copy, number + 1


CHANGES = {
    "a loss": ("worker-2", "round", lambda line: [line | {"loss": line["loss"] + 1e-9}], "`loss`: the record has "),
    "a worker": (
        "validator-1",
        "round",
        lambda line: [line | {"participants": [0]}],
        "`participants`: the record has ",
    ),
    "a weight": ("server-1", "applied", lambda line: [line | {"weight": 0.5}], "`weight`: the record has 0.5, the "),
    "an evaluation": (
        "validator-0",
        "evaluation",
        lambda line: [line | {"accuracy": 2}],
        "`accuracy`: the record has 2",
    ),
    "a missing line": ("server-0", "applied", lambda line: [], "`round`: the record has "),
    "another event": (
        "server-0",
        "applied",
        lambda line: [line | {"order": ["worker-9"]}],
        "`order` has `worker-9`, which is no event of this run",
    ),
    "a wrong order": ("worker-0", "round", lambda line: [line | {"order": 5}], "`order` is not a list of names"),
    "damage": ("worker-0", "round", lambda line: ["{"], "it is not a record line"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_record_is_found_with_its_line(name, done, tmp_path):
    process, event, change, what = CHANGES[name]
    with_weight = lambda line: line["event"] == event and (event != "applied" or "weight" in line)  # noqa: E731
    copy, number = changed(done, tmp_path, process, with_weight, change)
    result, _ = replayed(copy, tmp_path / "replay")
    assert result.difference.where == f"records/{process}.jsonl, line {number}", result.difference
    assert what in result.difference.what


def test_times_are_not_compared(done, tmp_path):
    later = {"time": 1e6, "wait": 3.0, "cpu_train": 5.0, "host": "elsewhere", "polls": 7}
    copy, _ = changed(done, tmp_path, "worker-2", lambda line: line["event"] == "round", lambda line: [line | later])
    assert_equal(copy, tmp_path / "replay")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("process", "count"), [("worker-1", 1), ("worker-1", 4), ("validator-0", 2), ("server-1", 2), ("evaluator-0", 2)]
)
def test_a_truncated_record_of_a_finished_run_is_found(process, count, done, tmp_path):
    """Also if the replay waits for events that were stated in the missing lines."""
    if process == "evaluator-0":
        directory = play(RUNS["evaluator"], tmp_path, seed="done")
    else:
        directory = RunDirectory(Path(shutil.copytree(done.path, tmp_path / done.path.name)))
    text = record(directory, process).read_text().splitlines(keepends=True)[:-count]
    record(directory, process).write_text("".join(text))
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is not None
    assert result.difference.where == f"records/{process}.jsonl, line {len(text) + 1}", result.difference
    (directory.path / "DONE").unlink()
    shutil.rmtree(directory.path / "final")
    result, _ = replayed(directory, tmp_path / "unfinished")
    assert result.difference is None, result.difference


def test_a_damaged_last_line_of_a_finished_run_is_found(done, tmp_path):
    copy = RunDirectory(Path(shutil.copytree(done.path, tmp_path / "run")))
    text = record(copy, "worker-1").read_text()
    record(copy, "worker-1").write_text(text[:-9])
    result, _ = replayed(copy, tmp_path / "replay")
    number = text.count("\n")
    assert str(result.difference) == f"records/worker-1.jsonl, line {number}: it is not a record line"


def test_a_missing_model_is_found(done, tmp_path):
    copy = RunDirectory(Path(shutil.copytree(done.path, tmp_path / "run")))
    (copy.path / "final" / "server-0.npy").unlink()
    result, _ = replayed(copy, tmp_path / "replay")
    assert str(result.difference) == "final/server-0.npy: the replay writes it, but the run does not have it"


def test_another_model_is_found(done, tmp_path):
    copy = RunDirectory(Path(shutil.copytree(done.path, tmp_path / "run")))
    file = copy.path / "final" / "server-1.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    result, _ = replayed(copy, tmp_path / "replay")
    assert str(result.difference) == "final/server-1.npy: the replay computes another model"


def test_the_record_of_a_process_that_the_run_does_not_have_is_found(done, tmp_path):
    copy = RunDirectory(Path(shutil.copytree(done.path, tmp_path / "run")))
    shutil.copy(record(copy, "worker-1"), copy.path / "records" / "worker-7.jsonl")
    result, _ = replayed(copy, tmp_path / "replay")
    assert str(result.difference) == "records/worker-7.jsonl: the run has no process worker-7"


def test_changed_settings_are_found_before_the_records_are_compared(done, tmp_path):
    copy = RunDirectory(Path(shutil.copytree(done.path, tmp_path / "run")))
    _set(copy.path, "train", "batch_size", 7)
    result, _ = replayed(RunDirectory(copy.path), tmp_path / "replay")
    assert (result.difference.where, result.lines) == ("spec.json", 0)
    assert f"do not belong to the run id {copy.spec['run_id']}, but to " in result.difference.what


def test_the_command(done, tmp_path, capsys):
    """It tells the differences of the environment first, and which records differ."""
    runs = tmp_path / "results" / "small" / "runs"
    copy, number = changed(
        done, runs, "server-0", lambda line: line.get("weight"), lambda line: [line | {"staleness": 99}]
    )
    packages = {"numpy": "0.1", "torch": version("torch")}
    start = record(copy, "worker-0").read_text().partition("\n")
    first = json.dumps(json.loads(start[0]) | {"cpu_model": "Abacus", "threads": 8})
    record(copy, "worker-0").write_text(f"{first}\n{start[2]}")
    copy.write_provenance({"packages": packages, "python": platform.python_version(), "installed": installed_code()})
    assert main(["replay", copy.path.name, "--results", str(tmp_path / "results"), "-o", str(tmp_path / "kept")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        f"{copy.path.name}  small",
        f"  numpy: 0.1 in the run, {version('numpy')} here",
        "  threads: 8 in the run, 1 here (worker-0)",
        f"  processor: Abacus in the run, {machine()['cpu']} here (worker-0)",
    ]
    assert re.fullmatch(r"  \d+ record lines of 1 attempt are equal; the first difference:", said[4])
    assert said[5].startswith(f"  records/server-0.jsonl, line {number}: `staleness`: the record has 99, the replay ")
    assert lines(RunDirectory(tmp_path / "kept"), "server-0")[0]["event"] == "start"


def test_what_cannot_be_replayed_is_refused(done, tmp_path, capsys, monkeypatch):
    """Each run with its reason; a run that can be replayed is replayed all the same."""
    monkeypatch.setenv("HPCPS_DATA", str(tmp_path))  # without CIFAR-10
    runs = tmp_path / "results" / "small" / "runs"
    shutil.copytree(done.path, runs / "0123456789")
    for number, change in enumerate(REFUSED.values()):
        folder = Path(shutil.copytree(done.path, runs / f"{number}aaaaaaaaa"))
        change(folder)
    assert main(["replay", "small", "--results", str(tmp_path / "results")]) == 1
    said = capsys.readouterr().out
    assert "are equal, and the final model (2 files)" in said
    assert [name for name in REFUSED if name not in said] == []
    assert said.count("  (settings unknown)\n") == 2


def _set(folder, table, key, value, *, new_id=False):
    spec = json.loads((folder / "spec.json").read_text())
    spec["run"][table][key] = value
    if new_id:
        spec["run_id"] = run_id(Run.model_validate(spec["run"]))
    (folder / "spec.json").write_text(json.dumps(spec))


def _forget_order(folder):
    for file in folder.glob("records/*"):
        file.write_text(re.sub(r', "order": \[[^]]*\]', "", file.read_text()))


REFUSED = {
    "waits for all workers in each round": lambda folder: _set(folder, "train", "mode", "sync"),
    "has no records of worker-3": lambda folder: (folder / "records" / "worker-3.jsonl").unlink(),
    "the records do not state the order of events": _forget_order,
    "this version of hpcps cannot read its settings (train": lambda folder: _set(folder, "train", "loss", "squared"),
    "spec.json: not valid JSON (Extra data": lambda folder: (folder / "spec.json").write_text(
        (folder / "spec.json").read_text() + "x"
    ),
    "spec.json: it does not have the form of the settings": lambda folder: (folder / "spec.json").write_text("[]"),
    "worker-3 has records of no attempt": lambda folder: (folder / "records" / "worker-3.jsonl").write_text(""),
    "cifar10": lambda folder: _set(folder, "data", "name", "cifar10", new_id=True),
}

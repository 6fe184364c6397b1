"""`make figures` and `make gpu-figures`: order, time limit, going on here and elsewhere, archives; without a GPU."""

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import archive
import figures
import mps
import numpy as np
import pytest

import hpcps
from hpcps.cli.arguments import ArgumentFileParser
from hpcps.records.files import read_lines
from hpcps.records.table import read_table
from hpcps.spec.load import load_experiment

ROOT = Path(__file__).parents[2]

EXPERIMENT = """
name = "one"
topology = { servers = 1, validators = 1, workers = 2 }
model = { name = "mlp" }
data = { name = "digits" }
transport = { kind = "inproc" }
train = { epochs = 30, batch_size = 8, local_steps = 4, device = "cpu", optimizer = { name = "sgd", lr = 0.1 } }
[[sweep]]
attack = [{ kind = "none" }, { kind = "negative", scale = 6 }]
"""


FORTY = partial(figures.settings_for, epochs=40, further=["transport.kind=inproc", "checkpoint.every=1"])


@pytest.fixture(scope="module")
def stages():
    return figures.stages_of(figures.STAGES, (1, 2), ROOT / "experiments", FORTY)


def test_every_point_of_every_figure_has_its_turn_the_attacked_panels_first(stages):
    points = [(stage.file, point) for stage in stages for point in stage.points]
    assert [point.run.seed for _, point in points] == [1] * (len(points) // 2) + [2] * (len(points) // 2)
    once = points[: len(points) // 2]
    names = {path.stem for path in (ROOT / "experiments").glob("fig[3-7]_*.toml")} | {"sgd_baseline"}
    sizes = {name: len(load_experiment(ROOT / f"experiments/{name}.toml").points) for name in names}
    assert len(once) == len({(file, point.run_id) for file, point in once}) == sum(sizes.values())
    assert {point.run.name for _, point in once} == names
    early = stages[:6]
    assert {stage.file.stem for stage in early} == names
    assert [len(stage.points) for stage in early] == [4, 2, 1, 4, 2, 8]
    runs = [point.run for stage in early for point in stage.points]
    assert all(run.attack.kind != "none" for run in runs if run.name != "sgd_baseline")


def test_rates_decay_at_the_same_shares_of_a_shorter_run(stages):
    runs = [point.run for stage in stages for point in stage.points]
    assert all((run.train.epochs, run.train.lr_decay.epochs) == (40, (20, 30)) for run in runs)
    late = [run.train.lr_decay.validator_epochs for run in runs if run.train.mode == "async"]
    assert late == [(20,)] * len(late)
    file = ROOT / "experiments/fig3_sync_single_validator.toml"
    assert FORTY(file, 1) == [
        *("transport.kind=inproc", "checkpoint.every=1", "train.epochs=40", "train.lr_decay.epochs=[20,30]"),
    ]
    assert FORTY(file, 2)[-1] == "seed=2"
    assert figures.settings_for(file, 1, epochs=200, further=[]) == []


def test_the_reduction_fits_all_figures():
    """At least 100 synchronous rounds, or cycles of an asynchronous validator; decays at the shares of the file."""
    arguments = (ROOT / "experiments/reduced.args").read_text().splitlines()
    parser = ArgumentFileParser()
    parser.add_argument("--set", action="append")
    words = [word for line in arguments for word in parser.convert_arg_line_to_args(line)]
    changes = parser.parse_args(words).set
    number = 0
    for name in dict.fromkeys(name for name, _ in figures.STAGES):
        for whole, point in zip(
            *(load_experiment(ROOT / f"experiments/{name}.toml", s).points for s in ([], changes)), strict=True
        ):
            number += 1
            run = point.run
            shards = run.data.shards or run.topology.workers + 1
            batches = run.data.limit // shards // run.train.batch_size * run.train.epochs
            assert batches // run.train.local_steps >= 100
            shares = [tuple(e / r.train.epochs for e in r.train.lr_decay.epochs) for r in (whole.run, run)]
            assert shares[0] == shares[1]
            assert run.validation == whole.run.validation
            assert (run.topology, run.attack, run.communication) == (
                whole.run.topology,
                whole.run.attack,
                whole.run.communication,
            )
    assert number == 57


def test_runs_that_are_done_in_a_published_copy_are_known():
    table = ROOT / "results/published/quickstart/table.parquet"
    assert figures.done_in(table) == set(read_table(table)["run_id"].astype(str))
    assert figures.done_in(table.with_name("none.parquet")) == set()


def test_archives_are_small_and_few_and_say_what_they_lack(tmp_path):
    root, there, folder = tmp_path / "here", tmp_path / "there", tmp_path / "archives"
    noise = np.random.default_rng(1)
    for name, size in {"a/x": 2500, "b/y": 9000, "c/z": 500}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(noise.bytes(size))
    groups = [(name, [root / name]) for name in "abc"]
    folder.mkdir()
    (folder / "old.tar.gz.0").touch()
    assert archive.pack(groups, root, folder, part=1000) == ["b"]
    files = list(folder.iterdir())
    assert len(files) <= archive.PARTS
    assert max(path.stat().st_size for path in files) <= 1000
    assert archive.unpack(folder, there) == ["a", "c"]
    assert (there / "a/x").read_bytes() == (root / "a/x").read_bytes()
    assert not (there / "b").exists()
    assert archive.pack(groups, root, folder, part=1000, whole=2900) == ["b", "c"]
    assert archive.pack([], root, tmp_path / "none") == []
    assert archive.unpack(tmp_path / "none", there) == []


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_what_did_not_come_along_in_whole_is_left_out(tmp_path, capsys, lost):
    root, folder, there = tmp_path / "here", tmp_path / "archives", tmp_path / "there"
    for name in "ab":
        (root / name).mkdir(parents=True)
        (root / name / "x").write_bytes(np.random.default_rng(1).bytes(3500))
    archive.pack([(name, [root / name]) for name in "ab"], root, folder, part=1000)
    (folder / f"a.tar.gz.{lost}").unlink()
    assert archive.unpack(folder, there) == ["b"]
    assert capsys.readouterr().out.startswith("a is left out, because its archives cannot be read: ")
    assert [path.name for path in there.iterdir()] == ["b"]


def test_launches_at_a_time_share_one_mps_daemon(tmp_path, monkeypatch):
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text(f'#!/bin/sh\necho "started $*" >> {log}\n[ "$*" ] || cat >> {log}\n[ ! -e {tmp_path}/busy ]\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with mps.shared_mps(1):
        pass
    assert not log.exists()
    with mps.shared_mps(2):
        assert log.read_text() == "started -d\n"
    assert log.read_text() == "started -d\nstarted \nquit\n"
    (tmp_path / "own").mkdir()
    with mps.shared_mps(2, tmp_path / "own") as variables:
        assert all(Path(folder).parent == tmp_path / "own" for folder in variables.values())
        assert len(variables) == 2
    (tmp_path / "busy").touch()  # a daemon of somebody else runs already: it stays
    (tmp_path / "other").mkdir()
    with mps.shared_mps(2, tmp_path / "other") as variables:
        assert variables == {}, "it did not start"
    assert log.read_text().endswith("quit\nstarted -d\n")


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel does not schedule by sessions")
def test_points_leave_the_cores_to_other_sessions(stages, tmp_path, monkeypatch, capfd):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec cat /proc/self/autogroup\n")
    program.chmod(0o755)
    monkeypatch.setattr(figures.sys, "executable", str(program))
    lowered = partial(os.nice, 3)
    monkeypatch.setattr(figures, "tie_to_parent", lambda signal: None)
    monkeypatch.setattr(figures.os, "setsid", lambda setsid=os.setsid: (setsid(), lowered()))
    assert stages[0].execute([], {}, []) == 0
    group = capfd.readouterr().out
    assert group.endswith(f" nice {os.nice(0) + 3}\n")
    assert group.split()[:1] != Path("/proc/self/autogroup").read_text().split()[:1], (
        "it stayed in this session's group"
    )


def command(folder, results, *options):
    words = [sys.executable, ROOT / "benchmarks/figures.py", "--experiments", folder, "--results", results]
    return [*words, "--nice", "0", "--set", "train.device=cpu", *options]


def play(words, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def experiments(tmp_path):
    (tmp_path / "one.toml").write_text(EXPERIMENT)
    return tmp_path


def models(results):
    files = results.glob("*/runs/*/final/*.npy")
    return {str(path.relative_to(results)): path.read_bytes() for path in files}


@pytest.mark.soak  # that a run goes on after it was killed: `tests/faults/test_killed_and_resumed.py`
@pytest.mark.usefixtures("starts_processes")
def test_what_is_killed_goes_on_and_ends_with_the_same_model(experiments, tmp_path):
    file, options = experiments / "one.toml", ("--stages", "one:attack=negative", "--seeds", "1", "--jobs", "1")
    # Enough epochs that some are left when a fast machine hears of the end of its parent.
    short = {"train.device": "cpu", "train.epochs": 20}
    assert hpcps.run(file, only="attack=negative", results=tmp_path / "whole", set=short)
    undisturbed = models(tmp_path / "whole")
    assert len(undisturbed) == 1

    words = command(experiments, tmp_path / "results", *options, "--set", "train.epochs=20", "--hours", "1")
    queue = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("results/one/runs/*/checkpoints/*/manifest.json")):
        assert queue.poll() is None
        time.sleep(0.02)
    queue.kill()
    queue.wait()
    # What it started stops at a checkpoint; until then the next `hpcps run` waits for it.
    rest = play(words)
    assert rest.returncode == 0, rest.stdout + rest.stderr
    assert models(tmp_path / "results") == undisturbed
    assert "one, seed 1: 1 of 1 points are done\n0 points are left" in rest.stdout
    assert (tmp_path / "results/one/figures").is_dir()
    records = (tmp_path / "results").glob("*/runs/*/records/server-0.jsonl")
    assert any(line["event"] == "start" and "continues" in line for path in records for line in read_lines(path).lines)


def test_a_stage_that_is_refused_or_fails(stages, monkeypatch):
    ends = [figures.ExitStatus.FAILED, figures.ExitStatus.DONE, figures.ExitStatus.REFUSED]
    executed = []

    def execute(stage, options, variables, stops):
        executed.append(stage)
        return ends[len(executed) - 1]

    monkeypatch.setattr(figures.Stage, "execute", execute)
    later = time.monotonic() + 100
    assert figures.execute(stages[:2], [], {}, later, 1.0) == figures.ExitStatus.FAILED
    assert figures.execute(stages[2:4], [], {}, later, 1.0) == figures.ExitStatus.REFUSED
    assert executed == stages[:3], "what refuses one stage refuses the next one too"
    assert figures.execute(stages[3:4], [], {}, later, 200.0) == figures.ExitStatus.SUSPENDED, "the time is over"


SLOW = '''
import time
from typing import Literal
from hpcps.callbacks import Callback


class Slow(Callback):
    """Sleeps after every round, so that the run lasts and leaves the core to others."""

    kind: Literal["slow"] = "slow"

    def on_round(self, report):
        """Sleep."""
        time.sleep(0.05)
'''


@pytest.mark.soak
@pytest.mark.usefixtures("starts_processes")
def test_a_call_whose_time_is_over_says_that_there_is_more(experiments, tmp_path):
    (experiments / "slow.py").write_text(SLOW)
    callbacks = '[[callbacks]]\nkind = "slow"\n'
    (experiments / "one.toml").write_text(f'plugins = ["slow.py"]\n{EXPERIMENT}{callbacks}')
    options = ("--stages", "one:attack=negative", "--seeds", "1", "--jobs", "1", "--set", "train.epochs=100000")
    ended = play(command(experiments, tmp_path / "results", *options, "--hours", "0.004"))
    assert ended.returncode == figures.ExitStatus.SUSPENDED, ended.stdout + ended.stderr
    assert "successors" not in ended.stdout
    assert list((tmp_path / "results").glob("one/runs/*/checkpoints/*/manifest.json"))
    assert "one, seed 1: 0 of 1 points are done; no pace is known yet\n" in ended.stdout
    assert re.search(
        r"one, seed 1: 0 of 1 points are done; about [\d.]+ (s|min|h) left\n1 points are left", ended.stdout
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hours", "0"], "expects a number of hours above 0, got '0'"),
        (["--hours", "nan"], "expects a number of hours above 0, got 'nan'"),
        (["--hours", "1", "--jobs", "0"], "expects a whole number ≥ 1, got '0'"),
        (["--hours", "1", "--only", "fig3, fig9"], "--only fig9: the name of no experiment begins so"),
    ],
)
def test_options_that_select_nothing_are_refused(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["figures.py", *words])
    monkeypatch.setattr(os, "nice", lambda by: 0)
    with pytest.raises(SystemExit, match="2"):
        figures.main()
    assert message in capsys.readouterr().err


def test_a_name_that_is_none_lists_the_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["figures.py", "--only", "fig9", "--hours", "1"])
    monkeypatch.setattr(os, "nice", lambda by: 0)
    with pytest.raises(SystemExit, match="2"):
        figures.main()
    wanted = "--only fig9: the name of no experiment begins so; there are fig3_sync_single_validator"
    assert wanted in capsys.readouterr().err

"""`make gpu-figures`: the order of runs, the time limit, going on elsewhere, and the archives; without a GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import archive  # noqa: E402
import gpu_figures  # noqa: E402

from hpcps.records.table import read_table  # noqa: E402
from hpcps.spec.load import load_experiment  # noqa: E402
from hpcps.spec.selection import select  # noqa: E402

EXPERIMENT = """
name = "{name}"
topology = {{ servers = 1, validators = 1, workers = 2 }}
model = {{ name = "mlp" }}
data = {{ name = "digits" }}
transport = {{ kind = "inproc" }}
train = {{ epochs = 30, batch_size = 8, local_steps = 4, device = "cpu", optimizer = {{ name = "sgd", lr = 0.1 }} }}
[[sweep]]
attack = [{{ kind = "none" }}, {{ kind = "negative", scale = 6 }}]
"""


def test_every_run_of_every_figure_has_its_turn_the_attacked_panels_first():
    points = {name: load_experiment(ROOT / f"experiments/{name}.toml").points for name, _ in gpu_figures.STAGES}
    stages = [[(name, point.run_id) for point in select(points[name], s or None)] for name, s in gpu_figures.STAGES]
    everything = [run for stage in stages for run in stage]
    assert set(everything) == {(name, point.run_id) for name in points for point in points[name]}
    figures = {path.stem for path in (ROOT / "experiments").glob("fig[3-7]_*.toml")}
    assert figures <= {name for stage in stages[:6] for name, _ in stage}
    early = {run for stage in stages[:6] for run in stage}
    figured = [(name, point) for name in figures for point in points[name] if (name, point.run_id) in early]
    assert all(point.run.attack.kind != "none" for _, point in figured)


def test_runs_that_are_done_in_a_published_copy_are_known():
    table = ROOT / "results/published/quickstart/table.parquet"
    assert gpu_figures.done_in(table) == set(read_table(table)["run_id"].astype(str))
    assert gpu_figures.done_in(table.with_name("none.parquet")) == set()


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
    with gpu_figures.shared_mps(1):
        pass
    assert not log.exists()
    with gpu_figures.shared_mps(2):
        assert log.read_text() == "started -d\n"
    assert log.read_text() == "started -d\nstarted \nquit\n"
    (tmp_path / "own").mkdir()
    with gpu_figures.shared_mps(2, tmp_path / "own") as variables:
        assert all(Path(folder).parent == tmp_path / "own" for folder in variables.values())
        assert len(variables) == 2
    (tmp_path / "busy").touch()  # a daemon of somebody else runs already: it stays
    (tmp_path / "other").mkdir()
    with gpu_figures.shared_mps(2, tmp_path / "other") as variables:
        assert variables == {}, "it did not start"
    assert log.read_text().endswith("quit\nstarted -d\n")


@pytest.mark.soak
def test_goes_on_until_all_is_done_and_on_another_machine(tmp_path):
    """With a machine that loses its results after every call, but not what was carried away."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(EXPERIMENT.format(name=name))
    command = [sys.executable, ROOT / "benchmarks/gpu_figures.py", "--experiments", tmp_path]
    command += [
        "--archive",
        tmp_path / "archives",
        "--stages",
        "one:attack=negative",
        "two:attack=negative",
        "one",
        "two",
    ]
    outputs = []
    for machine, limit in enumerate((25, 25, 600)):
        results = tmp_path / f"results{machine}"
        done = subprocess.run(
            [*command, "--limit", str(limit), "--results", results, "--set", "train.device=cpu"],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        outputs.append(done.stdout)
        assert done.returncode in (0, 75), done.stdout + done.stderr
        if done.returncode == 0:
            break
        shutil.move(results, tmp_path / f"lost{machine}")
    assert done.returncode == 0, "600 seconds were too few"
    stages = [line for text in outputs for line in text.splitlines() if line.startswith("== ")]
    order = [line.split(":")[0] for line in stages]
    assert list(dict.fromkeys(order)) == ["== one attack=negative", "== two attack=negative", "== one ", "== two "]
    for name in ("one", "two"):
        table = read_table(results / "published" / name / "table.parquet")
        assert set(table["status"]) == {"done"}
        evaluations = table[table["event"] == "evaluation"]
        assert (evaluations.groupby("run_id", observed=True)["epoch"].max() == 30).all()
        assert not evaluations.duplicated(["run_id", "epoch"]).any()

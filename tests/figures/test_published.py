"""Runs write to folders that git ignores; committed results are copies that `hpcps publish` makes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from invented import ATTACKS, invent

from hpcps.cli.main import main
from hpcps.records.table import read_table

ROOT = Path(__file__).parents[2]
in_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


@pytest.fixture
def hpcps(tmp_path, monkeypatch, capsys):
    """Call the command in an empty folder; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, status=0):
        capsys.readouterr()
        assert main([*map(str, arguments)]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return call


def invent_small(folder, **changes):
    invent(folder, epochs=2, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2], **changes)


def git(*arguments, text=""):
    return subprocess.run(["git", "-C", ROOT, *arguments], input=text, capture_output=True, text=True).stdout


@in_checkout
def test_git_ignores_everything_that_the_demo_writes(hpcps, tmp_path):
    """The commands of `make demo`, on one run in this process."""
    short = ("--set", "transport.kind=inproc", "--set", "train.epochs=1", "--only", "0")
    hpcps("run", ROOT / "experiments/quickstart.toml", *short)
    hpcps("collect", "results/quickstart")
    hpcps("plot", "results/quickstart")
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert "results/quickstart/figures/accuracy_by_epoch.png" in written
    ignored = git("check-ignore", "--no-index", "--stdin", text="\n".join(written)).splitlines()
    assert set(written) == set(ignored)


@in_checkout
def test_what_is_committed_of_the_results_are_published_copies():
    committed = git("ls-files", "results").splitlines()
    copies = {name.split("/")[2] for name in committed if name.startswith("results/published/")}
    assert [name for name in committed if not name.startswith("results/published/")] == []
    assert "quickstart" in copies
    for copy in copies:
        facts = json.loads((ROOT / "results/published" / copy / "publication.json").read_text())
        assert facts["command"] == f"hpcps publish {copy}"
    assert git("check-ignore", "--no-index", "--stdin", text="results/published/new/figures/a.png\n") == ""


def test_a_copy_has_what_the_figures_need_and_where_it_came_from(hpcps, tmp_path):
    own, copy = tmp_path / "results/demo_sweep", tmp_path / "results/published/demo_sweep"
    invent_small(own)
    (own / "sweeps").mkdir()
    sweep = {"file": "/home/me/experiments/demo.toml", "overrides": ["data.dir=/home/me/data"], "points": []}
    (own / "sweeps/a.json").write_text(json.dumps(sweep))
    (copy / "figures").mkdir(parents=True)
    (copy / "figures/accuracy_by_epoch-old.png").touch()
    assert "runs: 4 done" in hpcps("publish", "demo")
    assert {path.name for path in copy.iterdir()} == {
        *("figures", "final_accuracy.csv", "final_accuracy.md", "provenance.json", "publication.json"),
        "table.parquet",
    }
    assert set(read_table(copy / "table.parquet")["event"]) == {"evaluation", "end"}
    assert not (copy / "figures/accuracy_by_epoch-old.png").exists()
    assert (copy / "figures/accuracy_by_epoch.png").exists()
    text = (copy / "publication.json").read_text()
    facts = json.loads(text)
    assert facts["command"] == "hpcps publish demo_sweep"
    assert facts["launched_by"] == ["hpcps run experiments/demo.toml '--set=data.dir=…/data'"]
    assert facts["runs"] == {"done": 4}
    assert facts["packages"]["matplotlib"]
    assert facts["git"]["commit"] is None or len(facts["git"]["commit"]) == 40
    assert "/home" not in text


def test_the_copy_is_taken_where_there_are_no_runs_and_every_command_says_so(hpcps, tmp_path):
    own, copy = tmp_path / "results/demo_sweep", tmp_path / "results/published/demo_sweep"
    invent_small(own)
    assert hpcps("plot", "demo").startswith("from results/demo_sweep\n")
    hpcps("publish", "demo")
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert hpcps("plot", "demo").startswith("from results/demo_sweep\n")
    printed = hpcps("plot", "results/published/demo_sweep", "-o", "elsewhere")
    assert printed.startswith("from results/published/demo_sweep, the published copy\n")
    shutil.rmtree(own)
    printed = hpcps("plot", "demo")
    said = "results/published/demo_sweep, the published copy (there are no runs in results/demo_sweep)"
    assert printed.startswith(f"from {said}\n")
    # A copy changes only by `hpcps publish`.
    assert "wrote results/demo_sweep/figures/accuracy_by_epoch.png" in printed
    assert said in hpcps("plot", "demo_sweep")
    assert f"nothing to collect: {said}" in hpcps("collect", "demo")
    assert said in hpcps("plot", "results/published/demo_sweep")
    printed = hpcps("export", "demo", "--to", "csv")
    assert printed.startswith(f"from {said}\n")
    assert "wrote results/demo_sweep/export/csv/runs.csv" in printed
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before
    assert "is a published copy" in hpcps("publish", "demo", status=2)


def test_runs_that_are_not_done_are_counted(hpcps, tmp_path):
    invent_small(tmp_path / "results/demo", unfinished=["zeno · none"])
    assert "note: some runs are not done" in hpcps("publish", "demo")


def test_the_folder_of_an_earlier_version_is_plotted_and_published(hpcps, tmp_path):
    """A table and its provenance, without the runs, in a folder elsewhere."""
    invent_small(tmp_path / "elsewhere/old_sweep")
    hpcps("collect", "elsewhere/old_sweep")
    shutil.rmtree(tmp_path / "elsewhere/old_sweep/runs")
    assert "wrote elsewhere/old_sweep/figures/" in hpcps("plot", "elsewhere/old_sweep")
    hpcps("publish", "elsewhere/old_sweep")
    copy = tmp_path / "results/published/old_sweep"
    assert set(read_table(copy / "table.parquet")["event"]) == {"evaluation", "end"}
    assert read_table(copy / "table.parquet").attrs["swept"] == ["rule", "attack"]
    assert len(json.loads((copy / "provenance.json").read_text())) == 4

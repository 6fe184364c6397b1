"""Runs write to folders that git ignores; committed results are copies that `hpcps publish` makes."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from invented import ATTACKS, invent

from hpcps.cli.main import main
from hpcps.figures.drawing import draw_accuracy as draw
from hpcps.figures.final import markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.records.collect import collect
from hpcps.records.export import summarize
from hpcps.records.provenance import is_complete
from hpcps.records.sweep import write_sweep
from hpcps.records.table import joined, read_table

ROOT = Path(__file__).parents[2]
in_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


@pytest.fixture
def hpcps(tmp_path, monkeypatch, capsys, empty_files):
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


@pytest.mark.thorough
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


@pytest.mark.thorough
@in_checkout
def test_what_is_committed_of_the_results_are_published_copies():
    committed = git("ls-files", "results").splitlines()
    copies = {name.split("/")[2] for name in committed if name.startswith("results/published/") and name.count("/") > 2}
    assert {name for name in committed if name.count("/") == 2} == {"results/published/report_fig3.html"}
    assert [name for name in committed if not name.startswith("results/published/")] == []
    assert "quickstart" in copies
    for copy in copies:
        folder = ROOT / "results/published" / copy
        facts = json.loads((folder / "publication.json").read_text())
        name = facts.get("published_as", copy).partition(",")[0]  # a copy of several variants was divided
        assert facts["command"].partition(" --")[0] == f"hpcps publish {name}"
        summary = summarize(read_table(folder / "table.parquet")).to_csv(index=False)
        pd.testing.assert_frame_equal(pd.read_csv(folder / "summary.csv"), pd.read_csv(io.StringIO(summary)))
    assert git("check-ignore", "--no-index", "--stdin", text="results/published/new/figures/a.png\n") == ""


@pytest.mark.thorough
def test_a_copy_has_what_the_figures_need_and_where_it_came_from(hpcps, tmp_path):
    own, copy = tmp_path / "results/demo_sweep", tmp_path / "results/published/demo_sweep"
    invent_small(own)
    point = {"label": "zeno", "index": 0, "swept": {}, "run": {}}
    file, there = Path("/home/me/experiments/demo.toml"), next((own / "runs").iterdir()).name
    write_sweep(own, file, ["data.dir=/home/me/data"], [point | {"run_id": there}])
    write_sweep(own, file, ["seed=5"], [point | {"run_id": "notpublish"}])
    (copy / "figures").mkdir(parents=True)
    (copy / "figures/accuracy_by_epoch-old.png").touch()
    assert "runs: 4 done" in hpcps("publish", "demo")
    assert {path.name for path in copy.iterdir()} == {
        *("figures", "final_accuracy.csv", "final_accuracy.md", "provenance.json", "publication.json"),
        *("summary.csv", "table.parquet"),
    }
    assert set(read_table(copy / "table.parquet")["event"]) == {"evaluation", "totals", "end"}
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
    shutil.rmtree(own / "sweeps")
    write_sweep(own, file, ["seed=2"], [point | {"run_id": there}])
    hpcps("publish", "demo", "--add")
    both = json.loads((copy / "publication.json").read_text())["launched_by"]
    assert both == [*facts["launched_by"], "hpcps run experiments/demo.toml --set=seed=2"]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_runs_of_an_earlier_copy_stay_in_it_if_asked(hpcps, tmp_path):
    own, copy = tmp_path / "results/demo_sweep", tmp_path / "results/published/demo_sweep"
    invent_small(own)
    hpcps("publish", "demo")
    first, *others = sorted((own / "runs").iterdir())
    for run in others:
        shutil.rmtree(run)
    assert "runs: 4 done" in hpcps("publish", "demo", "--add")
    table, provenance = read_table(copy / "table.parquet"), json.loads((copy / "provenance.json").read_text())
    names = {run.name for run in (first, *others)}
    assert set(table["run_id"]) == set(provenance) == names
    assert table["label"].notna().all()
    assert "runs: 1 done" in hpcps("publish", "demo")
    assert set(json.loads((copy / "provenance.json").read_text())) == {first.name}


@pytest.mark.thorough
def test_results_without_provenance_are_refused(hpcps, tmp_path):
    own, copy = tmp_path / "results/demo_sweep", tmp_path / "results/published/demo_sweep"
    invent_small(own)
    hpcps("publish", "demo")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    first, *_ = sorted((own / "runs").iterdir())
    for content in (None, "{}", '{"git": null, "machine": null, "packages": {}}', "torn"):
        (first / "provenance.json").unlink(missing_ok=True)
        if content is not None:
            (first / "provenance.json").write_text(content)
        refusal = f"1 of 4 runs have no provenance (commit, machine and packages), such as {first.name} ("
        assert refusal in hpcps("publish", "demo", status=2)
        assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before, "no half of a copy"
    hpcps("collect", "demo")
    shutil.rmtree(own / "runs")
    assert refusal in hpcps("publish", "demo", status=2), "nor a table without its runs"
    (own / "provenance.json").unlink()
    assert "4 of 4 runs have no provenance" in hpcps("publish", "demo", status=2)


@pytest.mark.thorough
def test_no_provenance_is_lost_with_add(hpcps, tmp_path):
    own, copy = tmp_path / "results/demo_sweep", tmp_path / "results/published/demo_sweep"
    invent_small(own)
    hpcps("publish", "demo")
    first, *others = sorted((own / "runs").iterdir())
    for run in others:
        shutil.rmtree(run)
    kept = json.loads((copy / "provenance.json").read_text())
    (copy / "provenance.json").write_text(json.dumps({first.name: kept[first.name]}))
    assert "3 of 4 runs have no provenance" in hpcps("publish", "demo", "--add", status=2)


@in_checkout
def test_published_runs_have_a_provenance():
    for folder in sorted((ROOT / "results/published").glob("*/")):
        found = json.loads((folder / "provenance.json").read_text())
        assert [run for run, facts in found.items() if not is_complete(facts)] == [], folder.name


@pytest.mark.thorough
def test_figures_of_full_and_reduced_runs_say_which_is_which(tmp_path):
    """Of the two panels, one has full-length runs."""
    small = {"epochs": 2, "workers": 2, "rules": ("zeno", "average")}
    invent(tmp_path / "file", **small, attacks=ATTACKS[:2])
    file = [json.loads(path.read_text()) for path in sorted((tmp_path / "file/runs").glob("*/spec.json"))]
    invent(tmp_path / "full", **small, attacks=ATTACKS[1:2])
    invent(tmp_path / "reduced", **small, attacks=ATTACKS[:2], first=4, changes={"data": {"limit": 500}})
    parts = [collect(tmp_path / name, file).table for name in ("full", "reduced")]
    full, reduced = figure_data_of(joined(*parts))
    assert (full.remark, reduced.remark) == ("full length", "reduced: data.limit=500")
    assert {panel: len(curves) for panel, curves in full.panels.items()} == {"none": 0, "negative 6": 2}
    assert [len(curves) for curves in reduced.panels.values()] == [2, 2]
    texts = [text.get_text() for axes in draw(full).axes for text in axes.texts if text.get_text()]
    assert texts == ["no full-length result yet"]
    assert "full length" in markdown([full, reduced])


def test_runs_that_are_not_done_are_counted(hpcps, tmp_path):
    invent_small(tmp_path / "results/demo", unfinished=["zeno · none"])
    assert "note: some runs are not done" in hpcps("publish", "demo")


@pytest.mark.thorough
def test_the_folder_of_an_earlier_version_is_plotted_and_published(hpcps, tmp_path):
    """A table and its provenance, without the runs, in a folder elsewhere."""
    invent_small(tmp_path / "elsewhere/old_sweep")
    hpcps("collect", "elsewhere/old_sweep")
    shutil.rmtree(tmp_path / "elsewhere/old_sweep/runs")
    assert "wrote elsewhere/old_sweep/figures/" in hpcps("plot", "elsewhere/old_sweep")
    hpcps("publish", "elsewhere/old_sweep")
    copy = tmp_path / "results/published/old_sweep"
    assert set(read_table(copy / "table.parquet")["event"]) == {"evaluation", "totals", "end"}
    assert read_table(copy / "table.parquet").attrs["swept"] == ["rule", "attack"]
    assert len(json.loads((copy / "provenance.json").read_text())) == 4


@pytest.mark.thorough
def test_a_copy_in_the_clone_is_found_where_all_results_are_elsewhere(hpcps, tmp_path):
    """$HPCPS_RESULTS, which a site profile sets, may be an empty folder."""
    invent_small(tmp_path / "results/clone")
    hpcps("publish", "clone")
    shutil.rmtree(tmp_path / "results/clone")
    printed = hpcps("plot", "clone", "--results", "elsewhere")
    assert "wrote elsewhere/clone/figures/accuracy_by_epoch.png" in printed
    assert "results/published/clone, the published copy" in hpcps("collect", "clone", "--results", "elsewhere")

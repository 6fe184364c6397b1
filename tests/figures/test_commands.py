import subprocess
import sys

import pytest
from invented import ATTACKS, invent

from hpcps.cli import results
from hpcps.cli.main import parser


@pytest.fixture
def hpcps(tmp_path, monkeypatch, capsys):
    """Call a command in a folder with the results of a small sweep; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    invent(tmp_path / "results" / "demo_sweep", epochs=4, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2])

    def call(*arguments):
        args = parser().parse_args(arguments)
        assert args.handler(args) == 0
        return capsys.readouterr().out

    return call


def test_collect_writes_and_reports(hpcps, tmp_path):
    record = next((tmp_path / "results/demo_sweep/runs/0000000001/records").iterdir())
    with record.open("a") as file:
        file.write('{"torn')
    printed = hpcps("collect", "demo")
    assert "4 runs: 4 done" in printed
    assert "0000000001 (zeno · negative): ignored 1 truncated or damaged lines" in printed
    made = sorted(path.name for path in (tmp_path / "results/demo_sweep").iterdir())
    assert made == [
        "final_accuracy.csv",
        "final_accuracy.md",
        "provenance.json",
        "runs",
        "summary.csv",
        "table.parquet",
    ]
    assert "| average |" in (tmp_path / "results/demo_sweep/final_accuracy.md").read_text()
    small = hpcps("collect", "results/demo_sweep", "--events", "evaluation,end")
    assert "(20 rows" in small


@pytest.mark.thorough
def test_collect_says_how_a_large_table_becomes_small(hpcps, monkeypatch):
    assert "--events" not in hpcps("collect", "demo")
    monkeypatch.setattr(results, "LARGE", 10_000)
    assert "--events evaluation,excluded,updates,bypass,totals,end" in hpcps("collect", "demo")
    assert "--events" not in hpcps("collect", "demo", "--events", "evaluation,updates,end")


@pytest.mark.usefixtures("empty_files")
def test_plot_collects_what_is_not_collected_and_draws(hpcps, tmp_path):
    printed = hpcps("plot", "demo")
    assert "| average |" in printed
    figures = sorted(path.name for path in (tmp_path / "results/demo_sweep/figures").iterdir())
    assert figures == [
        f"{x}.{ending}"
        for x in ("acceptance_by_epoch", "accuracy_by_bytes", "accuracy_by_epoch", "accuracy_by_wall_time")
        for ending in ("pdf", "png")
    ]
    assert "older" not in printed
    invent(tmp_path / "results" / "demo_sweep", epochs=4, rules=("phocas",), attacks=ATTACKS[:1], first=4)
    again = hpcps("plot", "demo", "-o", "elsewhere")
    assert "`hpcps collect demo_sweep` updates it" in again
    assert "wrote elsewhere/accuracy_by_epoch.png" in again
    assert len(list((tmp_path / "elsewhere").iterdir())) == 8


@pytest.mark.usefixtures("starts_processes")
def test_records_and_figures_import_no_mpi_no_torch_and_no_gui():
    check = (
        "import sys\n"
        "import hpcps.records.collect, hpcps.records.provenance, hpcps.figures.publish\n"
        "print(sorted({'mpi4py', 'torch', 'matplotlib.pyplot', 'tkinter'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

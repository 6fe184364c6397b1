"""The figures that compare methods, against hand-worked runs in simulated time."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.curve import Range
from hpcps.figures.final import markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.method_comparison import comparisons_of, method_of, name_methods, panel_of, rates
from hpcps.figures.method_figures import comparison_table, draw_comparisons
from hpcps.figures.options import PlotOptions
from hpcps.records.collect import collect
from hpcps.records.export import summarize
from hpcps.records.table import read_table, tabulate
from hpcps.records.totals import sum_processes

ROOT = Path(__file__).parents[2]
PAPER = {"ESync": (1555, 22.0), "SSGD": (45, 32.5), "ASGD": (120, 84.0), "DC-ASGD": (105, 77.0)}
"""Samples per second and MB/s of the paper's plots."""

SPEC = """
name = "unequal"
[topology]
servers = 1
validators = 0
workers = 3
[transport]
kind = "inproc"
[model]
name = "mlp"
[data]
name = "digits"
limit = 96
test_limit = 20
shards = 3
[train]
epochs = 2
batch_size = 16
optimizer = { name = "sgd", lr = 0.1, momentum = 0.0 }
[heterogeneity]
slow = { workers = [2], factor = 10.0 }
[simulation]
kind = "modelled"
step = { kind = "constant", seconds = 0.5 }
[[sweep]]
"train.mode" = ["sync", "sync", "async"]
"train.local_steps" = [{ kind = "esync", epsilon = 0.5 }, 1, 1]
"validation.rule" = [{ kind = "average" }, { kind = "average" }, { kind = "naive_async" }]
"train.epochs" = [6, 2, 3]
[[sweep]]
seed = [1, 2]
[[include]]
label = "standalone"
"topology.servers" = 0
"topology.validators" = 1
"topology.workers" = 0
"data.shards" = 1
"heterogeneity.slow.workers" = []
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unequal")
    (folder / "unequal.toml").write_text(SPEC)
    assert main(["run", str(folder / "unequal.toml"), "--results", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def table(results):
    return collect(results / "unequal").table


@pytest.fixture
def shown(table):
    (only,) = comparisons_of([(table, None)])
    return only


def of(shown, line):
    return next(one for one in shown.rates[""] if one.line == line)


@pytest.mark.thorough
def test_rates_are_those_of_the_simulated_devices(shown):
    """A step takes 0.5 s, of worker 2 5 s, and nothing else takes time."""
    ssgd, asgd, esync = (of(shown, line) for line in ("SSGD", "ASGD", "ESync"))
    assert ssgd.throughput.mean == pytest.approx([3 * 16 / 5.0])
    assert ssgd.computing.mean == pytest.approx([10, 10, 100], rel=0.3), "the fast ones end before the last round does"
    # In each round the slow worker takes one step, and the others (5 - 0.5) / 0.5; one in the first one of three.
    assert esync.throughput.mean == pytest.approx([(3 + 2 * 19) * 16 / 15])
    assert esync.computing.mean == pytest.approx([100 * 19 * 0.5 / 14.5] * 2 + [100])
    assert (ssgd.samples, esync.samples) == (12 * 16, 41 * 16)
    assert (ssgd.step_ratio.mean, esync.step_ratio.mean) == (pytest.approx([10]), pytest.approx([10]))
    assert np.isnan(asgd.step_ratio.mean), "the slow one has not ended a step"
    assert asgd.computing.mean[:2] == pytest.approx([100, 100])
    assert (ssgd.workers, ssgd.seeds, ssgd.diverged_seeds) == (("0", "1", "2"), 2, 0)


@pytest.mark.thorough
def test_the_table_compares_at_equal_samples_and_at_equal_time(shown, table):
    """SSGD has the fewest samples, 192; ESync has 656 in 6 epochs, and so 109 after its first one."""
    head, _, *rows = [line for line in comparison_table(shown).splitlines() if line.startswith("|")]
    titles = [cell.strip() for cell in head.split("|")[1:-1]]
    found = {
        cells[0]: dict(zip(titles, cells, strict=True))
        for cells in ([c.strip() for c in row.split("|")[1:-1]] for row in rows)
    }
    assert titles[2] == "at 192 samples (%)"
    evaluations = table[table["event"] == "evaluation"]
    esync = evaluations[evaluations["train.local_steps"].astype(str).str.startswith("esync")]
    at = esync[esync["epoch"] == 1].groupby("run_id")["accuracy"].first().mean()
    assert found["ESync"]["at 192 samples (%)"].startswith(f"{100 * at:.1f}")
    assert found["SSGD"]["at 192 samples (%)"] == found["SSGD"]["accuracy (%)"]
    assert [found[method]["step ratio"] for method in ("ESync", "SSGD", "ASGD")] == ["10", "10", "–"]
    assert found["standalone"]["at 192 samples (%)"] == "–"


@pytest.mark.thorough
def test_the_caption_says_which_method_has_which_epochs(shown):
    assert "ESync 6 epochs (656 samples) · SSGD 2 (192) · ASGD 3 (" in shown.figure_data.facts
    (accuracy, *_) = (figure for _, figure in draw_comparisons([shown], PlotOptions()))
    assert "accuracy by simulated time" in accuracy.get_suptitle()


@pytest.mark.thorough
def test_samples_of_a_run_that_two_experiments_share_are_not_added_up(table):
    samples = re.compile(r"standalone \d+ \((\d+)\)")
    alone = table[table["workers"] == 0]
    again = pd.concat([table, alone.assign(experiment="another")], ignore_index=True)
    once, twice = (comparisons_of([(rows, None)])[0].figure_data.facts for rows in (table, again))
    assert samples.search(once)[1] == samples.search(twice)[1]


def test_a_table_says_where_its_columns_come_from_and_how_long_the_reference_trained(table):
    text = markdown(figure_data_of(table, None))
    assert "columns: train.local_steps · epochs" in text
    assert "| standalone, 2 epochs" in text


def test_training_for_which_simulated_time_stands_still_has_no_wall_time(table):
    summary = summarize(table.assign(wall=table["wall"].where(table["workers"] > 0, 0.0)))
    assert np.isnan(summary["wall"][summary["outside"] == "standalone"]).all()
    assert (summary["wall"][summary["outside"] != "standalone"] > 0).all()


def test_the_traffic_is_what_the_workers_send(shown, table):
    rows = table[(table["event"] == "totals") & (table["role"] == "worker") & (table["mode"] == "async")]
    first = rows[rows["seed"] == 1]
    traffic = of(shown, "ASGD").traffic
    assert traffic.seeds[0, 0] == pytest.approx(first["bytes_sent"].sum() / first["time"].max())
    lines = table[(table["event"].isin(["round", "end"])) & (table["run_id"] == first["run_id"].iloc[0])]
    sent = lines[(lines["role"] == "worker") & (lines["index"] == 0)]["bytes_sent"].sum()
    assert first["bytes_sent"].iloc[0] == sent > 0


@pytest.mark.thorough
def test_the_curve_of_standalone_training_is_horizontal(shown, table):
    figure_data = shown.figure_data
    assert figure_data.lines == ("ESync", "SSGD", "ASGD", "standalone")
    *others, flat = figure_data.panels[""]
    assert (flat.line, flat.wall[0], flat.wall[1]) == ("standalone", 0, max(curve.wall.max() for curve in others))
    alone = table[(table["workers"] == 0) & (table["event"] == "evaluation")].sort_values("epoch")
    assert flat.accuracy.mean == pytest.approx([100 * alone["accuracy"].iloc[-1]] * 2)
    assert "3 workers" in figure_data.facts, "that of standalone training is not counted"


def test_a_baseline_gives_the_line_of_standalone_training(table):
    alone = table[table["workers"] == 0]
    rest = table[table["workers"] > 0].reset_index(drop=True)
    (shown,) = comparisons_of([(rest, alone)])
    assert shown.figure_data.lines[-1] == "standalone"
    (without,) = comparisons_of([(rest, None)])
    assert without.figure_data.lines == ("ESync", "SSGD", "ASGD")


@pytest.mark.thorough
def test_figures_show_the_numbers(shown):
    figures = dict(draw_comparisons([shown], PlotOptions(names={"SSGD": "plain SGD"})))
    assert [*figures] == ["esync_accuracy", "esync_throughput", "esync_computing", "esync_traffic"]
    heights = [patch.get_height() for patch in figures["esync_throughput"].axes[0].patches]
    assert heights == pytest.approx([of(shown, line).throughput.mean[0] for line in ("ESync", "SSGD", "ASGD")])
    axes = figures["esync_computing"].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert len(axes.patches) == 9
    (legend,) = figures["esync_accuracy"].legends
    assert [text.get_text() for text in legend.get_texts()][:4] == ["ESync", "plain SGD", "ASGD", "standalone"]
    dashed = figures["esync_accuracy"].axes[0].lines[-1]
    assert (dashed.get_label(), len(set(dashed.get_ydata()))) == ("standalone", 1)
    assert dashed.is_dashed()
    chosen = dict(draw_comparisons([shown], PlotOptions(lines=["ASGD"])))
    assert len(chosen["esync_throughput"].axes[0].patches) == 1
    with pytest.raises(RunError, match=r"no line 'ASDG': did you mean 'ASGD'\?"):
        list(draw_comparisons([shown], PlotOptions(lines=["ASDG"])))


@pytest.mark.thorough
def test_experiments_with_the_same_methods_have_panels_of_their_own(table):
    other = table.copy()
    other["run_id"] = other["run_id"].astype(str) + "x"
    other.attrs["experiment"] = "second"
    other["experiment"] = "second"
    (shown,) = comparisons_of([(table, None), (other, None)])
    assert [*shown.figure_data.panels] == ["unequal", "second"]
    assert shown.figure_data.experiment == "unequal and second"
    fast, slow = (table[table["mode"] == mode].reset_index(drop=True) for mode in ("async", "sync"))
    (merged,) = comparisons_of([(fast, None), (slow, None)])
    assert [*merged.figure_data.panels] == [""]
    assert {one.line for one in merged.rates[""]} == {"ESync", "SSGD", "ASGD"}


def test_diverged_and_missing_seeds_are_counted(table):
    broken = table.copy()
    first = broken["run_id"] == broken.loc[broken["mode"] == "async", "run_id"].iloc[0]
    broken.loc[first & (broken["event"] == "evaluation"), "diverged"] = 1
    point = dict(broken.loc[broken["mode"] == "async"].iloc[0]) | {"run_id": "gone", "seed": 3, "label": "the third"}
    broken.attrs["missing"] = [point]
    (shown,) = comparisons_of([(broken, None)])
    assert of(shown, "ASGD").diverged_seeds == 1
    lost = broken[broken["mode"] == "async"]
    lost.attrs["missing"] = [dict(broken.loc[broken["mode"] == "sync"].iloc[0]) | {"run_id": "gone"}]
    (unfinished,) = comparisons_of([(lost, None)])
    with pytest.raises(RunError, match="no method that the options choose has a result yet"):
        list(draw_comparisons([unfinished], PlotOptions(lines=["ESync"])))
    text = comparison_table(shown)
    assert "† 1 of 2" in text
    assert "no result yet: the third" in text
    legend = dict(draw_comparisons([shown], PlotOptions()))["esync_throughput"].legends[0]
    assert "† diverged seeds: ASGD: 1 of 2" in [entry.get_text() for entry in legend.get_texts()]


def test_the_spread_is_that_of_the_seeds():
    rows = pd.DataFrame(
        [
            {"run_id": run, "role": "worker", "index": index, "samples": samples, "compute": 2.0, "time": 4.0}
            for run, samples in (("a", 100), ("b", 300))
            for index in (0, 1)
        ]
    )
    one = rates("SSGD", rows)
    assert (one.throughput.low[0], one.throughput.mean[0], one.throughput.high[0]) == (50, 100, 150)
    assert one.computing.mean.tolist() == [50, 50]
    assert np.isnan(one.traffic.mean[0])
    assert isinstance(one.throughput, Range)
    assert rates("standalone", rows[:0]) is None


@pytest.mark.parametrize(("reason", "time"), [("finished", 4.0), ("stopped", 7.0), ("failed", 7.0)])
def test_the_time_of_a_broken_round_counts_with_its_steps(reason, time):
    lines = [
        {"event": "round", "role": "worker", "index": 0, "time": 4.0, "compute": 4.0},
        {"event": "end", "role": "worker", "index": 0, "time": 7.0, "compute": time - 4.0, "reason": reason},
    ]
    (row,) = sum_processes(tabulate(lines)).to_dict("records")
    assert (row["time"], row["compute"]) == (time, time)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (("sync", "1", "average", 4), "SSGD"),
        (("sync", "4", "average", 4), "local SGD, 4 steps"),
        (("sync", "1", "krum f 0.2", 4), "SSGD, krum"),
        (("sync", "esync epsilon 0.5", "average", 4), "ESync"),
        (("sync", "dylu most 100", "average", 4), "DyLU"),
        (("async", "1", "naive_async", 4), "ASGD"),
        (("async", "1", "dc_asgd compensation 0.04", 4), "DC-ASGD"),
        (("async", "8", "zeno++", 4), "zeno++, 8 steps"),
        (("sync", "1", "average", 0), "standalone"),
    ],
)
def test_methods_have_the_names_of_the_field(settings, name):
    assert method_of(*settings) == name


def test_runs_of_one_method_are_told_apart():
    run = {"mode": "async", "train.local_steps": 1, "workers": 2, "data.split": "iid"}
    runs = [run | {"rule": f"dc_asgd backup {backup}"} for backup in ("pulled", "previous")]
    assert name_methods(runs, ["", ""], ["rule", "data.split"]) == [
        "DC-ASGD, dc asgd, backup pulled",
        "DC-ASGD, dc asgd, backup previous",
    ]
    assert name_methods(runs, ["one", "other"], ["rule", "data.split"]) == ["DC-ASGD"] * 2
    assert panel_of(runs[0], ["rule", "data.split", "seed"]) == "split: iid"


def test_an_old_table_is_refused(table):
    old = table[table["event"] != "totals"]
    with pytest.raises(RunError, match=r"unequal is from a version of hpcps .* collect its runs again"):
        comparisons_of([(old, None)])


@pytest.mark.thorough
def test_a_published_table_is_enough(results, monkeypatch, empty_files):
    monkeypatch.chdir(results)
    assert main(["publish", "unequal", "--results", str(results)]) == 0
    copy = results / "published/unequal"
    assert {path.stem for path in (copy / "figures").glob("esync_*.png")} == {
        *("esync_accuracy", "esync_throughput", "esync_computing", "esync_traffic")
    }
    (shown,) = comparisons_of([(read_table(copy / "table.parquet"), None)])
    assert len(shown.rates[""]) == 3


def ratios_to_the_paper(shown):
    for methods in shown.rates.values():
        assert [one.line for one in methods] == [*PAPER]
        for one in methods:
            samples, megabytes = PAPER[one.line]
            yield one.line, one.throughput.mean[0] / samples
            yield one.line, one.traffic.mean[0] / 1e6 / megabytes
            gpus, cpus = one.computing.mean[:4], one.computing.mean[4:]
            if one.line == "ESync":
                yield one.line, gpus.min() / 37
                yield one.line, cpus.max() / 42
            else:
                assert gpus.max() <= 3 < cpus.min()


@pytest.mark.thorough
def test_the_simulated_study_is_within_a_factor_of_two_of_the_paper_and_as_documented():
    """results/published/esync_paper has the runs of experiments/esync_paper.toml."""
    (shown,) = comparisons_of([(read_table(ROOT / "results/published/esync_paper/table.parquet"), None)])
    assert [*shown.rates] == ["split: iid", "split: by class"]
    for line, ratio in ratios_to_the_paper(shown):
        assert 0.5 < ratio < 2, line
    documented = (ROOT / "docs/explanation/esync.md").read_text()
    for one in shown.rates["split: iid"]:
        samples = one.throughput.mean[0]
        stated = f"{samples:,.0f}" if samples >= 1000 else f"{samples:.3g}"
        assert f"| {one.line} | {stated} | " in documented

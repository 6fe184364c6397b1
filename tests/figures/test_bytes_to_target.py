"""Bytes to a target and modelled time, against the same numbers computed from the table by hand."""

from pathlib import Path

import numpy as np
import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.drawing import draw_accuracy
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.options import PlotOptions
from hpcps.figures.traffic import RATES, draw_traffic, times_fewer, traffic_of, traffic_table
from hpcps.records.collect import collect

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.thorough
SWEEP = """
[[sweep]]
"communication.compression" = ["none", { kind = "int8", direction = "both" }]
[[sweep]]
seed = [1, 2]
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic")
    keys = {"data.limit": 600, "data.test_limit": 100, "train.epochs": 3, "train.optimizer.lr": 0.05}
    (folder / "traffic.toml").write_text(small_experiment("traffic", keys, SWEEP))
    assert main(["run", str(folder / "traffic.toml"), "--results", str(folder)]) == 0
    return collect(folder / "traffic").table


def by_hand(table, line, target):
    """Return, for each seed, bytes of all processes, bytes of the busiest one, and CPU seconds until the target."""
    found = []
    for _, run in table[table["communication.compression"] == line].groupby("run_id"):
        evaluations, totals = (run[run["event"] == event].sort_values("epoch") for event in ("evaluation", "totals"))
        (*_, last), share = evaluations.itertuples(), 1.0
        reached = before = evaluations[100 * evaluations["accuracy"] >= target].iloc[0]
        if reached["epoch"] > 1:
            before = evaluations[evaluations["epoch"] == reached["epoch"] - 1].iloc[0]
            share = (target - 100 * before["accuracy"]) / (100 * reached["accuracy"] - 100 * before["accuracy"])
        sent, epoch = ((1 - share) * before[name] + share * reached[name] for name in ("bytes_sent_total", "epoch"))
        cpu = (totals["cpu"] - totals["cpu_evaluate"].fillna(0)).groupby(totals["role"]).max()
        busiest = totals[["bytes_sent", "bytes_received"]].to_numpy().max()
        work = cpu["worker"] + cpu["validator"] + cpu["server"]
        found.append((sent, busiest * sent / last.bytes_sent_total, work * epoch / last.epoch))
    return np.array(found).T


def test_they_are_interpolated_between_the_evaluations_around_the_target(table):
    (traffic,) = traffic_of(table, PlotOptions(target=60))
    assert [one.curve.line for one in traffic.panels[""]] == ["none", "int8 direction both"]
    for one in traffic.panels[""]:
        sent, link, work = by_hand(table, one.curve.line, 60)
        assert one.share == ""
        assert one.sent == pytest.approx(sent, rel=1e-3)
        assert one.link == pytest.approx(link)
        assert one.work == pytest.approx(work)
        assert one.seconds(RATES) == pytest.approx(one.work[:, None] + 8e-9 * one.link[:, None] / RATES)
    plain, coded = traffic.panels[""]
    assert 2.5 < plain.link.max() / coded.link.max() < 4.5, "int8 in both directions has a quarter of the bytes"


def test_a_target_that_no_run_reaches_has_no_bytes(table):
    (traffic,) = traffic_of(table, PlotOptions(target=99.9))
    assert all(np.isnan(one.sent).all() and one.share == "0 of 2 seeds" for one in traffic.panels[""])
    assert traffic_table(traffic).count(" – |") == 2 * 8
    assert len(dict(draw_traffic([traffic], PlotOptions()))) == 3


def accuracies(table, line):
    """Return a copy of a table with other accuracies by line and seed, and the megabytes that a run sends by epoch."""
    changed = table.copy()
    changed.attrs.update(table.attrs)
    for (kind, seed), values in line.items():
        rows = (changed["event"] == "evaluation") & (changed["communication.compression"] == kind)
        changed.loc[rows & (changed["seed"] == seed), "accuracy"] = values
    sent = changed[(changed["event"] == "evaluation") & (changed["communication.compression"] == "none")]
    return changed, sent.groupby("epoch")["bytes_sent_total"].mean().to_numpy() / 1e6


def test_one_test_image_changes_the_bytes_by_its_share_of_the_slope(table):
    """One of 100 images: 0.70 instead of 0.69 at epoch 1 would have counted as a whole epoch less."""
    found = []
    for first in (0.69, 0.70, 0.71):
        changed, sent = accuracies(table, {("none", 1): [first, 0.80, 0.90], ("none", 2): [0.30, 0.50, 0.90]})
        (traffic,) = traffic_of(changed, PlotOptions(target=70))
        found.append(traffic.panels[""][0].sent / 1e6)
    assert found[0][0] == pytest.approx(sent[0] + (sent[1] - sent[0]) / 11)
    assert [each[0] for each in found[1:]] == pytest.approx([sent[0]] * 2)
    assert [each[1] for each in found] == pytest.approx([(sent[1] + sent[2]) / 2] * 3)


def test_bytes_are_compared_with_the_run_of_the_same_seed(table):
    fast, slow = [0.90, 0.90, 0.90], [0.30, 0.30, 0.90]
    changed, sent = accuracies(
        table,
        {("none", 1): fast, ("int8 direction both", 1): fast, ("none", 2): slow, ("int8 direction both", 2): slow},
    )
    changed = changed.sample(frac=1, random_state=1)
    changed.attrs.update(table.attrs)
    (traffic,) = traffic_of(changed, PlotOptions(target=60))
    none, coded = traffic.panels[""]
    assert none.sent / 1e6 == pytest.approx([sent[0], (sent[1] + sent[2]) / 2])
    ratios = times_fewer(none, coded)
    assert ratios == pytest.approx(ratios[0], rel=0.1), "the same for the fast and the slow seed"
    assert f"{ratios.mean():.3g} [{ratios.min():.3g}–{ratios.max():.3g}]" in traffic_table(traffic)


def test_long_names_leave_room_for_the_points(table):
    names = {"int8 direction both": "eight bits for each value of an update and of a model"}
    options = PlotOptions(width=3.4, names=names)
    (traffic,) = traffic_of(table, options)
    figure = dict(draw_traffic([traffic], options))["bytes_to_target"]
    figure.canvas.draw()
    assert figure.axes[0].get_window_extent().width > 1.2 * figure.dpi


def test_the_time_of_one_process_is_marked(table):
    (data,) = figure_data_of(table)
    assert "all roles in one process" in data.facts
    assert draw_accuracy(data, "wall_time").axes[0].get_xlabel() == "wall time of one process (s)"


def test_the_usual_target_is_where_curves_are_steep(table):
    (traffic,) = traffic_of(table, PlotOptions())
    best = max(one.curve.accuracy.mean[-1] for one in traffic.panels[""])
    assert traffic.target % 5 == 0
    assert 5 <= best - traffic.target < 10
    assert f"until {traffic.target:g} % accuracy" in traffic_table(traffic)
    figures = dict(draw_traffic([traffic], PlotOptions()))
    axes = figures["bytes_to_target"].axes[0]
    assert not axes.patches, "a bar has no length on a logarithmic axis"
    points = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1]
    assert points == pytest.approx([np.nanmean(one.sent) / 1e6 for one in traffic.panels[""]])
    times = figures["modelled_time"].axes[0].lines
    assert all(np.all(np.diff(line.get_ydata()) < 0) for line in times)
    assert figures["accuracy_by_bytes_log"].axes[0].get_xscale() == "log"


def test_what_has_no_common_rounds_is_refused(table):
    asynchronous = table.assign(mode="async")
    asynchronous.attrs.update(table.attrs)
    with pytest.raises(RunError, match="models synchronous rounds"):
        traffic_of(asynchronous, PlotOptions())


def test_the_study_of_robust_diloco_runs_and_has_a_target_perplexity(tmp_path):
    """Two of its points, made smaller."""
    changes = ["train.epochs=1", "train.local_steps=2", "data.limit=100", "data.test_limit=4", "data.length=16"]
    changes += ["model.layers=1", "model.width=16", "train.warmup.epochs=0", "train.optimizer.lr=0.01"]
    only = "6,17"
    options = [word for change in changes for word in ("--set", change)]
    file = ROOT / "experiments/diloco_robust.toml"
    assert main(["run", str(file), "--results", str(tmp_path), "--only", only, *options]) == 0
    shown = traffic_of(collect(tmp_path / "diloco_robust").table, PlotOptions())
    assert {one.measure for one in shown} == {"perplexity"}
    reached = [one for cost in shown for lines in cost.panels.values() for one in lines]
    assert {one.curve.line.split(" ")[0] for one in reached} == {"median", "trimmed_mean"}
    assert any(np.isfinite(one.sent).all() for one in reached)
    assert f"until perplexity {shown[0].target:g}" in traffic_table(shown[0])

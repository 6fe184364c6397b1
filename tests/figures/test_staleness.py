"""Staleness and update counts of asynchronous runs: collected small, summed up right, drawn."""

import json

import numpy as np
import pytest
from invented import ATTACKS, invent

from hpcps.figures.drawing import draw_counts, draw_staleness
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.publish import write_figures
from hpcps.records.collect import collect

ROUNDS = 8


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    results = tmp_path_factory.mktemp("results") / "async"
    invent(
        results, epochs=ROUNDS // 2, workers=3, rules=("naive_async", "zeno++"), mode="async",
        attacks=(ATTACKS[0], ATTACKS[2]), seeds=(1, 2),
    )  # fmt: skip
    # In one run worker 2's updates are all of staleness 5, and half of worker 0's are never applied.
    record = results / "runs" / "0000000000" / "records" / "server-0.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    kept = []
    for line in lines:
        if line.get("kind") == "apply" and line["reader"] == "worker-0" and line["round"] % 2:
            continue
        kept.append(line | ({"staleness": 5} if line.get("staleness") == 2 else {}))
    record.write_text("".join(json.dumps(line) + "\n" for line in kept))
    # What another server says of the same updates does not count twice.
    other = record.with_name("server-1.jsonl")
    other.write_text(record.read_text().replace('"index": 0', '"index": 1'))
    return collect(results).table


def test_applied_updates_are_counted_by_worker_and_staleness(table):
    rows = table[(table["event"] == "updates") & (table["run_id"] == "0000000000")]
    found = {(r, int(s)): int(n) for r, s, n in rows[["reader", "staleness", "count"]].itertuples(index=False)}
    assert found == {("worker-0", 0): ROUNDS // 2, ("worker-1", 1): ROUNDS, ("worker-2", 5): ROUNDS}
    assert set(rows["role"]) == {"server"}
    applied = table[(table["event"] == "applied") & (table["index"] == 0)]
    assert table.loc[table["event"] == "updates", "count"].sum() == applied["staleness"].notna().sum()


def test_seeds_are_averaged_and_their_range_kept(table):
    (figure_data,) = figure_data_of(table)
    naive, zeno = figure_data.applied["none"]
    assert (naive.line, zeno.line, naive.seeds) == ("naive_async", "zeno++", 2)
    one, other = np.array([4, 8, 0, 0, 0, 8]) / 20, np.array([8, 8, 8, 0, 0, 0]) / 24
    np.testing.assert_allclose(naive.share.mean, 50 * (one + other))
    np.testing.assert_allclose(naive.share.high, 100 * np.maximum(one, other))
    np.testing.assert_allclose(naive.updates.mean, [6, 8, 8])
    np.testing.assert_allclose(naive.updates.low, [4, 8, 8])
    np.testing.assert_allclose(naive.mean, ((8 + 40) / 20 + 1) / 2)
    np.testing.assert_allclose(zeno.share.mean, [100 / 3] * 3)


def test_the_figures_show_them(table):
    (figure_data,) = figure_data_of(table)
    distribution, counts = draw_staleness(figure_data), draw_counts(figure_data)
    assert [axes.get_title() for axes in distribution.axes] == ["attack: none", "attack: random, scale 1"]
    lines = {line.get_label(): line for line in distribution.axes[0].lines}
    np.testing.assert_allclose(lines["naive_async"].get_ydata(), figure_data.applied["none"][0].share.mean)
    assert "staleness" in distribution.axes[0].get_xlabel()
    assert "%" in distribution.axes[0].get_ylabel()
    texts = [text.get_text() for text in distribution.legends[0].get_texts()]
    assert texts == ["naive async", "zeno++", "mean", "range of the seeds"]
    heights = [[bar.get_height() for bar in bars] for bars in counts.axes[0].containers if bars.get_label() in lines]
    assert heights == [[6, 8, 8], [8, 8, 8]]
    assert counts.axes[0].get_xlabel() == "worker"


def test_a_legend_names_only_what_is_drawn(table):
    labels = table["label"].astype(str)
    (figure_data,) = figure_data_of(table[(table["event"] == "evaluation") | labels.str.contains("naive_async")])
    assert list(figure_data.lines) == ["naive_async", "zeno++"]
    for figure in (draw_staleness(figure_data), draw_counts(figure_data)):
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert "naive async" in texts
        assert "zeno++" not in texts


def test_files_only_where_there_is_something_to_show(table, tmp_path, empty_files):
    invent(tmp_path / "sync", epochs=2, workers=1, rules=("average",), attacks=ATTACKS[:1])
    sync = write_figures(figure_data_of(collect(tmp_path / "sync").table), tmp_path / "a")
    both = write_figures(figure_data_of(table), tmp_path / "b")
    further = {path.stem for path in both} - {path.stem for path in sync}
    assert further == {"acceptance_by_epoch", "staleness", "updates_by_worker"}


def test_figures_need_only_evaluations_and_counts(tmp_path):
    invent(tmp_path / "x", epochs=2, workers=2, rules=("zeno++",), mode="async", attacks=ATTACKS[:1])
    small = collect(tmp_path / "x", events=("evaluation", "updates", "end")).table
    assert set(small["event"].unique()) == {"evaluation", "updates", "end"}
    (one,), (other,) = figure_data_of(small), figure_data_of(collect(tmp_path / "x").table)
    np.testing.assert_array_equal(one.applied["none"][0].updates.mean, other.applied["none"][0].updates.mean)
    ((a,), (b,)) = one.panels.values(), other.panels.values()
    np.testing.assert_array_equal(a[0].acceptance["sent", "start"].mean, b[0].acceptance["sent", "start"].mean)


@pytest.mark.thorough
def test_a_real_run_is_drawn(asynchronous_run):
    (figure_data,) = figure_data_of(asynchronous_run)
    (one,) = figure_data.applied[""]
    applied = asynchronous_run[(asynchronous_run["event"] == "applied") & (asynchronous_run["index"] == 0)]
    applied = applied.dropna(subset=["staleness"])
    np.testing.assert_allclose(one.mean, applied["staleness"].mean())
    assert one.updates.mean.sum() == len(applied)
    assert one.staleness[-1] == applied["staleness"].max() > 0

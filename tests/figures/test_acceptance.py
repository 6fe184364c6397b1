"""Acceptance rates: what is counted, over whom and since when; and how they are drawn."""

import json

import numpy as np
import pytest
from invented import ATTACKS, invent, pairs

from hpcps.figures.drawing import draw_acceptance
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.records.collect import collect
from hpcps.records.export import summarize

EPOCHS = 6


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Two validators; one rule that scores and one that does not."""
    results = tmp_path_factory.mktemp("results") / "two"
    invent(results, epochs=EPOCHS, workers=2, validators=2, rules=("average", "zeno"), attacks=ATTACKS[:2])
    return collect(results).table


def expected(accepted, among):
    """Percent of all pairs of both validators, since the start and per epoch of two rounds."""
    counts = np.array([[pairs(v, r)[name] for r in range(2 * EPOCHS)] for name in (accepted, among) for v in (0, 1)])
    totals = counts.reshape(2, 2, EPOCHS, 2).sum(axis=(1, 3))
    return 100 * totals[0].cumsum() / totals[1].cumsum(), 100 * totals[0] / totals[1]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("among", "accepted"), [("received", "accepted_pairs"), ("sent", "accepted_sent_pairs")])
def test_rates_are_those_of_all_validators_since_the_start_and_per_epoch(table, among, accepted):
    (figure_data,) = figure_data_of(table)
    average, zeno = figure_data.panels["negative 6"]
    assert average.acceptance == {}
    assert figure_data.scored == ("zeno",)
    start, epoch = expected(accepted, f"{among}_pairs")
    assert len(set(epoch.round(6))) > 3
    np.testing.assert_allclose(zeno.acceptance[among, "start"].mean, start)
    np.testing.assert_allclose(zeno.acceptance[among, "evaluation"].mean, epoch)
    (row,) = [line for line in markdown([figure_data]).splitlines() if line.startswith("| zeno")]
    assert (f" {start[-1]:.1f} |" in row) == (among == "sent")


def test_one_number_says_what_the_average_accepted(tmp_path):
    results = tmp_path / "x"
    invent(results, epochs=EPOCHS, workers=1, rules=("average", "zeno"), attacks=ATTACKS[:1])
    frame = collect(results).table
    (figure_data,) = figure_data_of(frame)
    summary = summarize(frame).set_index("rule")["accepted"]
    (row,) = [line for line in markdown([figure_data]).splitlines() if line.startswith("| average")]
    assert f" {summary['average']:.1f} |" in row
    (line,) = [line for line in comma_separated([figure_data]).splitlines() if line.startswith("average")]
    assert float(line.split(",")[7]) == pytest.approx(summary["average"], rel=1e-4)


def test_an_unknown_rate_is_not_shown(tmp_path):
    results = tmp_path / "x"
    invent(results, epochs=EPOCHS, workers=1, validators=2, rules=("zeno",), attacks=ATTACKS[:1])
    (record,) = results.glob("runs/*/records/validator-1.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for line in lines:
        if line["event"] == "round" and line["round"] == 2 * EPOCHS - 3:
            line |= {"accepted_pairs": None, "accepted_sent_pairs": None}
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    collected = collect(results)
    evaluations = collected.table[collected.table["event"] == "evaluation"]
    for name in ("accepted_pairs_total", "accepted_sent_pairs_total"):
        assert list(evaluations[name].isna()) == [False] * (EPOCHS - 2) + [True] * 2
    assert collected.runs[0].acceptance.accepted is None
    (figure_data,) = figure_data_of(collected.table)
    assert figure_data.scored == ()
    assert "accepted" not in markdown([figure_data])
    assert ",,0,0," in comma_separated([figure_data])


def test_the_figure_has_a_column_per_panel_and_a_row_per_denominator(table):
    figure = draw_acceptance(figure_data_of(table)[0])
    received, sent = expected("accepted_pairs", "received_pairs"), expected("accepted_sent_pairs", "sent_pairs")
    assert len(figure.axes) == 4
    assert [axes.get_title() for axes in figure.axes] == ["attack: none", "attack: negative, scale 6", "", ""]
    assert "received" in figure.axes[0].get_ylabel()
    assert "sent" in figure.axes[2].get_ylabel()
    for axes, (start, epoch) in zip(figure.axes, (received, received, sent, sent), strict=True):
        thick, thin = axes.lines
        np.testing.assert_allclose(thick.get_ydata(), start)
        np.testing.assert_allclose(thin.get_ydata(), epoch)
        assert thick.get_linewidth() > 2 * thin.get_linewidth()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["zeno", "since the start", "per epoch"]


@pytest.mark.thorough
def test_seeds_have_a_mean_and_an_epoch_without_pairs_has_no_rate(tmp_path):
    results = tmp_path / "x"
    invent(results, epochs=EPOCHS, workers=1, rules=("zeno",), attacks=ATTACKS[:1], seeds=(1, 2))
    for run, factor, empty in zip(sorted(results.glob("runs/*")), (0, 1), ((4, 5), (4, 5, 8, 9)), strict=True):
        record = run / "records" / "validator-0.jsonl"
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        for line in lines:
            if line["event"] == "round":
                line["accepted_pairs"] *= factor
            if line["event"] == "round" and line["round"] in empty:
                line |= dict.fromkeys(pairs(0, 0), 0)
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((curve,),) = figure_data_of(collect(results).table)[0].panels.values()
    total, epoch = curve.acceptance["received", "start"], curve.acceptance["received", "evaluation"]
    assert (total.low == 0).all()
    np.testing.assert_allclose(2 * total.mean, total.high)
    assert list(np.isnan(epoch.mean)) == [False, False, True, False, False, False]
    assert epoch.mean[4] == epoch.high[4] == 0  # only one seed has pairs in the fifth epoch
    assert epoch.high[3] == 2 * epoch.mean[3] > 0
    draw_acceptance(figure_data_of(collect(results).table)[0])


@pytest.mark.thorough
def test_real_records_of_one_validator_say_the_same_as_the_table(asynchronous_run):
    evaluations = asynchronous_run[asynchronous_run["event"] == "evaluation"]
    received = evaluations["accepted_pairs_total"] / evaluations["received_pairs_total"]
    sent = evaluations["accepted_sent_pairs_total"] / evaluations["sent_pairs_total"]
    np.testing.assert_allclose(received, evaluations["acceptance_rate_cumulative"])
    np.testing.assert_allclose(sent, evaluations["acceptance_rate_sent_cumulative"])
    (curve,) = figure_data_of(asynchronous_run)[0].panels[""]
    np.testing.assert_allclose(
        curve.acceptance["received", "evaluation"].mean, 100 * evaluations["acceptance_rate_epoch"]
    )
    # Blocks that zeno++ negated were sent and applied, but are not accepted.
    turned = evaluations["turned_pairs_total"].iloc[-1]
    assert turned > 0
    assert evaluations["accepted_pairs_total"].iloc[-1] + turned <= evaluations["sent_pairs_total"].iloc[-1]

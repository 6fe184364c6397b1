"""The accuracy by class and the confusion matrix, of an evaluator's records and of what `hpcps evaluate` writes."""

import json

import numpy as np
import pytest
from invented import ATTACKS, invent

from hpcps.figures.drawing import figures
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.report.content import read_content
from hpcps.figures.report.html import render
from hpcps.records.collect import DRAWN, collect
from hpcps.records.evaluation import EVALUATION, read_evaluation, write_evaluation
from hpcps.records.locate import ExperimentLocation
from hpcps.records.table import tabulate, with_evaluation
from hpcps.training.evaluation import Evaluation

MATRIX = ((3, 1, 0, 0), (0, 0, 0, 0), (1, 0, 5, 4))
"""Of three classes: 75 % of the first, no sample of the second, 50 % of the third."""


def evaluation(shift=0):
    rows = (*MATRIX[:2], (1, 0, 5 + shift, 4 - shift))
    return Evaluation(14, 0.5, (8 + shift) / 14, False, 0.9, rows)


@pytest.fixture
def results(tmp_path):
    invent(tmp_path, rules=("average", "zeno"), attacks=ATTACKS[:1], seeds=(1, 2), epochs=4, workers=2)
    for number, run in enumerate(sorted((tmp_path / "runs").iterdir())):
        write_evaluation(run / EVALUATION, evaluation(shift=number))
    return tmp_path


def test_what_is_written_is_read(tmp_path):
    write_evaluation(tmp_path / EVALUATION, evaluation())
    assert read_evaluation(tmp_path) == evaluation()
    diverged = Evaluation(1, float("inf"), 0.0, False, 0.0, ((0, 1),))
    write_evaluation(tmp_path / EVALUATION, diverged)
    assert read_evaluation(tmp_path) == diverged


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"confusion": [[1, 2], [3, 4]]},
        {"confusion": [["x", 1]]},
        {"confusion": [[1, -1]]},
        {"confusion": []},
        {"confusion": 3},
        {"loss": None},
        {"top5": "high"},
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path, change):
    """As one that was cut off while it was written, which never has this name."""
    write_evaluation(tmp_path / EVALUATION, evaluation())
    content = json.loads((tmp_path / EVALUATION).read_text())
    text = "{" if change is None else json.dumps(content | change)
    (tmp_path / EVALUATION).write_text(text)
    assert read_evaluation(tmp_path) is None


def test_the_last_evaluation_gets_what_hpcps_evaluate_has_found(results):
    table = collect(results, events=DRAWN).table
    rows = table[(table["event"] == "evaluation") & (table["run_id"] == "0000000000")]
    assert rows["top5"].isna().tolist() == [True, True, True, False]
    assert rows.iloc[-1][["top5", "class_accuracy.0", "class_accuracy.2"]].tolist() == [0.9, 0.75, 0.5]
    assert np.isnan(rows.iloc[-1]["class_accuracy.1"])


def test_the_records_of_an_evaluator_come_first(tmp_path):
    write_evaluation(tmp_path / EVALUATION, evaluation())
    table = tabulate([{"event": "evaluation", "epoch": 1, "top5": 0.3, "class_accuracy": {"0": 1.0, "1": None}}])
    assert with_evaluation(table, tmp_path) is table
    assert table["class_accuracy.0"].tolist() == [1.0]


@pytest.mark.thorough
def test_a_figure_shows_the_classes_of_each_rule(results):
    frame = collect(results, events=DRAWN).table
    (shown,) = figure_data_of(frame)
    average, zeno = shown.classes["none"] if "none" in shown.classes else next(iter(shown.classes.values()))
    assert (average.line, zeno.line) == ("average", "zeno")
    # Runs 0 and 2 are those of average, with 5 and 7 of 10 in class 2; the second class has no sample.
    np.testing.assert_array_equal(average.classes, [0, 2])
    np.testing.assert_allclose(average.accuracy.mean, [75, 60])
    np.testing.assert_allclose(zeno.accuracy.low, [75, 60])
    np.testing.assert_allclose(zeno.accuracy.high, [75, 80])
    drawn = figures(frame)["accuracy_by_class"].axes[0]
    assert [round(bar.get_height()) for bar in drawn.patches] == [75, 60, 75, 70]
    only = figures(frame, lines=["zeno"])["accuracy_by_class"].axes[0]
    assert [round(bar.get_height()) for bar in only.patches] == [75, 70]
    plain = frame.drop(columns=[name for name in frame if name.startswith("class_accuracy.")])
    assert "accuracy_by_class" not in figures(plain)


@pytest.mark.thorough
def test_a_report_has_the_confusion_of_each_run(results):
    pytest.importorskip("plotly", reason="plotly is not installed")
    (results / "runs/0000000003" / EVALUATION).write_text("{}")
    content = read_content(ExperimentLocation(results))
    assert [confusion.run_id for confusion in content.confusions] == ["0000000000", "0000000001", "0000000002"]
    number, samples, accuracy, cells = content.confusions[1].rows[2]
    assert (number, samples, accuracy) == (2, 10, "60.0")
    assert cells == ((1, 0.1), (0, 0.0), (6, 0.6), (3, 0.3))
    assert content.confusions[0].rows[1][:3] == (1, 0, "")
    html = render(content)
    assert html.count('<table class="confusion">') == 3
    assert "Accuracy by class" in html

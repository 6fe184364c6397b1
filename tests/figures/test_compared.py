"""Curves of others beside ours: the files, the lines in the figure, and the table of differences."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from invented import ATTACKS, invent

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.compared import compare, difference_table, differences, read_curves
from hpcps.figures.drawing import draw_accuracy as draw
from hpcps.figures.from_table import figure_data_of
from hpcps.records.collect import collect

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "demo_sweep"
    invent(folder, epochs=12, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2])
    return folder


@pytest.fixture
def lines(tmp_path):
    """A file whose curve is 2 points below ours at each epoch, and 3 below from epoch 10 on."""

    def write(table, path=tmp_path / "theirs.jsonl", last=40):
        ours = table[(table["event"] == "evaluation") & (table["rule"] == "zeno") & (table["attack"] == "negative 6")]
        accuracy = {int(row.epoch): row.accuracy for row in ours.itertuples()}
        rows = [
            {"rule": "zeno", "attack": "negative 6", "epoch": e, "accuracy": accuracy.get(e, 0.5) - (0.02, 0.03)[e > 9]}
            for e in range(1, last + 1)
        ]
        if path.suffix == ".csv":
            path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_the_table_has_the_differences_of_means(results, lines, tmp_path, ending):
    table = collect(results).table
    file = lines(table, tmp_path / f"an_other.{ending}")
    (shown,) = compare(figure_data_of(table), read_curves(file))
    ((source, line, panel, means),) = differences(shown)
    assert (source, line, panel) == ("an other", "zeno", "negative 6")
    assert means[0][0] - means[0][1] == pytest.approx(2)
    assert means[1:] == [None, None], "ours end at epoch 12"
    (ours,) = [curve for curve in shown.panels["negative 6"] if curve.line == "zeno"]
    assert means[0][0] == pytest.approx(ours.accuracy.mean[4:9].mean())
    text = difference_table([shown])
    head, _, row = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if "|" in row]
    assert head == ["line", "panel", "compared with", "epochs 5 to 9", "epochs 10 to 14", "epochs 15 to 19"]
    assert row[:3] == ["zeno", "negative 6", "an other"]
    assert row[3].endswith(" = +2.0")
    assert row[4:] == ["–", "–"]


def test_the_figure_shows_them_as_thin_lines_as_far_as_ours_go(results, lines):
    table = collect(results).table
    (shown,) = compare(figure_data_of(table), read_curves(lines(table)))
    figure = draw(shown)
    thin = [[line for line in axes.lines if line.get_linewidth() < 1] for axes in figure.axes]
    assert [len(found) for found in thin] == [0, 1]
    ours = next(line for line in figure.axes[1].lines if line.get_label() == "zeno")
    assert thin[1][0].get_color() == ours.get_color()
    assert list(thin[1][0].get_xdata()) == list(range(1, 13))
    np.testing.assert_allclose(thin[1][0].get_ydata()[:9], ours.get_ydata()[:9] - 2)
    assert "theirs" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert all(line.get_linewidth() > 1 for axes in draw(shown, "bytes").axes for line in axes.lines)


@pytest.mark.thorough
def test_each_source_has_its_own_dashes_and_each_line_ends_with_ours(tmp_path):
    folder = tmp_path / "demo_sweep"
    invent(folder, epochs=12, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2])
    table = collect(folder).table
    table = table[~((table["rule"] == "zeno") & (table["epoch"] > 5))]
    rows = [
        {"source": source, "rule": rule, "attack": "negative 6", "epoch": epoch, "accuracy": 0.5}
        for source in ("one", r"a $\frac{$ b")
        for rule in ("zeno", "average")
        for epoch in range(1, 20)
    ]
    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (shown,) = compare(figure_data_of(table), read_curves(tmp_path / "theirs.jsonl"))
    figure = draw(shown)
    figure.canvas.draw()
    thin = [line for line in figure.axes[1].lines if line.get_linewidth() < 1]
    assert [len(line.get_xdata()) for line in thin] == [5, 12, 5, 12]
    styles = [line._dash_pattern for line in thin]
    assert styles[0] == styles[1] != styles[2] == styles[3]


@pytest.mark.thorough
@pytest.mark.usefixtures("empty_files")
def test_the_command_prints_the_table_and_publish_keeps_the_lines(results, lines, tmp_path, capsys):
    file = lines(collect(results).table)
    assert main(["plot", str(results), "-o", str(tmp_path / "figures"), "--compare", str(file)]) == 0
    assert "mean test accuracy (%), ours − theirs" in capsys.readouterr().out
    assert main(["publish", str(results), "--results", str(tmp_path), "--compare", str(file)]) == 0
    facts = json.loads((tmp_path / "published/demo_sweep/publication.json").read_text())
    assert facts["command"] == "hpcps publish demo_sweep --compare theirs.jsonl"
    figure = tmp_path / "published/demo_sweep/figures/accuracy_by_epoch.png"
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("rule,attack,epoch,accuracy\nzena,negative 6,1,0.5\n")
    before = figure.read_bytes(), facts
    assert main(["publish", str(results), "--results", str(tmp_path), "--compare", str(wrong)]) == 2
    capsys.readouterr()
    assert (figure.read_bytes(), json.loads((figure.parents[1] / "publication.json").read_text())) == before
    assert main(["plot", "esync", str(results), "--compare", str(file)]) == 2
    assert "--compare is for the figures of one experiment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            '{"epoch": 1, "accuracy": 0.1}',
            "a.jsonl:1: no rule, attack; a row has rule,",
        ),
        ("a.csv", "rule,attack,epoch,accuracy\nzeno,none,one,0.1", "a.csv:2: epoch 'one'; expects a number"),
        (
            "a.csv",
            "rule,attack,epoch,accuracy\nzeno,none,1,38.1",
            "a.csv:2: accuracy 38.1; expects a fraction from 0 to 1",
        ),
        (
            "a.csv",
            "rule,attack,epoch,accuracy\nzeno,none,1,0,45",
            "a.csv:2: more cells than the head has; decimals have a point",
        ),
        (
            "A.CSV",
            "\ufeffrule,attack,epoch,accuracy\nzeno,none,1,0.4\nzeno,none,1,0.5",
            "A.CSV:3: epoch 1 of zeno · none is there twice; give each curve a source of its own",
        ),
        ("a.csv", f"rule,attack,epoch,accuracy\n{'z' * 140_000},none,1,0.4", "a.csv:2: field larger than field limit"),
        (
            "a.jsonl",
            '{"rule": "zeno", "attack": "none", "epoch": 1, "accuracy": 1' + 400 * "0" + "}",
            "expects a number",
        ),
        ("a.jsonl", "[1]", "a.jsonl:1: expects a JSON object"),
        ("a.jsonl", "{", "a.jsonl:1: not valid JSON"),
        ("a.jsonl", "\n", "a.jsonl: it has no rows"),
    ],
)
def test_mistakes_of_a_file_are_named_with_their_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError) as caught:
        read_curves(tmp_path / name)
    assert message in str(caught.value)
    with pytest.raises(RunError, match="there is no such file"):
        read_curves(tmp_path / "none.csv")


def test_a_curve_without_a_line_or_panel_of_ours_is_an_error(results, tmp_path):
    (tmp_path / "a.csv").write_text("rule,attack,epoch,accuracy\nzena,negative,1,0.5\n")
    with pytest.raises(RunError, match="no line 'zena': did you mean 'zeno'"):
        compare(figure_data_of(collect(results).table), read_curves(tmp_path / "a.csv"))


def test_the_committed_curves_belong_to_figure_3():
    curves = read_curves(ROOT / "results/published/resnet20_fig3/oracle_fig3.jsonl")
    assert [(one.source, one.rule, one.attack) for one in curves] == [
        *(("independent simulation", rule, "negative 6") for rule in ("average", "trimmed_mean", "phocas", "zeno")),
        *((f"independent simulation, CPU, seed {seed}", "trimmed_mean", "negative 6") for seed in (1, 2)),
    ]
    assert all(one.epoch[0] == 1 and len(one.epoch) >= (10 if "CPU" in one.source else 31) for one in curves)
    assert {one.variant for one in curves} == {"epochs=40"}


def test_a_curve_is_compared_with_the_variant_that_it_names(results, tmp_path):
    (tmp_path / "a.csv").write_text("rule,attack,epoch,accuracy,variant\nzeno,none,1,0.5,epochs=7\n")
    data = figure_data_of(collect(results).table)[0]
    there, elsewhere = replace(data, variant="train.epochs=7"), replace(data, variant="")
    with_curve, without = compare([there, elsewhere], read_curves(tmp_path / "a.csv"))
    assert (len(with_curve.compared), len(without.compared)) == (1, 0)
    with pytest.raises(RunError, match="no runs differ from their file by 'epochs=7'; there are: no differences"):
        compare([elsewhere], read_curves(tmp_path / "a.csv"))

import csv
import io
import json
import re

import numpy as np
import pytest
from invented import ATTACKS, LEVEL, invent

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.drawing import draw_accuracy as draw
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.page import save
from hpcps.figures.publish import write_figures, write_tables
from hpcps.figures.style import looks
from hpcps.records.collect import collect
from hpcps.records.table import read_table, write_table


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The table of a whole sweep: four rules, four attacks."""
    results = tmp_path_factory.mktemp("results") / "sweep"
    invent(results, epochs=8, workers=2)
    return collect(results).table


@pytest.mark.thorough
def test_a_heading_says_what_is_reduced_and_what_is_not(tmp_path):
    whole, short = tmp_path / "whole", tmp_path / "short"
    for results, epochs in ((whole, 10), (short, 4)):
        invent(results, epochs=epochs, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2])
    file = [json.loads(path.read_text()) for path in sorted(whole.glob("runs/*/spec.json"))]
    write_tables(collect(short, file).table, short)
    (shown,) = figure_data_of(read_table(short / "table.parquet"))
    assert "· 4 of 10 epochs ·" in shown.facts
    assert shown.remark == "reduced: train.epochs=4"
    assert shown.not_reduced == "as in the file: model, data, processes, local steps, heterogeneity"
    heading = draw(shown).get_suptitle().replace("\N{NO-BREAK SPACE}", " ").replace("\n", " ")
    for text in ("4 of 10 epochs", shown.remark, shown.not_reduced):
        assert text in heading
        assert text in markdown([shown])
    (full,) = figure_data_of(collect(whole, file).table)
    assert "· 10 epochs ·" in full.facts
    assert full.not_reduced == ""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """The table of two rules under two attacks, three seeds, one run of them unfinished."""
    results = tmp_path_factory.mktemp("results") / "seeded"
    invent(results, epochs=8, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2], seeds=(1, 2))
    invent(
        results, epochs=8, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2], seeds=(3,), first=8,
        unfinished=("zeno · none",),
    )  # fmt: skip
    return collect(results).table


def evaluations(table, **where):
    rows = table[table["event"] == "evaluation"]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


def panels(figure):
    """The panels by the value of the attack, which a title has in words: `negative, scale 6`."""
    return {axes.get_title().partition(": ")[2].replace(", scale", ""): axes for axes in figure.axes}


def lines(axes):
    """The curves of a panel by label; crosses have no label of their own."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_a_panel_per_attack_and_a_line_per_rule_in_the_order_of_the_sweep(swept):
    (figure_data,) = figure_data_of(swept)
    figure = draw(figure_data)
    assert [axes.get_title() for axes in figure.axes] == [
        "attack: none", "attack: negative, scale 6", "attack: random, scale 1", "attack: randomscale, scale 8",
    ]  # fmt: skip
    for axes in figure.axes:
        assert list(lines(axes)) == ["average", "trimmed_mean", "phocas", "zeno"]
        assert axes.get_ylim() == (0, 100)
        assert axes.get_xlim()[0] == 0
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["average", "trimmed mean", "phocas", "zeno", "diverged"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("against", "column", "unit", "label"),
    [
        ("epoch", "epoch", 1.0, "epoch"),
        ("wall_time", "wall", 1.0, "wall time (s)"),
        ("bytes", "bytes_sent_total", 1e6, "sent by all processes (MB)"),
    ],
)
def test_the_lines_are_the_table(swept, against, column, unit, label):
    figure = draw(figure_data_of(swept)[0], against)
    for attack in ("none", "random 1"):
        axes = panels(figure)[attack]
        assert axes.get_xlabel() == label
        for rule in ("average", "zeno"):
            rows = evaluations(swept, attack=attack, rule=rule)
            assert len(rows) == 8
            x, y = lines(axes)[rule].get_data()
            np.testing.assert_allclose(x, rows[column].to_numpy() / unit)
            np.testing.assert_allclose(y, 100 * rows["accuracy"].to_numpy())


def test_a_diverged_run_has_a_cross_where_it_diverged(swept):
    figure = draw(figure_data_of(swept)[0])
    crosses = {
        panel: [line for line in axes.lines if line.get_marker() == "x"] for panel, axes in panels(figure).items()
    }
    assert {panel: len(found) for panel, found in crosses.items()} == {
        "none": 0, "negative 6": 1, "random 1": 0, "randomscale 8": 0,
    }  # fmt: skip
    rows = evaluations(swept, attack="negative 6", rule="average")
    first = rows[rows["diverged"] == 1].iloc[0]
    (cross,) = crosses["negative 6"]
    np.testing.assert_allclose(cross.get_xydata(), [[first["epoch"], 100 * first["accuracy"]]])


@pytest.mark.thorough
def test_seeds_make_a_mean_and_a_band_over_the_epochs_all_have_reached(seeded):
    (figure_data,) = figure_data_of(seeded)
    axes = panels(draw(figure_data))["none"]
    rows = evaluations(seeded, attack="none", rule="average").groupby("epoch")["accuracy"]
    x, y = lines(axes)["average"].get_data()
    assert list(x) == list(range(1, 9))
    np.testing.assert_allclose(y, 100 * rows.mean())
    assert list(lines(axes)["zeno"].get_xdata()) == list(range(1, 9)), "the unfinished seed does not cut the others"
    bands = axes.collections
    assert len(bands) == 2
    heights = bands[1].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [100 * rows.min().min(), 100 * rows.max().max()])
    texts = [text.get_text() for text in draw(figure_data).legends[0].get_texts()]
    assert "range of 2 to 3 seeds" in texts
    assert "not finished" not in texts
    assert "1 of 12 runs unfinished (1 at epoch 4)" in figure_data.facts
    assert "(2 of 3 seeds)" in markdown([figure_data])


@pytest.mark.thorough
@pytest.mark.usefixtures("empty_files")
def test_runs_that_are_not_finished_are_drawn_as_far_as_they_are_and_say_so(tmp_path):
    results = tmp_path / "x"
    invent(results, epochs=8, workers=2, rules=("zeno", "average"), attacks=ATTACKS[:2], unfinished=("zeno · none",))
    (figure_data,) = figure_data_of(collect(results).table)
    figure = draw(figure_data)
    axes = figure.axes[0]
    assert list(lines(axes)["zeno"].get_xdata()) == [1, 2, 3, 4]
    ends = [line.get_xdata() for each in figure.axes for line in each.lines if line.get_marker() == ">"]
    assert np.array_equal(ends, [[4]])
    assert "not finished" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "1 of 4 runs unfinished (1 at epoch 4)" in figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")
    assert "(epoch 4)" in markdown([figure_data])
    assert main(["publish", str(results), "--results", str(tmp_path)]) == 0
    assert main(["report", str(results), "-o", str(tmp_path / "report.html")]) == 0
    assert '"remark": "not finished"' in (tmp_path / "report.html").read_text()
    copy = tmp_path / "published/x"
    assert sorted(path.name for path in copy.iterdir()) == [
        *("figures", "final_accuracy.csv", "final_accuracy.md", "provenance.json", "publication.json"),
        *("summary.csv", "table.parquet"),
    ]


@pytest.mark.usefixtures("empty_files")
def test_reduced_runs_are_drawn_apart_and_say_so(tmp_path):
    results = tmp_path / "x"
    common = {"epochs": 4, "workers": 2, "attacks": ATTACKS[:1], "rules": ("zeno",)}
    invent(results, **common)
    file = [json.loads(path.read_text()) for path in results.glob("runs/*/spec.json")]
    invent(results, **common, first=1, changes={"data": {"limit": 500}})
    invent(results, **common, first=2, changes={"train": {"batch_size": 8}})
    table = collect(results, file).table
    full, reduced, changed = figure_data_of(table)
    assert (full.remark, reduced.remark, changed.remark) == (
        "full length", "reduced: data.limit=500", "changed: train.batch_size=8",
    )  # fmt: skip
    assert "reduced: data.limit=500" in draw(reduced)._suptitle.get_text()
    assert "reduced" not in draw(full)._suptitle.get_text()
    names = {path.name for path in write_figures(figure_data_of(table), tmp_path / "figures") if path.suffix == ".png"}
    figures = ("accuracy_by_epoch", "accuracy_by_wall_time", "accuracy_by_bytes", "acceptance_by_epoch")
    assert names == {f"{figure}{mark}.png" for figure in figures for mark in ("", "-limit500", "-batch_size8")}
    assert "reduced: data.limit=500" in markdown(figure_data_of(table))
    # SingleProcess, it has the plain name.
    (alone,) = figure_data_of(table[table["variant"] == "data.limit=500"])
    assert alone.remark == "reduced: data.limit=500"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": {"name": "mlp"}}, "reduced: model.name=mlp"),
        ({"data": {"name": "digits"}}, "reduced: data.name=digits"),
        ({"train": {"local_steps": 2}}, "reduced: train.local_steps=2"),
        ({"heterogeneity": {"delay": {"kind": "constant"}}}, "reduced: heterogeneity.delay.kind=constant"),
        ({"topology": {"workers": 1}}, "reduced: topology.workers=1"),
        ({"train": {"epochs_of_mine": 2}}, "changed: train.epochs_of_mine=2"),
    ],
)
def test_what_makes_a_run_smaller_or_another_is_called_reduced(tmp_path, changes, word):
    common = {"epochs": 2, "workers": 2, "attacks": ATTACKS[:1], "rules": ("zeno",)}
    invent(tmp_path / "file", **common)
    file = [json.loads(path.read_text()) for path in (tmp_path / "file").glob("runs/*/spec.json")]
    invent(tmp_path / "x", **common, changes=changes)
    (figure_data,) = figure_data_of(collect(tmp_path / "x", file).table)
    assert figure_data.remark == word


def test_whatever_is_swept_makes_lines_and_panels(swept):
    table = swept[swept["attack"] == "none"].copy()
    table["skip_rate"] = (
        table["rule"].astype(object).map({"average": 0.0, "trimmed_mean": 0.0, "phocas": 0.5, "zeno": 0.5})
    )
    table["rho"] = table["rule"].astype(object).map({"average": -0.1, "trimmed_mean": 0.1, "phocas": -0.1, "zeno": 0.1})
    table.attrs["swept"] = ["attack", "rho", "skip_rate", "seed"]
    (figure_data,) = figure_data_of(table)
    assert (figure_data.line_key, figure_data.panel_keys, figure_data.lines) == (
        "rho",
        ("attack", "skip_rate"),
        ("-0.1", "0.1"),
    )
    assert list(figure_data.panels) == ["none · 0", "none · 0.5"]
    table.attrs["swept"] = ["attack"]
    assert (figure_data_of(table)[0].line_key, figure_data_of(table)[0].panel_keys) == ("attack", ())


def test_a_single_run_is_one_line_in_one_panel(tmp_path):
    invent(tmp_path / "x", epochs=2, workers=1, rules=("zeno",), attacks=ATTACKS[:1])
    table = collect(tmp_path / "x").table
    table.attrs["swept"] = []
    (figure_data,) = figure_data_of(table)
    figure = draw(figure_data)
    assert len(figure.axes) == 1
    assert len(figure.axes[0].lines) == 1
    assert figure.legends == []
    assert re.search(r"\| +\d\d\.\d \|", markdown([figure_data]))


@pytest.mark.thorough
def test_files_are_complete_and_the_same_each_time(seeded, tmp_path):
    (data,) = figure_data_of(seeded)
    files = write_figures([data], tmp_path)
    assert [file.name for file in files] == [
        f"{x}.{ending}"
        for x in ("accuracy_by_epoch", "accuracy_by_wall_time", "accuracy_by_bytes", "acceptance_by_epoch")
        for ending in ("png", "pdf")
    ]
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")
    for file in save(draw(data), tmp_path / "again"):
        assert file.read_bytes() == (tmp_path / f"accuracy_by_epoch{file.suffix}").read_bytes()


@pytest.mark.thorough
@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("against", ["epoch", "wall_time", "bytes"])
@pytest.mark.parametrize("name", ["swept", "seeded", "one panel", "partly_diverged"])
def test_nothing_is_cut_off_or_on_top_of_something_else(request, name, against):
    table = request.getfixturevalue("swept" if name == "one panel" else name)
    if name == "one panel":  # narrow, with five things in its legend
        table = table[table["attack"] == "negative 6"]
    figure = draw(figure_data_of(table)[0], against)
    figure.draw_without_rendering()
    page = figure.bbox
    boxes = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    boxes += [axes.get_tightbbox() for axes in figure.axes]
    for place, box in enumerate(boxes):
        assert page.x0 - 1 <= box.x0 < box.x1 <= page.x1 + 1
        assert page.y0 - 1 <= box.y0 < box.y1 <= page.y1 + 1
        for other in boxes[place + 1 :]:
            assert not box.padded(-1).overlaps(other.padded(-1))


@pytest.mark.thorough
def test_final_accuracies_are_those_of_the_last_epoch(swept, seeded):
    def last(table, rule, attack):
        rows = evaluations(table, rule=rule, attack=attack)
        return 100 * rows.loc[rows["epoch"] == rows["epoch"].max(), "accuracy"]

    text = markdown(figure_data_of(swept))
    assert "| rule         | none | negative 6 | random 1 | randomscale 8 | none: accepted |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| zeno")]
    assert [float(cell) for cell in row.split("|")[2:6]] == [
        pytest.approx(last(swept, "zeno", attack).item(), abs=0.05)
        for attack in ("none", "negative 6", "random 1", "randomscale 8")
    ]
    assert "|     10.0 † |" in text
    assert text.count("\n| ") == 5
    values = last(seeded, "average", "none")
    assert f"{values.mean():.1f} [{values.min():.1f}–{values.max():.1f}]" in markdown(figure_data_of(seeded))
    assert "(2 of 3 seeds)" in markdown(figure_data_of(seeded))


@pytest.mark.thorough
def test_the_csv_has_a_row_per_line_and_panel(swept, seeded):
    rows = list(csv.DictReader(io.StringIO(comma_separated(figure_data_of(swept)))))
    assert [(row["line"], row["panel"]) for row in rows[:5]] == [
        *((rule, "none") for rule in ("average", "trimmed_mean", "phocas", "zeno")), ("average", "negative 6"),
    ]  # fmt: skip
    found = evaluations(swept, rule="zeno", attack="negative 6")
    (zeno,) = [row for row in rows if (row["line"], row["panel"]) == ("zeno", "negative 6")]
    assert float(zeno["accuracy"]) == pytest.approx(100 * found["accuracy"].iloc[-1], abs=1e-3)
    assert (zeno["seeds"], zeno["epoch"]) == ("1", "8")
    accepted = 100 * found["accepted_sent_pairs_total"].iloc[-1] / found["sent_pairs_total"].iloc[-1]
    assert float(zeno["accepted"]) == pytest.approx(accepted, abs=1e-3)
    assert float(rows[0]["accepted"]) > 0, "also of a rule without a reference"
    assert {row["unfinished"] for row in rows} == {"0"}
    found = evaluations(seeded, rule="average", attack="none", epoch=8)["accuracy"]
    several = [
        row for row in csv.DictReader(io.StringIO(comma_separated(figure_data_of(seeded)))) if row["line"] == "average"
    ]
    limits = [float(several[0][f"accuracy_{which}"]) for which in ("low", "high")]
    assert limits == [pytest.approx(100 * found.min(), abs=1e-3), pytest.approx(100 * found.max(), abs=1e-3)]
    assert several[0]["seeds"] == "3"


def test_before_the_first_evaluation_there_are_tables_but_no_figures(swept, tmp_path):
    table = swept[swept["event"] == "round"]
    assert write_tables(table, tmp_path) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]
    with pytest.raises(RunError, match="no evaluation in this table yet"):
        figure_data_of(table)


@pytest.mark.thorough
@pytest.mark.usefixtures("empty_files")
def test_a_table_of_an_earlier_version_is_drawn_without_what_it_has_not(swept, tmp_path):
    new = [name for name in swept if name in ("outside", "scores", "model") or name.endswith("pairs_total")]
    assert len(new) == 7
    old = swept.drop(columns=new)
    old.attrs = {"experiment": "sweep", "swept": ["rule", "attack"]}
    (figure_data,) = figure_data_of(old)
    assert figure_data.scored == ()
    assert (
        figure_data.panels["none"][0].accuracy.mean[-1] == figure_data_of(swept)[0].panels["none"][0].accuracy.mean[-1]
    )
    assert "accepted" not in markdown([figure_data])
    assert len(write_figures([figure_data], tmp_path)) == 6


def test_an_unwritable_folder_is_said(swept, tmp_path):
    (tmp_path / "figures").write_text("")
    with pytest.raises(RunError, match="cannot write figures"):
        write_figures(figure_data_of(swept), tmp_path / "figures")


@pytest.fixture(scope="module")
def partly_diverged(tmp_path_factory):
    """The table of three seeds of two rules; under attack, average diverges with two of the seeds."""
    results = tmp_path_factory.mktemp("results") / "partly"
    for seed in (1, 2, 3):
        LEVEL["negative", "average"] = 0.1 if seed < 3 else 0.4
        common = {"epochs": 8, "workers": 2, "rules": ("zeno", "average"), "attacks": ATTACKS[:2]}
        invent(results, **common, seeds=(seed,), first=4 * seed)
    LEVEL["negative", "average"] = 0.1
    return collect(results).table


@pytest.mark.thorough
def test_how_many_seeds_diverged_stands_beside_every_mean(partly_diverged):
    (figure_data,) = figure_data_of(partly_diverged)
    assert "2 of 12 runs diverged" in figure_data.facts
    text = markdown([figure_data])
    (average,) = [line for line in text.splitlines() if line.startswith("| average")]
    assert average.count(" † 2 of 3 |") == 1
    assert "† diverged (k of n seeds, which the mean includes)" in text
    rows = list(csv.DictReader(io.StringIO(comma_separated([figure_data]))))
    assert [row["diverged"] for row in rows] == ["0", "0", "0", "2"]
    figure = draw(figure_data)
    marked = {panel: [note.get_text() for note in axes.texts] for panel, axes in panels(figure).items()}
    assert marked == {"none": [], "negative 6": ["2 of 3"]}
    assert "diverged (k of n seeds)" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.usefixtures("empty_files")
def test_a_sweep_that_is_not_finished_shows_what_is_missing(swept, tmp_path):
    table = swept[~((swept["rule"] == "phocas") | (swept["attack"] == "random 1"))].copy()
    gone = swept[(swept["rule"] == "phocas") | (swept["attack"] == "random 1")].drop_duplicates("run_id")
    names = ["run_id", "label", "point", "variant", "outside", "seed", "rule", "attack"]
    missing = json.loads(gone[names].to_json(orient="records"))
    table.attrs = {**swept.attrs, "missing": missing}
    write_table(table, tmp_path / "table.parquet")
    (figure_data,) = figure_data_of(read_table(tmp_path / "table.parquet"))
    assert "7 of 16 runs unfinished (7 without a result)" in figure_data.facts
    assert figure_data.lines == ("average", "trimmed_mean", "phocas", "zeno")
    assert list(figure_data.panels) == ["none", "negative 6", "random 1", "randomscale 8"]
    text = markdown([figure_data])
    (phocas,) = [line for line in text.splitlines() if line.startswith("| phocas")]
    assert [cell.strip() for cell in phocas.split("|")[2:6]] == ["–"] * 4
    assert "no result yet: average · random, trimmed_mean · random, phocas · none" in text
    figure = draw(figure_data)
    figure.draw_without_rendering()
    assert [note.get_text() for note in panels(figure)["random 1"].texts] == ["no result yet"]
    assert "phocas (no result yet)" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(write_figures([figure_data], tmp_path / "figures")) == 8


@pytest.mark.thorough
def test_a_mean_says_how_many_seeds_it_has_yet(seeded):
    table = seeded[seeded["point"] != 8].copy()
    gone = seeded[seeded["point"] == 8].drop_duplicates("run_id")
    names = ["run_id", "label", "point", "variant", "outside", "seed", "rule", "attack"]
    table.attrs = {**seeded.attrs, "missing": json.loads(gone[names].to_json(orient="records"))}
    (figure_data,) = figure_data_of(table)
    text = markdown([figure_data])
    (zeno,) = [line for line in text.splitlines() if line.startswith("| zeno")]
    assert zeno.count("(2 of 3 seeds)") == 1
    assert "3 seeds" in figure_data.facts
    assert "1 of 12 runs unfinished (1 without a result)" in figure_data.facts
    assert "range of 2 to 3 seeds" in [text.get_text() for text in draw(figure_data).legends[0].get_texts()]


def test_more_lines_than_colours_can_be_told_apart():
    lines = ["zeno", "average", "median", "phocas", "trimmed_mean", *(f"rule {place}" for place in range(24))]
    styles = looks(lines)
    assert len({(look.color, look.dashes) for look in styles.values()}) == len(lines)


@pytest.mark.parametrize("number", [4, 40, 400])
def test_lines_of_one_figure_never_share_colour_and_marker(number):
    """Also a known rule and one without a style of its own, rules of two modes, and references."""
    rules = ["zeno", "zeno++", "average", "naive_async", "median", "krum"]
    names = [*rules, *(f"rule {place}" for place in range(number))]
    styles = looks(names, ["SGD", *(f"reference {place}" for place in range(number))])
    assert len({(look.color, look.marker) for look in styles.values()}) == len(styles) == len(names) + number + 1
    signed = looks([f"zeno rho {place}" for place in range(-number, number + 1)])
    assert len({(look.color, look.marker) for look in signed.values()}) == 2 * number + 1

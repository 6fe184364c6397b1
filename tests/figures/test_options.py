"""The options of figures, from `hpcps plot --style FILE --set key=value` and from Python."""

import re
from pathlib import Path

import numpy as np
import pytest
from invented import ATTACKS, invent

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.curve import Range
from hpcps.figures.drawing import draw_accuracy, figures
from hpcps.figures.labels import of_key, of_panel, of_value
from hpcps.figures.options import PlotOptions, plot_options
from hpcps.inputs import parse_toml
from hpcps.records.collect import collect
from hpcps.spec.keys import plain


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Four rules under three attacks, three seeds each; `average` diverges under `negative`."""
    results = tmp_path_factory.mktemp("options") / "demo"
    for seed in (1, 2, 3):
        invent(results, seeds=[seed], epochs=4, workers=2, attacks=ATTACKS[:3], first=12 * seed)
    return collect(results).table


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


@pytest.mark.thorough
def test_labels_are_for_people(table):
    figure = figures(table)["accuracy_by_epoch"]
    assert titles(figure) == ["attack: none", "attack: negative, scale 6", "attack: random, scale 1"]
    assert legend(figure)[:4] == ["average", "trimmed mean", "phocas", "zeno"]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("random 1 scope worker", "random, scale 1, by worker"),
        ("randomscale 8 rate 0.3", "randomscale, scale 8, rate 0.3"),
        ("zeno rho -0.1", "zeno, rho -0.1"),
        ("zeno++", "zeno++"),
        ("naive_async", "naive async"),
        ("-0.001", "-0.001"),
        ("none", "none"),
        ("cosine period.epochs 3", "cosine, period epochs 3"),
        ("validator_model", "validator model"),
        ("steps at [2, 4] by 3", "steps at [2, 4] by 3"),
    ],
)
def test_a_value_as_people_write_it(text, label):
    assert of_value(text) == label


def test_a_key_as_people_write_it():
    assert [of_key(key) for key in ("attack", "communication.skip_rate", "train.optimizer.kind", "")] == [
        *("attack", "skip rate", "optimizer", "")
    ]
    assert of_panel(("attack", "communication.skip_rate"), "random 1 · 0.2") == (
        "attack: random, scale 1 · skip rate: 0.2"
    )


@pytest.mark.thorough
def test_lines_and_panels_are_those_chosen_in_their_order_with_their_names(table):
    options = {"lines": ["zeno", "average"], "panels": ["random 1", "none"]}
    figure = figures(table, **options, names={"zeno": "Zeno", "none": "no attack"})["accuracy_by_epoch"]
    assert titles(figure) == ["attack: random, scale 1", "no attack"]
    assert legend(figure)[:2] == ["Zeno", "average"]
    assert [line.get_label() for line in figure.axes[0].lines] == ["zeno", "average"]
    assert "2 of 4 lines, 2 of 3 panels shown" in figure._suptitle.get_text().replace("\xa0", " ")
    # A panel is also chosen by its kind, and by its name in the figure.
    for panel in ("random", "random, scale 1"):
        assert titles(figures(table, panels=[panel])["accuracy_by_epoch"]) == ["attack: random, scale 1"]


@pytest.mark.thorough
def test_a_line_keeps_its_style_without_the_others(table):
    """Also the lines without a style of their own, which get the next free one."""
    renamed = table.copy()
    renamed["rule"] = renamed["rule"].astype(str).replace({"trimmed_mean": "krum", "phocas": "bulyan"})
    whole = figures(renamed)["accuracy_by_epoch"].axes[0].lines
    (line,) = figures(renamed, lines=["bulyan"])["accuracy_by_epoch"].axes[0].lines
    (same,) = [other for other in whole if other.get_label() == "bulyan"]
    assert (line.get_color(), line.get_marker()) == (same.get_color(), same.get_marker())


@pytest.mark.thorough
def test_what_is_not_there_is_an_error_that_lists_what_is(table):
    with pytest.raises(RunError) as caught:
        figures(table, lines=["zen"], panels=["nothing"])
    assert "no line 'zen': did you mean 'zeno'? There are: average, trimmed_mean, phocas, zeno" in str(caught.value)
    assert "no panel 'nothing'. There are: none, negative 6, random 1" in str(caught.value)


def test_the_statistic_of_the_seeds():
    values = np.array([[10.0, 5.0], [20.0, 5.0], [60.0, np.nan]])
    spread = Range.of(values)
    low, high = PlotOptions().band_limits(spread)
    np.testing.assert_array_equal([low[0], high[0]], [10.0, 60.0])
    deviation = np.std([10.0, 20.0, 60.0], ddof=1)
    low, high = PlotOptions(statistic="deviation").band_limits(spread)
    np.testing.assert_allclose([low[0], high[0]], [30 - deviation, 30 + deviation])
    np.testing.assert_allclose([low[1], high[1]], [5.0, 5.0])
    low, high = PlotOptions(statistic="interval").band_limits(spread)
    # 4.302653 is the 97.5 % quantile of Student's t with two degrees of freedom.
    np.testing.assert_allclose(high[0] - 30, 4.302653 * deviation / np.sqrt(3), rtol=1e-6)
    narrow, _ = PlotOptions(statistic="interval", confidence=0.5).band_limits(spread)
    assert narrow[0] > low[0]
    one = Range.of(np.array([[7.0, 8.0]]))
    for statistic in ("range", "deviation", "interval"):
        np.testing.assert_array_equal(PlotOptions(statistic=statistic).band_limits(one), [[7.0, 8.0]] * 2)


@pytest.mark.thorough
def test_size_columns_and_heading(table):
    plain = figures(table)
    assert plain["accuracy_by_epoch"]._suptitle is not None
    drawn = figures(table, width=3.4, height=1.5, columns=1, heading=False)
    for figure in drawn.values():
        assert figure.get_figwidth() == 3.4
        assert figure._suptitle is None
    one = drawn["accuracy_by_epoch"]
    assert one.get_figheight() == pytest.approx(3 * 1.5 + 0.8 + 3 * 0.17)  # the legend has three rows more than usual
    assert len({round(axes.get_subplotspec().colspan.start) for axes in one.axes}) == 1
    assert figures(table, columns=2)["accuracy_by_epoch"].axes[0].get_gridspec().nrows == 2


@pytest.mark.thorough
def test_a_figure_of_one_panel_in_one_column(table):
    for name, figure in figures(table, panels=["none"], columns=1, heading=False).items():
        assert figure.axes, name
    assert figures(table, panels=["none"], columns=1)["acceptance_by_epoch"].axes[0].get_gridspec().nrows == 2


def plot(monkeypatch, capsys, results, *arguments, status=0):
    monkeypatch.chdir(results.parent.parent)
    capsys.readouterr()
    assert main(["plot", "demo", *arguments]) == status
    return capsys.readouterr()


@pytest.fixture
def small(tmp_path):
    results = tmp_path / "results" / "demo"
    invent(results, epochs=2, workers=1, rules=("zeno", "average"), attacks=ATTACKS[:2])
    return results


@pytest.mark.thorough
def test_the_command_takes_a_file_and_sets_over_it(small, monkeypatch, capsys, empty_files):
    seen = []

    def spy(data, against, options):
        seen.append(options)
        return draw_accuracy(data, against, options)

    monkeypatch.setattr("hpcps.figures.drawing.draw_accuracy", spy)
    Path(small.parent.parent / "paper.toml").write_text(
        'width = 3.4\nheading = false\nlines = ["zeno"]\n[names]\nzeno = "Zeno"\n"negative 6" = "sign flip"\n'
    )
    printed = plot(monkeypatch, capsys, small, "--style", "paper.toml", "--set", "width=7", "--set", "panels=['none']")
    assert "wrote results/demo/figures/accuracy_by_epoch.pdf" in printed.out
    assert "| average |" in printed.out  # the table has everything
    names = {"zeno": "Zeno", "negative 6": "sign flip"}
    assert seen[0] == PlotOptions(width=7.0, heading=False, lines=["zeno"], panels=["none"], names=names)


def test_all_mistakes_at_once_with_their_lines(small, monkeypatch, capsys):
    file = small.parent.parent / "paper.toml"
    file.write_text('heading = "no"\n\nwidht = 3\nstatistic = "sem"\nlines = ["zeno", 3]\n')
    said = plot(monkeypatch, capsys, small, "--style", "paper.toml", status=2).err
    assert re.search(r"paper.toml:1: heading: expects a valid boolean, got 'no'", said)
    assert re.search(r"paper.toml:3: unknown key widht: did you mean width\? The keys are width, height", said)
    assert re.search(r"paper.toml:4: statistic: expects 'range', 'deviation' or 'interval', got 'sem'", said)
    assert re.search(r"paper.toml:5: lines\[1\]: expects a valid string, got 3", said)
    said = plot(monkeypatch, capsys, small, "--set", "columns=0", status=2).err
    assert "--set: columns: expects greater than or equal to 1, got 0" in said
    assert "expects key=value" in plot(monkeypatch, capsys, small, "--set", "columns", status=2).err
    assert "no.toml: there is no such file" in plot(monkeypatch, capsys, small, "--style", "no.toml", status=2).err


def test_the_documentation_has_every_option_and_its_example_is_valid():
    (file,) = (Path(__file__).parents[2] / "docs").rglob("figures.md")
    page = file.read_text()
    for key, field in PlotOptions.model_fields.items():
        default = "" if field.default is None else f"`{plain(field.default)}`"
        assert f"| `{key}` | {default} | {field.description} |" in page
    text = page.split("A file for one column of a paper:\n\n```toml\n")[1].split("```")[0]
    assert plot_options(parse_toml("figures.md", text)).names["none"] == "without attack"

"""The figures of a study: heat maps, a ranking, and what entered the model, against the table that they come from."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.drawing import draw_accuracy
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.grid_figures import draw_grid
from hpcps.figures.grid_study import selected, studies_of, study_tables
from hpcps.figures.labels import of_value, parse, short_names
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import Page
from hpcps.records.bypass import COUNTS

RULES = {0.1: ("average", "krum f 0.1"), 0.3: ("average", "krum f 0.3")}
ATTACKS = ("negative 6", "alie", "negative 2")
SPLITS = ("iid", "dirichlet")
SEEDS = (1, 2, 3)
EVALUATED = ("event", "epoch", "accuracy")
HEAT_MAPS = [f"grid_attacks-{row}" for row in (1, 2, 3, 4)]


def accuracy_of(rule, attack, rate, split, seed):
    """Return a different accuracy for each run; average is worst under the first attack, krum under the second."""
    base = 0.9 - rate - 0.1 * SPLITS.index(split) - 0.01 * seed
    return base - (0.5 if (rule.partition(" ")[0], attack) in (("average", ATTACKS[0]), ("krum", "alie")) else 0.0)


def a_table(*, bypass=True, left_out=(), unknown=()):
    """Return a table; runs that are left out have no result, and those that are unknown are no part of the sweep."""
    rows, missing = [], []
    for split in SPLITS:
        for rate, rules in RULES.items():
            for rule in rules:
                for attack in ATTACKS:
                    for seed in SEEDS:
                        point = split, rate, rule, attack, seed
                        if point in left_out:
                            (first, *_) = a_run(len(rows), *point, bypass=False)
                            facts = {name: value for name, value in first.items() if name not in EVALUATED}
                            missing.append(
                                facts | {"run_id": f"m{len(missing)}", "status": "not started", "label": "x"}
                            )
                        elif point not in unknown:
                            rows += a_run(len(rows), *point, bypass)
    frame = pd.DataFrame(rows)
    if missing:
        frame.attrs["missing"] = missing
    frame.attrs["experiment"] = "study"
    frame.attrs["swept"] = ["data.split", "attack", "attack_rate", "rule", "seed"]
    return frame


def a_run(number, split, rate, rule, attack, seed, bypass):
    settings = {
        "run_id": f"{number:010x}", "point": number, "experiment": "study", "status": "done", "variant": "",
        "outside": "", "rule": rule, "attack": f"{attack} rate {rate} scope worker", "attack_rate": rate,
        "attack_scope": "worker", "data.split": split, "seed": seed, "workers": 10, "validators": 1, "servers": 1,
        "model": "mlp", "data": "digits", "epochs": 2, "fidelity": "corrected", "scores": False, "wall": 1.0,
        "bytes_sent_total": 1, "diverged": 0,
    }  # fmt: skip
    accuracy = accuracy_of(rule, attack, rate, split, seed)
    lines = [{"event": "evaluation", "epoch": float(e), "accuracy": accuracy if e == 2 else 0.99} for e in (1, 2)]
    if bypass:
        entered = 3 if rule == "average" else 0
        lines += [
            {"event": "bypass", "round": r, **dict(zip(COUNTS, (3, entered, 7, 7 - r), strict=True))} for r in (0, 1)
        ]
    return [settings | line for line in lines]


@pytest.fixture(scope="module")
def study():
    (only,) = studies_of(a_table())
    return only


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.thorough
def test_rules_and_rows_have_short_names(study):
    assert study.rules == ("average", "krum")
    assert study.attacks == ("negative 6", "alie", "negative 2")
    assert study.rows == tuple(f"{split} · f = {f} of 10" for split in SPLITS for f in (1, 3))


@pytest.mark.thorough
def test_a_row_of_a_number_says_of_which_key():
    table = a_table()
    table["data.alpha"] = np.where(table["data.split"] == "iid", 1.0, 0.3)
    table.attrs["swept"] = ["data.alpha", "attack", "attack_rate", "rule", "seed"]
    (named,) = studies_of(table)
    assert named.rows[0] == "alpha 1 · f = 1 of 10"
    assert "| alpha 1 · f = 1 of 10" in study_tables(named)


def test_the_numbers_are_those_of_the_table(study):
    assert study.accuracy.shape == (2, 4, 3, 3)
    assert study.accuracy[1, 3, 1, 2] == pytest.approx(100 * accuracy_of("krum", "alie", 0.3, "dirichlet", 3))
    # The mean over the seeds is that of seed 2.
    expected = [[100 * (0.9 - rate - 0.1 * split - 0.02 - 0.5) for split in (0, 1) for rate in (0.1, 0.3)]] * 2
    assert study.worst == pytest.approx(np.array(expected))
    assert [study.worst_attack(rule, row) for rule in (0, 1) for row in (0, 3)] == ["negative 6"] * 2 + ["alie"] * 2
    assert study.scores[0] == pytest.approx([100 * (0.9 - 0.2 - 0.05 - 0.01 * seed - 0.5) for seed in SEEDS])


def test_figures_show_the_numbers_and_names(study):
    figures = dict(draw_grid([study], PlotOptions(names={"alie": "ALIE"})))
    assert [*figures] == ["grid_worst", "grid_best", "grid_ranking", *HEAT_MAPS, "grid_bypass"]
    worst = texts(figures["grid_worst"])
    assert worst[:4] == ["28.0", "negative, scale 6", "28.0", "ALIE"]
    assert len(figures["grid_worst"].axes[0].patches) == 4, "the best rule of each row has a frame"
    best = texts(figures["grid_best"])
    assert best[:8] == ["78.0", "krum", "78.0", "average", "78.0", "average", "28.0", "average"]
    assert [label.get_text() for label in figures["grid_best"].axes[0].get_xticklabels()][1:] == [
        *("ALIE", "negative, scale 2", "worst attack")
    ]
    assert texts(figures["grid_ranking"]) == ["13.0", "13.0"]
    above, below = figures["grid_bypass"].axes[0], figures["grid_bypass"].axes[3]
    assert [line.get_ydata().tolist() for line in above.lines] == [[100, 100], [0, 0]]
    assert below.lines[0].get_ydata() == pytest.approx([100, 100 * 6 / 7])


def test_rules_that_differ_in_what_they_tolerate_have_a_heat_map(study):
    told = replace(study, rules=("krum f 1", "krum f 3"))
    figures = dict(draw_grid([told], PlotOptions()))
    assert "grid_tolerance" in figures
    axes = figures["grid_tolerance"].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["f = 1", "f = 3"]
    assert [float(word) for word in texts(figures["grid_tolerance"])[::2]] == pytest.approx(
        study.worst.T.ravel(), abs=0.06
    )
    assert "of krum under the worst attack" in figures["grid_tolerance"]._suptitle.get_text()


def test_options_choose_rules_and_attacks(study):
    chosen = selected(study, PlotOptions(lines=["krum"], panels=["alie", "negative 6"]))
    assert chosen.rules == ("krum",)
    assert chosen.attacks == ("alie", "negative 6")
    assert chosen.accuracy[0, :, 0] == pytest.approx(study.accuracy[1, :, 1])
    assert "1 of 2 rules, 2 of 3 attacks shown" in chosen.figure_data.facts
    figures = dict(draw_grid([study], PlotOptions(lines=["krum"], width=3.0, heading=False)))
    assert [*figures] == ["grid_worst", *HEAT_MAPS, "grid_bypass"]
    assert figures["grid_worst"].get_figwidth() == 3.0
    assert figures["grid_worst"]._suptitle is None
    with pytest.raises(RunError, match=r"panels: no panel 'alia': did you mean 'alie'\? There are: negative 6, alie"):
        selected(study, PlotOptions(panels=["alia"]))


def test_missing_runs_and_old_records_leave_gaps():
    gone = {(split, rate, "average", attack, seed) for split in SPLITS[:1] for rate in RULES for attack in ATTACKS
            for seed in SEEDS}  # fmt: skip
    (study,) = studies_of(a_table(bypass=False, left_out=gone))
    assert np.isnan(study.worst[study.rules.index("average")][:2]).sum() == 2
    figures = dict(draw_grid([study], PlotOptions()))
    assert [*figures] == ["grid_worst", "grid_best", "grid_ranking", *HEAT_MAPS]
    assert texts(figures["grid_worst"]).count("–") == 2
    table = study_tables(study)
    assert "| average " in table
    assert "; *: some runs have no result yet; a score needs all runs" in table


@pytest.mark.thorough
def test_a_cell_with_some_of_its_runs_has_a_mark_and_its_rule_no_score():
    (study,) = studies_of(a_table(left_out={("iid", 0.1, "average", "alie", 2)}))
    assert study.incomplete.tolist() == [[True, False, False, False], [False] * 4]
    assert np.isnan(study.scores[0]).tolist() == [False, True, False]
    assert texts(dict(draw_grid([study], PlotOptions()))["grid_worst"])[1] == "negative, scale 6*"


def test_a_sweep_that_is_no_product_has_gaps_and_no_marks():
    gone = {("iid", 0.1, "average", attack, seed) for attack in ATTACKS for seed in SEEDS}
    (study,) = studies_of(a_table(unknown=gone))
    assert np.isnan(study.worst[study.rules.index("average")]).sum() == 1
    assert not study.incomplete.any()
    assert not study.uncertain.any()
    assert "no result yet" not in study_tables(study)


@pytest.mark.thorough
def test_seeds_that_have_not_begun_count_as_missing():
    whole = a_table()
    first = whole.drop_duplicates("run_id")
    gone = first[(first["seed"] != 1) & first["attack"].str.startswith("alie")]
    table = whole[~whole["run_id"].isin(gone["run_id"])]
    table = table[(table["seed"] == 1) | ~table["attack"].str.startswith("alie")].assign()
    settings = [name for name in first if name not in ("event", "epoch", "accuracy", *COUNTS)]
    table.attrs |= whole.attrs | {"missing": gone[settings].assign(status="not started", label="x").to_dict("records")}
    (study,) = studies_of(table)
    assert study.uncertain.tolist() == [[False, True, False]] * 4
    figure = dict(draw_grid([study], PlotOptions()))["grid_best"]
    rules = texts(figure)[1::2]
    assert [rule.endswith("*") for rule in rules] == [False, True, False, True] * 4, "alie, and the worst attack"
    assert "*: some runs have no result yet" in " ".join(figure._suptitle.get_text().split())


def test_a_heat_map_has_the_accuracy_of_each_rule_under_each_attack(study):
    figure = dict(draw_grid([study], PlotOptions(names={"alie": "A little"})))["grid_attacks-2"]
    cells = texts(figure)
    assert cells[::2] == [f"{100 * value:.1f}" for rule in ("average", "krum f 0.3") for value in [
        accuracy_of(rule, attack, 0.3, "iid", 2) for attack in ATTACKS
    ]]  # fmt: skip
    assert set(cells[1::2]) == {"± 1.0"}, "the seeds differ by one percent"
    assert "final accuracy with iid, f = 3 of 10" in " ".join(figure._suptitle.get_text().split())
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["average", "krum"]
    assert "A little" in [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(figure.axes[0].patches) == 3, "the best rule under each attack has a frame"


@pytest.mark.thorough
def test_a_rule_has_one_style_and_one_entry_also_where_its_f_varies():
    (data,) = figure_data_of(a_table())
    assert data.lines == ("average", "krum f 0.1", "krum f 0.3")
    figure = draw_accuracy(data)
    styles = {line.get_label(): (line.get_color(), line.get_marker()) for axes in figure.axes for line in axes.lines}
    assert styles["krum f 0.1"] == styles["krum f 0.3"] != styles["average"]
    assert [text.get_text() for text in figure.legends[0].texts][:2] == ["average", "krum"]


@pytest.mark.thorough
def test_a_title_says_a_rate_once():
    (data,) = figure_data_of(a_table())
    assert data.panel_keys == ("data.split", "attack")
    titles = [" ".join(axes.get_title().split()) for axes in draw_accuracy(data).axes]
    assert titles[0] == "split: iid · attack: negative, scale 6, rate 0.1, by worker"


@pytest.mark.thorough
def test_bars_of_one_colour_have_different_hatches():
    data = replace(figure_data_of(a_table())[0], line_key="", lines=tuple(f"rule_{n}" for n in range(12)))
    bars = [tuple(Page(data).bar(line)[name] for name in ("color", "hatch")) for line in data.lines]
    assert len({*bars}) == 12


@pytest.mark.thorough
def test_a_point_without_any_result_has_a_place_in_the_study():
    whole = a_table()
    gone = whole.drop_duplicates("run_id").query("rule == 'average'")
    table = whole[whole["rule"] != "average"].assign()
    settings = [name for name in gone if name not in ("event", "epoch", "accuracy", *COUNTS)]
    table.attrs |= whole.attrs | {"missing": gone[settings].assign(status="not started", label="x").to_dict("records")}
    (study,) = studies_of(table)
    assert study.rules == ("average", "krum")
    assert np.isnan(study.accuracy[0]).all()


@pytest.mark.thorough
def test_a_run_that_has_not_ended_counts_as_missing():
    table = a_table()
    begun = table["run_id"] == table["run_id"].iloc[0]
    table.loc[begun, "status"] = "running"
    (study,) = studies_of(table)
    assert study.incomplete.tolist() == [[True, False, False, False], [False] * 4]


def test_tables_rank_the_rules(study):
    lines = study_tables(study).splitlines()
    assert lines[0].startswith("**study**: final test accuracy (%) under the worst attack")
    assert [cell.strip() for cell in lines[5].split("|")[1:4]] == ["average", "13.0 [12.0–14.0]", "28.0 negative 6"]


def test_a_study_sweeps_rules():
    table = a_table()
    table.attrs["swept"] = ["attack", "seed"]
    with pytest.raises(
        RunError, match=r"a grid compares rules, but study does not sweep validation\.rule; it sweeps attack"
    ):
        studies_of(table)


@pytest.mark.parametrize(
    ("text", "kind", "pairs"),
    [
        ("average", "average", ()),
        ("negative 6 rate 0.3", "negative", (("scale", "6"), ("rate", "0.3"))),
        ("krum before [arc, nnm per block] f 2", "arc + nnm + krum", (("nnm.per", "block"), ("f", "2"))),
        ("krum before [] f 2", "krum", (("f", "2"),)),
        ("steps at [2, 4] by 3", "steps", (("at", "[2, 4]"), ("by", "3"))),
    ],
)
def test_the_text_of_a_component_is_parsed(text, kind, pairs):
    assert parse(text) == (kind, pairs)


def one_row(rules=("average", "my_rule", "krum before [nnm f 1] f 2", "a_rule_with_a_rather_long_name")):
    """Return a study with one row; a rule of a plugin does not state which updates it accepts."""
    rows = []
    for rule in rules:
        for attack in ("alie", "sign_flip", "an_attack_with_a_long_name"):
            run = a_run(len(rows), "iid", 0.1, rule, attack, 1, True)
            for line in run:
                line["settings"] = "compression topk memory ef21 k 0.1 · server optimizer momentum"
                line["status"] = "running" if (rule, attack) == ("average", "alie") else "done"
            rows += [line for line in run if rule != "my_rule" or line["event"] != "bypass"]
    frame = pd.DataFrame(rows)
    frame.attrs |= {"experiment": "study", "swept": ["rule", "attack"]}
    (found,) = studies_of(frame)
    return found


@pytest.mark.parametrize("width", [None, 3.4])
def test_no_text_of_a_study_is_cut_off_or_over_another_one(width):
    for name, figure in draw_grid([one_row()], PlotOptions(width=width)):
        figure.canvas.draw()
        page, titles = figure.bbox, [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
        for extent in (figure._suptitle.get_window_extent(), *titles):
            assert page.x0 <= extent.x0, name
            assert extent.x1 <= page.x1 + 1, name
        assert not any(a.overlaps(b) for n, a in enumerate(titles) for b in titles[:n]), name
        words = " ".join(figure._suptitle.get_text().split())
        assert "1 of 12 runs unfinished (1 at epoch 2)" in words, "no line ends inside a word"


def test_a_rule_that_states_nothing_has_no_line_and_no_entry_of_the_legend():
    figure = dict(draw_grid([one_row()], PlotOptions()))["grid_bypass"]
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "average",
        "nnm + krum",
        "a rule with a rather long name",
    ]
    assert "unknown of my rule" in " ".join(figure._suptitle.get_text().split())


def test_rules_that_differ_in_a_key_of_a_preaggregator_have_different_names():
    texts = ["krum before [nnm f 1] f 2", "krum before [nnm f 2] f 2"]
    assert len({*short_names(texts, {"f"}, lambda group: len(group) > 1).values()}) == 2
    assert of_value(texts[0]) == "nnm + krum, nnm f 1, f 2"


def test_what_is_done_before_a_rule_is_in_its_name():
    assert of_value("trimmed_mean before [nnm] trim 0.3") == "nnm + trimmed mean, trim 0.3"
    assert of_value("nnm + trimmed_mean") == "nnm + trimmed mean"


def test_keys_are_left_out_unless_they_distinguish():
    given = ["krum f 1 per block", "krum f 3 per block", "median"]
    assert list(short_names(given, {"f"}, lambda group: False).values()) == ["krum", "krum", "median"]
    assert list(short_names(given, {"f"}, lambda group: len(group) > 1).values()) == ["krum f 1", "krum f 3", "median"]


KEYS = {"topology.workers": 7, "topology.validators": 0, "train.epochs": 1, "train.local_steps": 2}
POINTS = """
[[sweep]]
attack = [{ kind = "negative", scale = 6, scope = "worker" }, { kind = "random", scale = 1, scope = "worker" }]
[[sweep]]
"attack.rate" = [0.2, 0.2, 0.4]
"validation.rule" = [{ kind = "average" }, { kind = "krum", f = 1 }, { kind = "krum", f = 2, neighbours = "n-f-1" }]
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("empty_files")
def test_the_command_draws_the_figures_of_runs(tmp_path, capsys):
    (tmp_path / "small_grid.toml").write_text(small_experiment("small_grid", KEYS, POINTS))
    assert main(["run", str(tmp_path / "small_grid.toml"), "--results", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["plot", "grid", str(tmp_path / "small_grid"), "--set", "heading=false"]) == 0
    printed = capsys.readouterr().out
    assert "| rule " in printed
    assert "f = 1 of 7" in printed
    assert {path.stem for path in (tmp_path / "small_grid/figures").glob("grid_*.png")} == {
        *("grid_worst", "grid_best", "grid_ranking", "grid_attacks-1", "grid_attacks-2", "grid_bypass")
    }
    assert main(["report", str(tmp_path / "small_grid")]) == 0
    page = (tmp_path / "small_grid/report.html").read_text(encoding="utf-8")
    assert "<h2>Final test accuracy under the worst attack (%)</h2>" in page
    assert '<th scope="col">f = 1 of 7</th>' in page
    assert main(["plot", "grid", "one", "two"]) == 2
    assert (
        "takes one experiment, `bytes`, `grid` or `speedup` and one experiment, `esync` and experiments, or"
        in capsys.readouterr().err
    )

"""The summary of an experiment: statistics over seeds that a paper prints, in LaTeX, Markdown and CSV."""

import io
import statistics

import pandas as pd
import pytest

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.records.export import (
    as_latex,
    as_markdown,
    chosen,
    pivot_as_latex,
    pivot_as_markdown,
    pivoted,
    renamed,
    summarize,
)

ACCURACIES = {("zeno", "none"): [0.9, 0.8, 0.1], ("zeno", "a_b 50%"): [0.5], ("median", "none"): [0.7, 0.75]}


@pytest.fixture
def frame():
    rows = []
    for (rule, attack), values in ACCURACIES.items():
        for seed, value in enumerate(values):
            facts = {"run_id": f"{rule}{attack}{seed}", "rule": rule, "attack": attack, "seed": seed, "status": "done"}
            facts |= {"event": "evaluation", "point": len(rows), "variant": "", "outside": ""}
            for epoch in (1, 2):
                counts = {
                    "sent_pairs_total": 10 * epoch,
                    "accepted_sent_pairs_total": 4 * epoch,
                    "bytes_sent_total": 3e6,
                }
                last = {"stalled": float(value < 0.2), "diverged": 0.0, "wall": 5.0 * epoch, "time": epoch}
                rows.append(facts | counts | last | {"epoch": epoch, "accuracy": value if epoch == 2 else 0.0})
    rows.append(rows[-1] | {"run_id": "late", "seed": 9, "status": "running", "accuracy": 0.0})
    table = pd.DataFrame(rows)
    table.attrs |= {"swept": ["rule", "attack", "seed"], "experiment": "demo"}
    return table


def test_the_statistics_are_those_of_the_finished_seeds(frame):
    summary = summarize(frame).set_index(["rule", "attack"])
    assert [*summary.index] == [*ACCURACIES]
    zeno = summary.loc["zeno", "none"]
    percent = [90.0, 80.0, 10.0]
    assert (zeno["n"], zeno["diverged"], zeno["stalled"], zeno["unfinished"]) == (3, 0, 1, 0)
    assert zeno["mean"] == pytest.approx(60.0)
    assert zeno["std"] == pytest.approx(statistics.stdev(percent))
    assert (zeno["accepted"], zeno["bytes"], zeno["wall"]) == (40.0, 3e6, 10.0)
    median = summary.loc["median", "none"]
    assert (median["n"], median["unfinished"], median["mean"]) == (2, 1, pytest.approx(72.5))
    half = 12.7062 * statistics.stdev([70, 75]) / 2**0.5  # the 97.5 % quantile of Student's t with 1 degree of freedom
    assert median["low"] == pytest.approx(72.5 - half, abs=1e-3)
    assert summary.loc["zeno", "a_b 50%"][["std", "low", "high"]].isna().all()


def test_points_without_any_result_have_rows_and_count_as_unfinished(frame):
    facts = {"variant": "", "outside": "", "status": "not started", "attack": "none"}
    frame.attrs["missing"] = [
        facts | {"run_id": f"m{n}", "point": 50 + n, "rule": rule, "seed": n}
        for n, rule in enumerate(("zeno", "zeno", "krum"))
    ]
    summary = summarize(frame).set_index(["rule", "attack"])
    assert [*summary.index] == [*ACCURACIES, ("krum", "none")]
    assert [*summary["unfinished"]] == [2, 0, 1, 1]
    assert [*summary["n"]] == [3, 1, 2, 0]
    assert "| krum | none | 0 | – |" in as_markdown(summary.reset_index())


def test_an_interval_of_accuracies_ends_at_0_and_100(frame):
    summary = summarize(frame).set_index(["rule", "attack"])
    assert summary.loc["median", "none"][["low", "high"]].tolist() == pytest.approx([40.7, 100.0], abs=0.1)
    assert summary.loc["zeno", "none"][["low", "high"]].tolist() == [0.0, 100.0]


def test_tables_of_earlier_versions_do_not_say_which_runs_stalled(frame):
    summary = summarize(frame.drop(columns="stalled"))
    assert summary["stalled"].isna().all()
    assert "| – |" in as_markdown(chosen(summary, ["rule", "n", "stalled"]))


def test_latex_is_escaped_and_columns_and_rows_are_chosen(frame):
    summary = chosen(summarize(frame), ["attack", "n", "mean", "std"], ["rule=zeno"])
    text = as_latex(summary)
    assert r"    a\_b 50\% & 1 & 50.00 & -- \\" in text
    assert r"attack & n & mean (\%) & std \\" in text
    assert r"\begin{tabular}{lrrr}" in text
    assert "median" not in text
    assert "| a_b 50% | 1 | 50.00 | – |" in as_markdown(summary)
    for columns, rows, message in (
        (["meen"], [], "no column 'meen': did you mean 'mean'?"),
        ([], ["rule=zenoo"], "no value in the column rule 'zenoo': did you mean 'zeno'?"),
        ([], ["zeno"], "--rows zeno: expects COLUMN=VALUE"),
        ([], ["rule=median", "attack=a_b 50%"], "no row has all of"),
    ):
        with pytest.raises(RunError, match=message):
            chosen(summarize(frame), columns, rows)


def test_the_command_writes_the_published_grid_for_a_paper(tmp_path, capsys):
    options = ["--columns", "rule,n,mean,stalled", "--rows", "data.split=dirichlet", "--rows", "attack=alie rate 0.1"]
    for form, ending in (("latex", "tex"), ("markdown", "md")):
        command = ["export", "results/published/quickstart", "--to", form, "-o", str(tmp_path)]
        assert main(command) == 0
        assert f"summary.{ending}" in capsys.readouterr().out
    assert main(["export", "results/published/quickstart", "--to", "csv", "-o", str(tmp_path)]) == 0
    found = pd.read_csv(io.StringIO((tmp_path / "summary.csv").read_text()))
    assert {"rule", "attack", "n", "mean", "low", "high", "diverged", "stalled", "bytes", "wall"} <= {*found}
    command = ["export", "results/published/quickstart", "--to", "tensorboard", *options]
    assert main(command) != 0
    assert "--columns and --rows" in capsys.readouterr().err


def test_a_pivot_has_the_mean_and_deviation_and_the_best_in_bold(frame):
    summary = renamed(summarize(frame), {"zeno": "Zeno", "none": "no attack"})
    assert pivot_as_latex(pivoted(summary, "attack")).splitlines()[-8:] == [
        r"\begin{tabular}{lrr}",
        r"    \toprule",
        r"    rule & no attack & a\_b 50\% \\",
        r"    \midrule",
        r"    Zeno & 60.0 $\pm$ 43.6 & \textbf{50.0} \\",
        r"    median & \textbf{72.5 $\pm$ 3.5*} & -- \\",
        r"    \bottomrule",
        r"\end{tabular}",
    ]
    assert "| median | **72.5 ± 3.5*** | – |" in pivot_as_markdown(pivoted(summary, "attack"))


def test_rules_of_a_pivot_compete_under_the_same_settings(frame):
    table = pd.concat([frame.assign(split="iid"), frame.assign(split="by_class", accuracy=frame["accuracy"] / 2)])
    table["run_id"] += table["split"]
    table.attrs |= {"swept": ["split", "rule", "attack", "seed"], "experiment": "demo"}
    rows = dict(pivoted(summarize(table), "attack").rows)
    assert [rows[split, "median"][0][1] for split in ("iid", "by_class")] == [True, True]
    assert not rows["iid", "zeno"][0][1]
    with pytest.raises(RunError, match="no column of settings 'atack': did you mean 'attack'"):
        pivoted(summarize(table), "atack")
    with pytest.raises(RunError, match="several points have the same cell"):
        pivoted(renamed(summarize(table), {"by_class": "iid"}), "attack")

"""Lines from elsewhere: points outside the sweep's product, one key at a time, the baseline; and files' names."""

import json
import re

import numpy as np
import pytest
from invented import ATTACKS, invent, rewrite_spec

from hpcps.figures.drawing import draw_accuracy
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.labels import suffixes
from hpcps.figures.publish import baseline, write_tables
from hpcps.records.collect import collect


def respec(results, index, label=None, swept=None, **tables):
    """Change what an invented run's `spec.json` says."""
    path = results / "runs" / f"{index:010x}" / "spec.json"
    spec = json.loads(path.read_text())
    for name, values in tables.items():
        spec["run"][name] = {**spec["run"].get(name, {}), **values}
    spec |= {"label": label or spec["label"]} | ({} if swept is None else {"swept": swept})
    rewrite_spec(path.parent, spec)


def invent_fig7(results, **changes):
    """Three values of rho under one attack, and a point that includes other keys, as a file's `[[include]]` does."""
    for place, rho in enumerate((-0.1, 0.0, 0.1)):
        invent(results, epochs=3, workers=2, rules=("zeno",), attacks=ATTACKS[2:3], first=place, changes=changes)
        swept = {"validation.rule.rho": rho}
        respec(results, place, f"rho {rho:g}", swept, validation={"rule": {"kind": "zeno", "rho": rho}})
    own = {"topology.workers": 0, "data.shards": 17, "attack": {"kind": "none"}}
    invent(results, epochs=3, workers=0, rules=("zeno",), attacks=ATTACKS[:1], first=3, changes=changes)
    respec(results, 3, "validation only", own, data={"shards": 17}, topology={"workers": 0})
    for record in (results / "runs" / f"{3:010x}" / "records").iterdir():
        record.write_text(re.sub(r'"bytes_sent": \d+', '"bytes_sent": 0', record.read_text()))


def specs(results):
    return [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/spec.json"))]


def test_a_point_outside_the_product_is_a_line_of_its_own_in_every_panel(tmp_path):
    invent_fig7(tmp_path / "fig7")
    table = collect(tmp_path / "fig7", specs(tmp_path / "fig7")).table
    assert table.attrs["swept"] == ["validation.rule.rho"]
    assert table.attrs["outside"] == {"validation only": ["workers", "data.shards", "attack"]}
    (figure_data,) = figure_data_of(table)
    assert (figure_data.lines, figure_data.panel_keys, list(figure_data.panels)) == (("-0.1", "0", "0.1"), (), [""])
    assert [curve.line for curve in figure_data.references] == ["validation only"]
    assert "2 workers" in figure_data.facts
    left, _ = draw_accuracy(figure_data).axes
    drawn = {line.get_label(): line for line in left.lines}
    rows = table[(table["event"] == "evaluation") & (table["workers"] == 0)]
    np.testing.assert_allclose(drawn["validation only"].get_ydata(), 100 * rows["accuracy"])
    legend = draw_accuracy(figure_data).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["-0.1", "0", "0.1", "validation only"]
    assert "validation only" not in {line.get_label() for line in draw_accuracy(figure_data, "bytes").axes[0].lines}
    assert f"| validation only     | {100 * rows['accuracy'].iloc[-1]:14.1f} |" in markdown([figure_data])
    assert "\nvalidation only,," in comma_separated([figure_data])


@pytest.mark.thorough
def test_it_is_drawn_with_reduced_runs_only_if_it_is_as_short(tmp_path):
    invent_fig7(tmp_path / "file")
    results = tmp_path / "x"
    invent_fig7(results, data={"limit": 90})
    for index in range(3):
        respec(results, index, topology={"workers": 1})
    (figure_data,) = figure_data_of(collect(results, specs(tmp_path / "file")).table)
    # workers is swept outside of the product; inside, another number of them is a deviation from the file.
    assert set(figure_data.variant.split(" ")) == {"topology.workers=1", "data.limit=90"}
    assert [curve.line for curve in figure_data.references] == ["validation only"]
    respec(results, 3, data={"limit": 80})
    (figure_data,) = figure_data_of(collect(results, specs(tmp_path / "file")).table)
    assert figure_data.references == ()


def test_alone_it_is_drawn_all_the_same(tmp_path):
    invent_fig7(tmp_path / "x")
    table = collect(tmp_path / "x", specs(tmp_path / "x")).table
    (figure_data,) = figure_data_of(table[table["outside"] != ""])
    assert figure_data.lines == ("validation only",)
    draw_accuracy(figure_data)


def test_runs_that_sweep_fewer_or_more_keys_stay_inside(tmp_path):
    """Such as those of a file before a sweep was added to it."""
    invent(tmp_path / "x", epochs=2, workers=1, rules=("zeno", "average"), attacks=ATTACKS[:2])
    respec(tmp_path / "x", 0, swept={"validation.rule": {"kind": "zeno"}})
    table = collect(tmp_path / "x").table
    assert (table.attrs["swept"], table.attrs["outside"]) == (["rule", "attack"], {})
    less = specs(tmp_path / "x")
    for spec in less:
        spec["swept"].pop("attack", None)
    assert collect(tmp_path / "x", less).table.attrs["swept"] == ["rule", "attack"]


def test_one_key_at_a_time_is_a_panel_per_key_against_the_same_base(tmp_path):
    results = tmp_path / "keys"
    changes = ({}, {"absent": "reset"}, {"proximal": {"worker": 0.2}, "absent": "both"})
    for place, asynchronous in enumerate(changes):
        base = {"absent": "accumulate", "proximal": {"worker": 0.0}}
        invent(
            results, epochs=3, workers=2, rules=("zeno++",), attacks=ATTACKS[:1], first=place, mode="async",
            changes={"asynchronous": {**base, **asynchronous}},
        )  # fmt: skip
        flat = {"asynchronous.absent": asynchronous.get("absent")} if asynchronous else {}
        flat |= {"asynchronous.proximal.worker": 0.2} if "proximal" in asynchronous else {}
        respec(results, place, f"point {place}", swept=flat)
    (figure_data,) = figure_data_of(collect(results, specs(results)).table)
    assert list(figure_data.panels) == [
        "absent: accumulate\xa0→\xa0reset", "absent: accumulate\xa0→\xa0both\nproximal.worker: 0\xa0→\xa00.2",
    ]  # fmt: skip
    (base, one), (again, other) = figure_data.panels.values()
    assert [curve.line for curve in (base, one, again, other)] == ["base", "changed"] * 2
    np.testing.assert_array_equal(base.accuracy.mean, again.accuracy.mean)
    assert (one.accuracy.mean != other.accuracy.mean).any()
    assert list(figure_data.applied) == list(figure_data.panels)
    figure = draw_accuracy(figure_data)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "changed"]
    assert "absent: accumulate → both, proximal.worker: 0 → 0.2" in markdown([figure_data])


@pytest.mark.thorough
def test_the_baseline_is_a_line_where_the_same_was_trained(tmp_path):
    for name in ("fig3_x", "fig5_x", "sgd_baseline"):
        rules = ("average",) if name == "sgd_baseline" else ("average", "zeno")
        invent(tmp_path / name, epochs=3, workers=2, rules=rules, attacks=ATTACKS[:1])
    respec(tmp_path / "sgd_baseline", 0, swept={})
    for path in (tmp_path / "fig3_x").glob("runs/*/spec.json"):
        spec = json.loads(path.read_text())
        rewrite_spec(path.parent, spec | {"run": spec["run"] | {"baseline": "sgd_baseline"}})
    frames = {path.name: collect(path).table for path in sorted(tmp_path.iterdir())}
    assert baseline(frames["fig3_x"], tmp_path / "fig3_x") is None  # not collected yet
    for name in reversed(frames):
        write_tables(frames[name], tmp_path / name)
    assert "| SGD " in (tmp_path / "fig3_x" / "final_accuracy.md").read_text()
    assert "SGD" not in (tmp_path / "fig5_x" / "final_accuracy.md").read_text()
    found = baseline(frames["fig3_x"], tmp_path / "fig3_x")
    (figure_data,) = figure_data_of(frames["fig3_x"], found)
    (line,) = [line for line in draw_accuracy(figure_data).axes[0].lines if line.get_label() == "SGD"]
    rows = frames["sgd_baseline"][frames["sgd_baseline"]["event"] == "evaluation"]
    np.testing.assert_allclose(line.get_ydata(), 100 * rows["accuracy"])
    for name, other in (("epochs", 4), ("workers", 3), ("data", "digits"), ("data_limit", 100.0), ("model", "mlp")):
        changed = found.copy()
        changed[name] = other
        assert figure_data_of(frames["fig3_x"], changed)[0].references == (), name


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        (["data.limit=5"], [""]),
        (["", "data.limit=5 train.epochs=4"], ["", "-limit5-epochs4"]),
        (["a.x=1 data.limit=5", "a.x=1 data.limit=6"], ["-limit5", "-limit6"]),
        (["", "train.lr_decay.epochs=[11,16]"], ["", "-epochs11_16"]),
        (["a.x=1", "b.x=1"], ["-x1", "-x1-2"]),
        (["", "a.b=" + 70 * "y"], ["", "-changed"]),
        (["a.x=1", "a.x=1 b.y=2"], ["-changed", "-y2"]),
        (["", "data.dir=/tmp/é"], ["", "-dir_tmp"]),
    ],
)
def test_file_names_say_how_variants_differ(variants, expected):
    assert suffixes(variants) == expected

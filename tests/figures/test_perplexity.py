"""The perplexity of a run on text: in its records, in the status, in tables, figures and the report."""

import json
import math

import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.figures.drawing import figures
from hpcps.figures.final import markdown
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.report.html import sections
from hpcps.records.collect import collect
from hpcps.records.evaluation import read_evaluation
from hpcps.records.export import summarize

KEYS = {"model.name": "decoder", "model.layers": 1, "model.width": 16, "model.heads": 2}
KEYS |= {"data.name": "text", "data.length": 16, "topology.workers": 1}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perplexity")
    (folder / "text.toml").write_text(small_experiment("text", KEYS))
    assert main(["run", str(folder / "text.toml"), "--results", str(folder)]) == 0
    return folder / "text"


def test_it_is_the_exponential_of_the_loss_everywhere(results, capsys):
    (run,) = results.glob("runs/*")
    lines = [json.loads(line) for file in (run / "records").glob("*") for line in file.read_text().splitlines()]
    found = [line for line in lines if line["event"] == "evaluation"]
    values = [line["perplexity"] for line in found]
    assert len(values) == 2
    assert values == pytest.approx([math.exp(line["loss"]) for line in found], rel=1e-12)
    assert {line["samples"] for line in found} == {32 * 16}
    table = collect(results).table
    assert summarize(table)["perplexity"].tolist() == values[-1:]
    (shown,) = figure_data_of(table)
    assert shown.curves[0].perplexity.mean.tolist() == values
    assert f"{values[-1]:.4g}" in markdown([shown])
    drawn = figures(table)
    axes = drawn["perplexity_by_epoch"].axes[0]
    assert axes.lines[0].get_ydata().tolist() == values
    assert axes.get_ylabel() == "test perplexity"
    assert "perplexity_by_bytes" in drawn
    (section,) = [section for section in sections(shown) if section.title == "Test perplexity"]
    assert section.panels[0].lines[0].y["perplexity"]["mean"] == pytest.approx(values, rel=1e-4)
    assert main(["status", "text", "--results", str(results.parent)]) == 0
    assert f"{values[-1]:.2f}" in capsys.readouterr().out
    assert main(["evaluate", "text", "--results", str(results.parent)]) == 0
    assert read_evaluation(run).perplexity == pytest.approx(values[-1], rel=1e-9)

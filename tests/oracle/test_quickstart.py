"""The demo says what the paper says: under attack `zeno` keeps its accuracy and `average` loses it."""

from pathlib import Path

import pytest

from hpcps.execution.inprocess import run_in_process
from hpcps.records.collect import collect
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import load_experiment, select

EXPERIMENT = Path(__file__).parents[2] / "experiments/quickstart.toml"


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory):
    """Final test accuracy by (rule, attack), of the runs that the claim is about."""
    results = tmp_path_factory.mktemp("results") / "quickstart"
    points = load_experiment(EXPERIMENT, ["train.epochs=6"]).points
    chosen = select(points, ["validation.rule.kind=zeno"]) + select(points, ["validation.rule.kind=average"])
    for point in chosen:
        directory = RunDirectory(results / "runs" / point.run_id)
        run = point.run.model_dump(mode="json")
        spec = {"run_id": point.run_id, "label": point.label, "index": point.index, "swept": point.swept, "run": run}
        directory.create(spec)
        run_in_process(point.run.identified(point.run_id), directory)
    table = collect(results, events=("evaluation",)).table
    last = table[table["epoch"] == 6].set_index(["rule", "attack_kind"])["accuracy"]
    return {(str(rule), str(attack)): float(value) for (rule, attack), value in last.items()}


@pytest.mark.thorough
def test_zeno_keeps_its_accuracy(accuracy):
    assert accuracy["zeno", "none"] > 0.85
    for attack in ("negative", "random"):
        assert accuracy["zeno", attack] > accuracy["zeno", "none"] - 0.03


@pytest.mark.thorough
def test_average_loses_it(accuracy):
    assert accuracy["average", "none"] > 0.85
    assert accuracy["average", "negative"] <= 0.20
    assert accuracy["average", "random"] <= 0.60

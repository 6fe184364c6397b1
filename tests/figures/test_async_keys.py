"""experiments/async_keys.toml and its committed results: every asynchronous key is there, and changes something."""

from pathlib import Path

import numpy as np
import pytest

from hpcps.figures.from_table import figure_data_of
from hpcps.records.table import read_table
from hpcps.spec.load import load_experiment
from hpcps.spec.presets import ASYNC_PRESETS, PRESETS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "experiments" / "async_keys.toml"


def leaves(tree, prefix=()):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def test_each_point_changes_one_key_and_all_keys_of_the_artifact_are_among_them():
    base, *points = load_experiment(FILE).points
    plain = dict(leaves(base.run.model_dump(mode="json")))
    for point in points:
        (key,) = point.swept
        changed = {path for path, value in leaves(point.run.model_dump(mode="json")) if plain.get(path) != value}
        assert changed
        assert all(".".join(path).startswith(key) for path in changed), point.label
    keys = {tuple(key.split(".")) for point in points for key in point.swept}
    wanted = {*ASYNC_PRESETS["artifact"], *PRESETS["artifact"]} - {
        ("validation", "batchnorm")
    }  # digits' nets have none
    assert wanted <= keys


@pytest.fixture(scope="module")
def table():
    return read_table(ROOT / "results" / "published" / "async_keys" / "table.parquet")


def test_the_committed_results_are_those_of_the_file(table):
    runs = table.drop_duplicates("run_id")
    assert (runs["status"] == "done").all()
    assert set(runs["variant"]) == {""}
    ids = {point.run_id for seed in runs["seed"].unique() for point in load_experiment(FILE, [f"seed={seed}"]).points}
    assert ids == set(runs["run_id"])


@pytest.mark.thorough
def test_every_key_changes_the_curve(table):
    """Runs in one process are the same each time: what differs is the key's doing."""
    (figure_data,) = figure_data_of(table)
    assert len(figure_data.panels) == len(load_experiment(FILE).points) - 1
    for title, (base, changed) in figure_data.panels.items():
        assert np.abs(base.accuracy.mean - changed.accuracy.mean).max() > 1, title
    absent = next(one for title, one in figure_data.applied.items() if title.startswith("absent"))
    assert absent[1].updates.high.max() < absent[0].updates.low.min()  # who waits for an answer sends less often
    assert absent[1].mean < absent[0].mean

"""Exported results, read back by pandas and by the package tensorboard."""

import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from invented import ATTACKS, invent

from hpcps.cli.main import main
from hpcps.records.collect import collect
from hpcps.records.run_directory import RunDirectory

START = datetime(2026, 11, 22, 6, 48, 6, tzinfo=UTC)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "small"
    invent(folder, rules=("average", "zeno"), attacks=ATTACKS[:2], epochs=4, workers=2)
    started = RunDirectory(folder / "runs" / "0000000003")
    started.write_provenance({"started": START.isoformat()})
    return folder


def test_csv(results, tmp_path, capsys):
    assert main(["export", str(results), "--to", "csv", "-o", str(tmp_path)]) == 0
    assert f"wrote {tmp_path / 'evaluation.csv'}" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {
        "runs.csv", "start.csv", "round.csv", "evaluation.csv", "diverged.csv", "end.csv", "totals.csv",
        "summary.csv",
    }  # fmt: skip
    table = collect(results).table
    runs = pd.read_csv(tmp_path / "runs.csv", dtype={"run_id": str})
    assert list(runs["rule"]) == ["average", "average", "zeno", "zeno"]
    assert list(runs["attack"]) == ["none", "negative 6"] * 2
    assert "event" not in runs
    evaluations = pd.read_csv(tmp_path / "evaluation.csv", dtype={"run_id": str})
    expected = table[table["event"] == "evaluation"]
    assert list(evaluations["accuracy"]) == pytest.approx(list(expected["accuracy"]))
    assert list(evaluations["bytes_sent_total"]) == list(expected["bytes_sent_total"])
    assert "checksum" not in evaluations
    assert set(evaluations["run_id"]) == set(runs["run_id"])
    rounds = pd.read_csv(tmp_path / "round.csv", dtype={"run_id": str})
    assert len(rounds) == (table["event"] == "round").sum()


def scalars(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of tensorboard's own dependencies
        accumulator = pytest.importorskip(
            "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
        )
        found = accumulator.EventAccumulator(str(folder), {accumulator.SCALARS: 0, accumulator.TENSORS: 0})
        found.Reload()
    return found


@pytest.mark.thorough
def test_tensorboard(results, tmp_path, capsys):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    for _ in range(2):  # the second export replaces the first
        assert main(["export", str(results), "--to", "tensorboard", "-o", str(tmp_path)]) == 0
    assert f"wrote 4 runs to {tmp_path}" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "zeno-none-0000000002"
    found = scalars(tmp_path / "zeno-negative-0000000003")
    table = collect(results).table
    own = table[(table["run_id"] == "0000000003") & (table["event"] == "evaluation")]
    events = found.Scalars("evaluation/accuracy")
    assert [event.step for event in events] == list(own["round"])
    assert [event.value for event in events] == pytest.approx(list(own["accuracy"]), rel=1e-6)
    assert events[0].wall_time == pytest.approx(START.timestamp() + own["time"].iloc[0], abs=1e-3)
    assert len(found.Scalars("worker-1/loss")) == 8
    assert "evaluation/time" not in found.Tags()["scalars"]
    (settings,) = found.Tensors("settings/text_summary")
    assert b"| rule | zeno |" in settings.tensor_proto.string_val[0]


def test_a_published_table_is_exported(tmp_path):
    published = next(Path(__file__).parents[2].glob("results/**/fig5_async_single_validator/table.parquet"))
    assert main(["export", str(published.parent), "--to", "csv", "-o", str(tmp_path)]) == 0
    updates = pd.read_csv(tmp_path / "updates.csv")
    assert list(updates) == ["run_id", "role", "index", "reader", "staleness", "count"]


def test_mistakes_are_plain_errors(results, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    assert main(["export", str(results), "--to", "csv", "-o", str(tmp_path / "file" / "csv")]) == 2
    assert "choose another folder with -o" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main(["export", str(results), "--to", "tensorboard", "-o", str(tmp_path)]) == 2
    assert "pip install 'hpcps[tensorboard]'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", str(results), "--to", "excel"])

"""Runs in MLflow, Weights & Biases and Trackio, as their own packages read them; `make trackers` has these packages."""

import json
import os
import subprocess
import sys

import pytest
import tracker_readers
from invented import ATTACKS, invent
from small_experiment import small_experiment

from hpcps.records.collect import collect

pytestmark = pytest.mark.usefixtures("starts_processes")

TRACKERS = ("mlflow", "wandb", "trackio")


def command(*words, **variables):
    """Run hpcps; a process of its own, because the package of a tracker reads its environment when it is imported."""
    words = [sys.executable, "-m", "hpcps", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, env={**os.environ, **variables})


def read(tracker, folder):
    """Return what `tracker_readers` finds, in a process whose Trackio has this folder."""
    code = f"import json, pathlib, tracker_readers; folder = pathlib.Path({str(folder)!r}); "
    code += f"print('\\n' + json.dumps(tracker_readers.read_{tracker}(folder)))"
    path = os.pathsep.join([os.path.dirname(tracker_readers.__file__), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRACKIO_DIR": str(folder), "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=TRACKERS)
def tracker(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed: make trackers")
    return request.param


def test_an_export_is_read_by_the_tracker_itself(tracker, tmp_path):
    results = tmp_path / "small"
    invent(results, rules=("average", "zeno"), attacks=ATTACKS[:2], epochs=4, workers=2)
    for _ in range(2):  # the second export replaces the first
        done = command("export", results, "--to", tracker, "-o", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert f"wrote 4 runs to {tmp_path / 'out'}: `" in done.stdout
    found = read(tracker, tmp_path / "out")
    assert set(found) == {f"{number:010}" for number in range(4)}
    settings, values = found["0000000003"]
    assert settings["rule"] == "zeno"
    table = collect(results).table
    own = table[(table["run_id"] == "0000000003") & (table["event"] == "evaluation")]
    assert [round for round, _ in values["evaluation/accuracy"]] == list(own["round"])
    assert [value for _, value in values["evaluation/accuracy"]] == pytest.approx(list(own["accuracy"]))
    assert [value for _, value in values["evaluation/bytes_sent_total"]] == list(own["bytes_sent_total"])
    assert len(values["worker-1/loss"]) == 8


def test_a_run_that_was_followed_is_as_if_it_was_exported(tracker, tmp_path):
    text = small_experiment("small", tables=f'[tracking]\nto = ["{tracker}"]\n')
    (tmp_path / "small.toml").write_text(text)
    done = command("run", tmp_path / "small.toml", "--results", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    live = read(tracker, tmp_path / "small" / "export" / tracker)
    assert command("export", tmp_path / "small", "--to", tracker, "-o", tmp_path / "out").returncode == 0
    assert live == read(tracker, tmp_path / "out")
    ((_, values),) = live.values()
    assert len(values["evaluation/accuracy"]) == 2


def test_a_folder_and_a_server_at_once_are_refused(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed: make trackers")
    results = tmp_path / "small"
    invent(results, rules=("average",), attacks=ATTACKS[:1], epochs=1, workers=2)
    store = (tmp_path / "store").as_uri()
    done = command("export", results, "--to", "mlflow", "-o", tmp_path / "out", MLFLOW_TRACKING_URI=store)
    assert done.returncode == 2
    assert f"MLFLOW_TRACKING_URI={store} names another place" in done.stderr
    done = command("export", results, "--to", "mlflow", MLFLOW_TRACKING_URI=store)
    assert done.returncode == 0, done.stderr
    assert len(read("mlflow", tmp_path / "store")) == 1

"""`train.stop_when_diverged`: a diverged run takes no more steps, and its curve is the same."""

import pytest

from hpcps.execution.sweep.batch import execute_point
from hpcps.execution.tracking import TrackingProcess
from hpcps.records.files import read_lines
from hpcps.records.locate import run_folder
from hpcps.records.status import SweepProgress
from hpcps.spec.load import load_experiment

SERVERS = """
name = "diverged"
topology = {{ servers = 2, validators = 1, workers = 2 }}
model = {{ name = "mlp" }}
data = {{ name = "digits", limit = 480, test_limit = 32 }}
transport = {{ kind = "inproc" }}
train = {{ epochs = 12, batch_size = 16, local_steps = 5, device = "cpu", {train} }}
"""
ALONE = SERVERS.replace("servers = 2, validators = 1, workers = 2", "servers = 0, validators = 1, workers = 0").replace(
    "limit = 480", "shards = 3, limit = 480"
)
RING = SERVERS.replace("servers = 2, validators = 1", "servers = 0, validators = 0").replace(
    "epochs = 12", 'exchange = "ring", epochs = 12'
)
BROKEN = "optimizer = { name = 'sgd', lr = 1e30 }"


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", [SERVERS, RING, ALONE], ids=["servers", "ring", "alone"])
@pytest.mark.parametrize("train", [BROKEN, "optimizer = { name = 'sgd', lr = 0.1 }"], ids=["diverged", "sound"])
def test_a_diverged_run_takes_no_more_steps_and_has_the_same_curve(tmp_path, text, train):
    file = tmp_path / "diverged.toml"
    file.write_text(text.format(train=train))
    curves, trained, models = [], [], []
    for stops in ("false", "true"):
        (point,) = load_experiment(file, [f"train.stop_when_diverged={stops}"]).points
        assert execute_point(point, tmp_path / stops, [], lambda: False, TrackingProcess())
        folder = run_folder(point, tmp_path / stops)
        records = {path.stem: read_lines(path).lines for path in sorted((folder / "records").iterdir())}
        lines = [line for record in records.values() for line in record]
        curves.append([(line["epoch"], line["accuracy"]) for line in lines if line["event"] == "evaluation"])
        trained.append(sum(line.get("samples", 0) for line in lines if line["event"] == "round"))
        models.append({path.name: path.read_bytes() for path in (folder / "final").iterdir()})
    assert curves[0] == curves[1]
    assert [epoch for epoch, _ in curves[0]] == list(range(1, 13))
    if text != ALONE:  # steps of a single process change the values that are still finite
        assert models[0] == models[1]
    if train == BROKEN:
        assert 0 < trained[1] < trained[0] / 2
    else:
        assert trained[1] == trained[0]


@pytest.mark.parametrize("text", [SERVERS, ALONE], ids=["servers", "alone"])
@pytest.mark.parametrize("optimizer", ["lr = 3e38", "weight_decay = 3e38", "name = 'adam', lr = 3e37"])
def test_the_largest_rates_end_in_a_run_that_is_marked(tmp_path, text, optimizer):
    file = tmp_path / "diverged.toml"
    file.write_text(text.format(train=f"optimizer = {{ {optimizer} }}"))
    (point,) = load_experiment(file, ["train.epochs=1", 'validation.rule.kind="average"']).points
    assert execute_point(point, tmp_path, [], lambda: False, TrackingProcess())
    (status,) = SweepProgress([run_folder(point, tmp_path)]).poll()
    # Servers refuse updates that are not finite, so their model stays as it is.
    assert status.diverged if text == ALONE else status.stalled

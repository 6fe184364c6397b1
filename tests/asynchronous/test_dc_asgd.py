"""DC-ASGD against a trace by hand in float64, over several servers, and from a checkpoint."""

from collections import Counter

import numpy as np
import pytest
from interrupted import model, play_through
from toy_trainers import Quadratic, everyone, play, spec

from hpcps.numerics.layout import Layout
from hpcps.records.files import read_lines
from hpcps.rules import DcAsgd
from hpcps.training import build

LAYOUT = Layout.of([("a", (3,)), ("b", (4, 2)), ("c", (5,))])
SIZE = LAYOUT.size
ALPHA, RATE, LAMBDA = 0.5, 0.5, 0.7
TARGETS = [np.linspace(-1, 1, SIZE), np.linspace(1.5, 0, SIZE), np.linspace(1, 2, SIZE)]


class Decaying(Quadratic):
    """Its learning rate is a tenth from an epoch on, as that of its run."""

    def __init__(self, target, decay):
        super().__init__(LAYOUT, target)
        self.decay = decay

    def train(self, steps, *, epoch=None, **more):
        self.learning_rate = rate_in(self.steps_done if epoch is None else epoch, self.decay)
        return super().train(steps, epoch=epoch, **more)


def rate_in(epoch, decay):
    return RATE * 0.1 ** sum(epoch >= each for each in decay)


def compensated(backup, *, decay=(), epochs=8, workers=2, rule=None, **tables):
    optimizer = {"name": "sgd", "lr": RATE, "momentum": 0.0}
    tables = {
        "train": {"epochs": epochs, "optimizer": optimizer, "lr_decay": {"epochs": decay}},
        "heterogeneity": {"delay": {"kind": "uniform", "low": 0.5, "high": 4.0}},
        "asynchronous": {"alpha": ALPHA},
        **tables,
    }
    rule = rule or {"kind": "dc_asgd", "compensation": LAMBDA, "backup": backup}
    return spec(rule, workers=workers, **{"validators": 0, **tables})


def trainer(run, role, index):
    return Decaying(TARGETS[index] if role == "worker" else 0.0, run.train.lr_decay.epochs)


def played(path, run):
    return play(path, run, {p: trainer(run, p.role, p.index) for p in everyone(run) if p.role != "server"})


def trace(lines, run):
    """Follow the order of the log from the initial model of zeros, by the formula of the paper, in float64.

    A gradient is x - t. Without validators, worker 0 counts the epochs: one for each of its updates.
    """
    decay, backup = run.train.lr_decay.epochs, run.validation.rule.backup
    w = previous = np.zeros(SIZE)
    epochs, drifts, pulled = Counter(), [], {}
    for line in lines:
        reader = line.get("reader")
        if line["event"] == "start":  # all workers get the model at the start of an attempt
            pulled = dict.fromkeys(("worker-0", "worker-1"), (w, RATE))
        elif line["kind"] in ("update", "apply"):
            epochs[reader] += 1
            read, rate = pulled[reader]
            gradient = read - TARGETS[int(reader[-1])]
            drift = w - (read if backup == "pulled" else previous)
            previous, w = w, w - ALPHA * rate * (gradient + LAMBDA * gradient * gradient * drift)
            pulled[reader] = w, rate_in(epochs["worker-0"], decay)
            drifts.append(np.abs(drift).max())
    assert np.median(drifts) > 0.01, "the compensation matters"
    return w


@pytest.mark.parametrize(("validators", "decay"), [(0, (3,)), (1, ())])
@pytest.mark.parametrize("backup", ["pulled", "previous"])
def test_follows_a_trace_by_hand(tmp_path, backup, validators, decay):
    run = compensated(backup, validators=validators, decay=decay)
    done = played(tmp_path, run)
    updates = Counter(line["reader"] for line in done.log if line["kind"] in ("update", "apply"))
    assert min(updates["worker-0"], updates["worker-1"]) >= 3
    expected = trace([{"event": "start"}, *done.log], run)
    assert done.model == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("backup", ["pulled", "previous"])
def test_several_servers_have_the_model_of_one(tmp_path, backup):
    models = []
    for servers in (1, 3):
        run = compensated(backup, servers=servers, workers=3, communication={"skip_rate": 0.4})
        models.append(played(tmp_path / str(servers), run).model)
    assert models[0].tobytes() == models[1].tobytes()


@pytest.mark.parametrize("backup", ["pulled", "previous"])
def test_a_resumed_run_goes_on_with_the_same_weights(tmp_path, backup, monkeypatch):
    monkeypatch.setattr(build, "build_trainer", trainer)
    run = compensated(backup, epochs=12, servers=2, checkpoint={"every": 1}, transport={"kind": "inproc"})
    folder = tmp_path / "runs/cut"
    play_through(run, folder, [90, 90, 90])
    lines, _ = read_lines(folder / "records/server-0.jsonl").valid()
    log = [line for line in lines if line["event"] in ("start", "applied")]
    assert sum(line["event"] == "start" for line in log) > 2
    assert model(folder) == pytest.approx(trace(log, run), rel=1e-5, abs=1e-6)


def test_without_compensation_it_is_asynchronous_sgd(tmp_path):
    rules = ({"kind": "dc_asgd", "compensation": 0.0}, {"kind": "naive_async"})
    models = [played(tmp_path / rule["kind"], compensated("pulled", rule=rule)).model for rule in rules]
    assert models[0].tobytes() == models[1].tobytes()


@pytest.mark.parametrize("rate", [0.0, 1e-39, 0.25])
def test_a_rate_of_zero_compensates_nothing(rate):
    update, drift = np.array([0.5, -1, 2], np.float32), np.array([1, 2, -4], np.float32)
    before = update.copy()
    found = DcAsgd(compensation=0.5).compensate(update, drift, rate)
    assert found.dtype == np.float32
    assert found.tolist() == ([0, -5, 34] if rate == 0.25 else before.tolist())
    assert update.tolist() == before.tolist()

"""Passes that are recorded and replayed are the same passes bit for bit, on a stand-in, and on a GPU if there is one.

On a GPU they are compared with those of the same GPU that are not recorded. Torch's algorithms are deterministic there
too (`prepare_device`), and a graph launches the kernels that it was recorded from, so nothing may differ.
"""

import threading
from pathlib import Path

import fake_cuda
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from training_examples import make_run, parameters
from zoo import SIZES

from hpcps.registry import using
from hpcps.registry.plugins import registry_of
from hpcps.training.build import build_trainer
from hpcps.training.pytorch.device import Gpu
from hpcps.training.pytorch.step import WARM_UP

DIGITS = {"name": "digits"}
SYNTHETIC = {"name": "synthetic", "limit": 96, "test_limit": 32, "shards": 3}
MODELS = {
    "mlp": (DIGITS, {}),
    "cnn": (DIGITS, {}),
    "dropout": (DIGITS, {"model": {"name": "mlp", "dropout": 0.3}}),
    "cifar_resnet20_v1": (SYNTHETIC, {"workers": 2, "batch_size": 8}),
}
OWN = {"my_model": ({"name": "my_data"}, {})}
ZOO = {
    name: ({"name": "digits", "resize": size, "limit": 64, "test_limit": 10}, {"workers": 1, "batch_size": 8})
    for name, size in SIZES.items()
}
PLUGINS = Path(__file__).parents[2] / "examples/plugins"
OPTIMIZERS = [
    {"name": "sgd", "lr": 0.05, "momentum": 0.0},
    {"name": "sgd", "lr": 0.05},
    {"name": "nag", "lr": 0.05, "weight_decay": 1e-3},
    {"name": "adam", "lr": 0.001, "weight_decay": 1e-3},
]


GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"), id="gpu"
)


class Kind:
    """Makes trainers that replay, and such that do not."""

    def __init__(self, device, monkeypatch):
        self.device, self._monkeypatch = device, monkeypatch

    def usual(self, model="mlp", **train):
        trainer = self._build(model, train)
        trainer.compute_device.recorder = None
        return trainer

    def replaying(self, model="mlp", **train):
        """Return a trainer; its `replays` has how often each of its recordings has been replayed."""
        if self.device == "cpu":
            fake_cuda.install(self._monkeypatch)
        with self._monkeypatch.context() as patch:
            patch.setattr("hpcps.training.pytorch.trainer.compute_device", Gpu)
            trainer = self._build(model, train)
        trainer.replays, record = [], trainer.compute_device.recorder

        def recorder(compute):
            replay, number = record(compute), len(trainer.replays)
            trainer.replays.append(0)

            def counted():
                trainer.replays[number] += 1
                return replay()

            return counted

        trainer.compute_device.recorder = recorder
        return trainer

    def pair(self, model="mlp", **train):
        return self.usual(model, **train), self.replaying(model, **train)

    def _build(self, model, train):
        data, more = {**MODELS, **OWN, **ZOO}[model]
        return build_trainer(make_run(data, **{"model": model, **more, "device": self.device, **train}), "worker", 0)


@pytest.fixture(params=[pytest.param("cpu", id="pretended"), GPU])
def kind(request, monkeypatch):
    return Kind(request.param, monkeypatch)


def same(one, other):
    for name, values in one.state().arrays.items():
        assert np.array_equal(values, other.state().arrays[name]), name
    assert one.state().facts == other.state().facts


@pytest.mark.sample(4, 16)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_replayed_steps_are_the_same_steps(kind, model, optimizer):
    one, other = kind.pair(model, optimizer=optimizer)
    for steps in (2, 4, 1):
        assert one.train(steps) == other.train(steps)
        same(one, other)
    assert other.replays == [7 - WARM_UP]
    anchor = np.linspace(-1, 1, one.layout.size, dtype=np.float32)
    assert one.train(2, anchor=anchor, pull=0.3) == other.train(2, anchor=anchor, pull=0.3)
    model = parameters(one)
    one.copy_from(0.5 * model)
    other.copy_from(0.5 * model)
    assert one.train(1, epoch=3) == other.train(1, epoch=3)
    same(one, other)
    assert one.evaluate() == other.evaluate()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("model", ZOO)
def test_large_networks_are_replayed_on_a_gpu(monkeypatch, model):
    one, other = Kind("cuda", monkeypatch).pair(model, optimizer={"name": "sgd", "lr": 1e-3})
    for steps in (4, 2):
        assert one.train(steps) == other.train(steps)
        same(one, other)
    assert other.replays == [6 - WARM_UP]
    assert one.evaluate() == other.evaluate()


def test_a_loss_of_ones_own_is_recorded(kind):
    texts = [(name, (PLUGINS / name).read_text()) for name in ("my_model.py", "my_data.py")]
    with using(registry_of(texts, PLUGINS)):
        one, other = kind.pair("my_model")
    for steps in (2, 4, 1):
        assert one.train(steps) == other.train(steps)
        same(one, other)
    assert other.replays == [7 - WARM_UP]
    assert one.evaluate() == other.evaluate()
    values = parameters(one)
    assert one.loss_on(3)(values) == other.loss_on(3)(values)


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", ["mlp", "cifar_resnet20_v1"])
def test_observing_is_recorded_by_itself(kind, model):
    one, other = kind.pair(model)
    for _ in range(2):
        assert one.observe(WARM_UP + 1) == other.observe(WARM_UP + 1)
        same(one, other)
        assert one.train(WARM_UP + 1) == other.train(WARM_UP + 1)
        same(one, other)
    assert other.replays == [WARM_UP + 2] * 2


def test_a_rate_that_changes_needs_no_other_recording(kind):
    """Warm-up changes it at every step, decay at the end of an epoch."""
    schedule = {"warmup": {"epochs": 1}, "lr_decay": {"factor": 0.1, "epochs": [2]}}
    one, other = kind.pair(**schedule)
    for _ in range(9):
        assert one.train(3) == other.train(3)
    same(one, other)
    assert one.learning_rate == pytest.approx(0.1 * one._train.optimizer.lr)
    assert other.replays == [27 - WARM_UP]


def test_batches_of_another_size_are_not_replayed(kind):
    """Those of a worker while others are absent; also if the first ones are of such a size."""
    one, other = kind.pair()
    for trainer in (one, other):
        trainer._stream._unit = 1
    for samples, steps in ((25, WARM_UP + 1), (None, WARM_UP + 2), (27, 1), (None, 1)):
        for trainer in (one, other):
            trainer.batch_size = samples or trainer._train.batch_size
        assert one.train(steps) == other.train(steps)
        same(one, other)
    assert other.replays == [3]


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_recording_outlives_a_restored_state(kind, optimizer):
    one, other = kind.pair("cifar_resnet20_v1", optimizer=optimizer)
    one.train(2)
    state = one.state()
    one.train(3)
    other.train(WARM_UP + 2)
    other.restore(state)
    assert other.train(3).steps == 3
    same(one, other)
    assert other.replays == [5 - WARM_UP + 3]


def test_statistics_that_are_loaded_or_reestimated_are_those_of_the_recording(kind):
    one, other = kind.pair("cifar_resnet20_v1")
    for trainer in (one, other):
        trainer.train(WARM_UP + 1)
        trainer.reestimate_statistics()
        trainer.train(1)
        trainer.load_statistics(2 * trainer.statistics)
        trainer.train(1)
    same(one, other)


def test_an_evaluator_measures_while_passes_are_recorded_and_replayed(kind):
    one, other = kind.pair("cifar_resnet20_v1")
    model, found, begun = parameters(one), [], threading.Event()
    evaluator = other.evaluator
    assert evaluator._model.compute_device is not other.compute_device

    def measure():
        for _ in range(4):
            evaluator.copy_from(model)
            evaluator.reestimate_statistics()
            found.append(evaluator.evaluate())
            begun.set()

    thread = threading.Thread(target=measure)
    thread.start()
    begun.wait(60)
    assert one.train(WARM_UP + 3) == other.train(WARM_UP + 3)
    thread.join(60)
    one.evaluator.copy_from(model)
    one.evaluator.reestimate_statistics()
    assert found == [one.evaluator.evaluate()] * 4
    same(one, other)
    assert other.replays == [3]


def test_what_cannot_be_recorded_is_said_once_and_computed_as_before(kind, capfd):
    """Something that waits for a value cannot."""
    one, other = kind.pair()
    other._model.network.register_forward_pre_hook(lambda network, inputs: inputs[0].sum().item() and None)
    assert [one.train(5), one.observe(5)] == [other.train(5), other.observe(5)]
    same(one, other)
    assert other.replays == []
    (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("hpcps"))
    said = f"hpcps: steps on {other.device} are not replayed as CUDA graphs, which is slower: "
    assert line.startswith(said)
    assert "operation not permitted when stream is capturing" in line


@pytest.fixture
def pretended(monkeypatch):
    """The stand-in alone, for what cannot be seen of a GPU."""
    return Kind("cpu", monkeypatch)


class Watch(TorchDispatchMode):
    """Takes note of what touches given tensors outside of a stream."""

    def __init__(self, tensors, stream):
        super().__init__()
        self.addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.stream, self.seen, self.astray = stream, 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        if any(one.untyped_storage().data_ptr() in self.addresses for one in tensors):
            self.seen += 1
            if fake_cuda.current() is not self.stream:
                self.astray.append(function)
        return function(*args, **(kwargs or {}))


def test_all_that_touches_a_network_is_in_the_order_of_its_stream(pretended):
    other = pretended.replaying("cifar_resnet20_v1")
    other.train(1)
    model, anchor = other._model, np.zeros(other.layout.size, np.float32)
    own = [model.parameters, model.gradient, *model.network.buffers(), other._optimizer._buffer]
    statistics, state = other.statistics, other.state()
    doings = [
        lambda: other.evaluator,
        other.state,
        lambda: other.train(2, anchor=anchor, pull=0.5),
        lambda: other.observe(1),
        lambda: other.restore(state),
        other.evaluate,
        lambda: other.load_statistics(statistics),
        other.reestimate_statistics,
    ]
    for doing in doings:
        with Watch(own, other.compute_device._stream) as watch:
            doing()
        assert watch.seen
        assert watch.astray == []
    evaluator, twin = other.evaluator, other.evaluator._model
    doings = [lambda: evaluator.copy_from(anchor), lambda: evaluator.load_statistics(statistics)]
    for doing in [*doings, evaluator.reestimate_statistics, evaluator.evaluate]:
        with Watch([twin.parameters, *twin.network.buffers()], twin.compute_device._stream) as watch:
            doing()
        assert watch.seen
        assert watch.astray == []
    assert twin.compute_device._stream is not other.compute_device._stream


def test_nobody_is_at_work_beside_while_a_pass_is_recorded(pretended, monkeypatch):
    """Torch wants no other thread at work while one captures; at other times nobody waits for anybody."""
    other = pretended.replaying()
    beside, within, out, order = other.evaluator._model.compute_device, threading.Event(), threading.Event(), []

    def work():
        with beside.in_order():
            within.set()
            order.append("at work")
            out.wait(60)
            order.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    within.wait(60)
    other.train(WARM_UP)
    record = other.compute_device.recorder
    threading.Timer(0.3, out.set).start()
    other.compute_device.recorder = lambda compute: record(lambda: (order.append("recorded"), compute())[1])
    other.train(1)
    thread.join(60)
    assert order == ["at work", "done", "recorded"]


@pytest.mark.parametrize("device", [GPU])
def test_a_gpu_trains_as_the_cpu_does_but_for_rounding(device):
    """Sums in another order, of products that TF32 rounds to 11 bits."""
    data, more = MODELS["cifar_resnet20_v1"]
    optimizer = {"name": "sgd", "lr": 0.001, "momentum": 0.0}
    seen = {}
    for where in ("cpu", device):
        run = make_run(data, model="cifar_resnet20_v1", **more, optimizer=optimizer, device=where)
        trainer = build_trainer(run, "worker", 0)
        seen[where] = [trainer.train(1).loss for _ in range(WARM_UP + 3)]
    np.testing.assert_allclose(seen[device], seen["cpu"], rtol=0.02)

import json
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from training_examples import make_run, parameters

from hpcps.errors import SpecError
from hpcps.training.build import build_trainer
from hpcps.training.evaluation import CancelledError

DIGITS = {"name": "digits"}
# Few and small samples: a ResNet on one slow core.
SYNTHETIC = {"name": "synthetic", "limit": 96, "test_limit": 32, "shards": 3}


def trainer(data=DIGITS, role="worker", index=0, **options):
    return build_trainer(make_run(data, **options), role, index)


def resnet(role="worker", index=0):
    return trainer(SYNTHETIC, role, index, model="cifar_resnet20_v1", workers=2, batch_size=8)


def test_every_role_starts_with_the_same_weights_and_has_batches_of_its_own():
    roles = [trainer(role="worker"), trainer(role="worker", index=7), trainer(role="validator")]
    first = [parameters(one) for one in roles]
    assert np.array_equal(first[0], first[1])
    assert np.array_equal(first[0], first[2])
    assert len({one.train(1).loss for one in roles}) == 3


def test_validators_share_a_shard_and_not_their_order():
    one, other = trainer(role="validator"), trainer(role="validator", index=1)
    assert np.array_equal(one._stream._samples.images, other._stream._samples.images)
    assert one.train(1).loss != other.train(1).loss


@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_training_is_reproducible_bit_for_bit(model):
    one, other = trainer(model=model), trainer(model=model)
    assert [one.train(4), one.train(3)] == [other.train(4), other.train(3)]
    assert np.array_equal(parameters(one), parameters(other))
    assert one.evaluate() == other.evaluate()


def test_a_step_is_a_nesterov_step_along_the_gradient_of_the_mean_loss():
    one = trainer(optimizer={"name": "nag", "lr": 0.5, "momentum": 0.9})
    before = parameters(one)
    progress = one.train(1)
    step = (before - parameters(one)) / (0.5 * 1.9)  # the momentum is the gradient at the first step
    images, labels = next(trainer()._stream)  # the same batch again

    def loss_at(values):
        probe = trainer()
        probe.copy_from(values)
        logits = probe._model.network(torch.from_numpy(images)).detach().double().numpy()
        shifted = logits - logits.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(16), labels]))

    assert progress.loss == pytest.approx(loss_at(before), rel=1e-5)
    h = 1e-2 / np.linalg.norm(step)
    slope = (loss_at(before + h * step) - loss_at(before - h * step)) / (2 * h)
    assert slope == pytest.approx(float(step @ step), rel=1e-2)


def test_the_model_crosses_by_copy_and_the_momentum_stays():
    one = trainer()
    one.train(3)
    saved = parameters(one)
    one.train(2)
    assert not np.array_equal(saved, parameters(one))
    frozen = saved.copy()
    frozen.setflags(write=False)
    one.copy_from(frozen)
    assert np.array_equal(parameters(one), saved)
    other = trainer()
    other.copy_from(saved)
    one.train(1)
    other.train(1)
    assert not np.array_equal(parameters(one), parameters(other))


def test_observing_feeds_batchnorm_and_nothing_else():
    one, other = resnet(), resnet()
    assert len(one.statistics) == 1568
    before, statistics = parameters(one), one.statistics
    seen = one.observe(2)
    assert (seen.steps, seen.samples, one.steps_done) == (2, 16, 2)
    assert np.array_equal(parameters(one), before)
    assert not np.array_equal(one.statistics, statistics)
    other.train(2)
    assert not np.array_equal(parameters(other), before)
    assert one._stream.state == other._stream.state


def test_evaluating_uses_the_running_statistics_and_changes_nothing():
    one = resnet()
    one.train(2)
    before, statistics, first = parameters(one), one.statistics, one.evaluate()
    assert one.evaluate() == first
    assert np.array_equal(one.statistics, statistics)
    assert np.array_equal(parameters(one), before)
    one.load_statistics(statistics * 2)
    assert one.evaluate().loss != first.loss


def test_statistics_can_be_carried_to_another_trainer():
    one, other = resnet(), resnet(index=1)
    one.observe(2)
    other.load_statistics(one.statistics)
    assert np.array_equal(one.statistics, other.statistics)
    assert one.evaluate() == other.evaluate()
    carried = one.statistics
    carried[:] = 0  # a copy
    assert not np.array_equal(one.statistics, carried)


def test_reestimated_statistics_are_averages_over_one_pass():
    one, other = resnet(), resnet()
    one.observe(3)
    one.reestimate_statistics()
    stem = one._model.network.stem[0]
    with torch.no_grad():
        maps = [stem(torch.from_numpy(images)).double() for images, _ in one._stream.sweep()]
    assert len(maps) == 4
    means = torch.stack([x.mean((0, 2, 3)) for x in maps]).mean(0)
    variances = torch.stack([x.var((0, 2, 3)) for x in maps]).mean(0)
    np.testing.assert_allclose(one.statistics[:16], means.numpy(), atol=1e-5)
    np.testing.assert_allclose(one.statistics[16:32], variances.numpy(), rtol=1e-4)
    # Whatever went before is forgotten, the stream and the usual momentum are as they were.
    other.reestimate_statistics()
    assert np.array_equal(one.statistics, other.statistics)
    other.observe(3)
    one.observe(1)
    assert one.steps_done == 4
    assert one._model.norms[0].momentum == 0.1


def begun(work):
    """Begin in a thread; return what waits for its result."""
    results, raised = [], []

    def run():
        try:
            results.append(work())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(60)
        assert not thread.is_alive()
        if raised:
            raise raised[0]
        return results[0]

    return result


def measured(evaluator, model, statistics, reestimate=False):
    evaluator.copy_from(model)
    if reestimate:
        evaluator.reestimate_statistics()
    elif statistics.size:
        evaluator.load_statistics(statistics)
    return evaluator.evaluate()


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", [trainer, lambda: trainer(model="cnn"), resnet], ids=["mlp", "cnn", "resnet"])
@pytest.mark.parametrize("reestimate", [False, True])
def test_an_evaluator_measures_the_same_while_its_trainer_trains(make, reestimate):
    one, other = make(), make()
    for steps in (2, 3):
        one.train(steps)
        other.train(steps)
        model, statistics = parameters(one), one.statistics
        found = begun(lambda model=model, statistics=statistics: measured(one.evaluator, model, statistics, reestimate))
        assert one.train(4) == other.train(4)
        assert np.array_equal(parameters(one), parameters(other))
        assert np.array_equal(one.statistics, other.statistics)
        # What an evaluation in between says.
        now, kept = parameters(other), other.statistics
        if reestimate:
            other.copy_from(model)
            other.reestimate_statistics()
            expected = other.evaluate()
            other.copy_from(now)
            other.load_statistics(kept)
        else:
            expected = measured(other, model, statistics)
            measured(other, now, kept)
        assert found() == expected


@pytest.mark.parametrize("reestimate", [False, True])
def test_an_evaluator_can_be_stopped(reestimate):
    one = resnet()
    evaluator, model, statistics = one.evaluator, parameters(one), one.statistics
    found = begun(lambda: [measured(evaluator, model, statistics, reestimate) for _ in range(10_000)])
    evaluator.cancel()
    with pytest.raises(CancelledError):
        found()


@pytest.mark.usefixtures("starts_processes")
def test_an_evaluator_computes_with_the_threads_of_the_experiment():
    program = """
import json, os, sys, threading
from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer
trainer = build_trainer(Run.model_validate_json(sys.stdin.read()), "worker", 0)
trainer.train(1)
import numpy as np
model = np.empty(trainer.layout.size, np.float32)
trainer.copy_to(model)
trainer.evaluator
counts = []
def measure():
    before = len(os.listdir("/proc/self/task"))
    trainer.evaluator.copy_from(model)
    trainer.evaluator.reestimate_statistics()
    trainer.evaluator.evaluate()
    counts.append(len(os.listdir("/proc/self/task")) - before)
thread = threading.Thread(target=measure)
thread.start()
thread.join()
print(json.dumps(counts))
"""
    threads = 3
    run = make_run(SYNTHETIC, model="cifar_resnet20_v1", workers=2, batch_size=8, threads=threads)
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, input=run.model_dump_json(), capture_output=True, text=True, check=True, env=variables
    )
    assert json.loads(done.stdout) == [threads - 1], "more threads than those that were there"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_outputs_that_are_not_finite_count_as_wrong(value):
    one = trainer()
    one.copy_from(np.full(one.layout.size, value, dtype=np.float32))
    result = one.evaluate()
    assert (result.accuracy, result.loss, result.finite, result.samples) == (0.0, math.inf, False, 360)
    progress = one.observe(1)
    assert (progress.correct, progress.loss) == (0, math.inf)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said():
    with pytest.raises(SpecError, match=r'train.device = "cuda", but torch sees no GPU here'):
        trainer(device="cuda")


@pytest.mark.usefixtures("starts_processes")
def test_a_worker_process_is_small_and_imports_no_more_than_it_needs():
    program = """
import json, sys
import hpcps.execution.process
from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer
from hpcps.data.shards import shard_size
run = Run.model_validate_json(sys.stdin.read())
shard_size(run.data, run.train.batch_size)
before = sorted({"torch", "sklearn", "pandas"} & sys.modules.keys())
def memory(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what)) / 1024
import torch
alone = memory("VmRSS")
trainer = build_trainer(run, "worker", 0)
trainer.train(8)
trainer.evaluate()
after = sorted({"torch._dynamo", "sklearn", "pandas"} & sys.modules.keys())
print(json.dumps([before, after, memory("VmHWM") - alone]))
"""
    run = make_run(DIGITS, model="cnn").model_dump_json()
    result = subprocess.run([sys.executable, "-c", program], input=run, capture_output=True, text=True, check=True)
    before, after, more = json.loads(result.stdout)
    assert before == []
    assert after == []
    assert more < 150, "MiB beside torch, of which a build for GPUs takes twice as much as one without"


def test_the_proximal_step_pulls_the_model_towards_the_anchor_after_every_step():
    plain, pulled = trainer(optimizer={"momentum": 0.0}), trainer(optimizer={"momentum": 0.0})
    anchor = parameters(plain)
    plain.train(1)
    pulled.train(1, anchor=anchor, pull=0.25)
    expected = 0.75 * parameters(plain).astype(np.float64) + 0.25 * anchor
    np.testing.assert_allclose(parameters(pulled), expected, rtol=1e-5, atol=1e-7)
    pulled.train(3, anchor=anchor, pull=0.25)
    plain.train(3)
    assert np.linalg.norm(parameters(pulled) - anchor) < np.linalg.norm(parameters(plain) - anchor)


def test_another_epoch_drives_the_learning_rate():
    decay = {"lr_decay": {"factor": 1e-6, "epochs": [5]}}
    one, other, before = trainer(**decay), trainer(**decay), parameters(trainer())
    one.train(2, epoch=0)
    other.train(2, epoch=5)
    assert np.abs(parameters(other) - before).max() < 1e-5 < np.abs(parameters(one) - before).max()


DROPPING = {"name": "mlp", "dropout": 0.4}


def dropping_trainer(index=0, role="worker", **options):
    return build_trainer(make_run({"name": "digits"}, model=DROPPING, **options), role, index)


def watched(one):
    """Return a list that gets the mask of the first dropout in each pass."""
    masks = []
    layer = one._model.network.relu1
    layer.register_forward_hook(lambda module, inputs, out: masks.append((out != 0) | (inputs[0] <= 0)))
    return masks


def test_trainers_of_one_process_do_not_affect_each_other():
    alone = [dropping_trainer(index) for index in range(2)]
    expected = [[one.train(1).loss for _ in range(4)] for one in alone]
    together = [dropping_trainer(index) for index in range(2)]
    found = [[], []]
    for _ in range(4):
        for index, one in enumerate(together):
            torch.rand(3)  # another user of torch's generator
            found[index].append(one.train(1).loss)
    assert found == expected
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(parameters(one), parameters(other))


def test_masks_differ_by_step_role_and_seed():
    masks = []
    for one in (dropping_trainer(), dropping_trainer(1), dropping_trainer(role="validator"), dropping_trainer(seed=2)):
        seen = watched(one)
        one.train(3)
        masks += seen
    assert len({mask.numpy().tobytes() for mask in masks}) == 12
    kept = np.mean([(mask.float().mean()) for mask in masks])
    assert kept > 0.6, "0.6 of the active values, and all others"
    assert kept < 0.9


def test_masks_go_on_from_a_checkpoint():
    one, other = dropping_trainer(), dropping_trainer()
    one.train(3)
    other.restore(one.state())
    assert one.train(2) == other.train(2)
    assert np.array_equal(parameters(one), parameters(other))
    other.restore(one.state())
    one._step_seed = lambda number: number
    assert one.train(2) != other.train(2)


def test_only_training_drops():
    one = dropping_trainer()
    masks = watched(one)
    one.evaluate()
    one.loss_on(3)(parameters(one))
    assert len(masks) == 3
    assert all(mask.all() for mask in masks)

"""Server optimizers against `torch.optim` and against plain transcriptions of their formulas."""

import math

import numpy as np
import pytest
import torch

from hpcps.errors import SpecError
from hpcps.optimizers import (
    DelayedNesterov,
    NoOptimizer,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerNesterov,
    ServerOptimizer,
    ServerSgd,
    ServerYogi,
    Stepper,
)
from hpcps.optimizers.base import TILE
from hpcps.registry import active

SIZE = TILE + 57
GENERATOR = np.random.default_rng(3)
MODEL = GENERATOR.standard_normal(SIZE, np.float32)
UPDATES = [GENERATOR.standard_normal(SIZE, np.float32) * np.float32(0.1) for _ in range(7)]


def played(optimizer, updates=UPDATES, model=MODEL):
    """Return the model after all updates."""
    stepper, model = Stepper(optimizer, len(model)), model.copy()
    for update in updates:
        stepper.apply(update.copy(), model, model)
        stepper.turn()
    return model


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ServerSgd(lr=0.7), {"lr": 0.7}),
        (ServerMomentum(lr=0.5, momentum=0.8), {"lr": 0.5, "momentum": 0.8}),
        (ServerNesterov(lr=0.7, momentum=0.9), {"lr": 0.7, "momentum": 0.9, "nesterov": True}),
        # With one update between two changes of the momentum it is Nesterov's.
        (DelayedNesterov(lr=0.7, momentum=0.9, every=1), {"lr": 0.7, "momentum": 0.9, "nesterov": True}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_optimizers_with_momentum_equal_torch(ours, theirs):
    parameter = torch.nn.Parameter(torch.from_numpy(MODEL.copy()))
    optimizer = torch.optim.SGD([parameter], **theirs)
    for update in UPDATES:
        parameter.grad = torch.from_numpy(-update)
        optimizer.step()
    np.testing.assert_allclose(played(ours), parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_adagrad_without_first_moment_equals_torch():
    """Torch's accumulator begins with a given value, and adds epsilon to the root as FedOpt adds τ."""
    parameter = torch.nn.Parameter(torch.from_numpy(MODEL.copy()))
    optimizer = torch.optim.Adagrad([parameter], lr=0.1, initial_accumulator_value=0.01**2, eps=0.01)
    for update in UPDATES:
        parameter.grad = torch.from_numpy(-update)
        optimizer.step()
    ours = played(ServerAdagrad(lr=0.1, beta1=0.0, tau=0.01))
    np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_adam_equals_torch_but_for_the_correction_of_the_bias():
    """After many updates torch's corrections are 1, and the first value of the second moment is forgotten."""
    update = UPDATES[0]
    parameter = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.5, 0.6), eps=1e-3)
    ours = ServerAdam(lr=0.1, beta1=0.5, beta2=0.6, tau=1e-3)
    stepper, model = Stepper(ours, SIZE), np.zeros(SIZE, np.float32)
    for number in range(100):
        gradient = update * np.float32(math.cos(number))
        parameter.grad = torch.from_numpy(-gradient.astype(np.float64))
        before, model_before = parameter.detach().numpy().copy(), model.copy()
        optimizer.step()
        stepper.apply(gradient, model, model)
        stepper.turn()
    np.testing.assert_allclose(model - model_before, parameter.detach().numpy() - before, rtol=1e-3, atol=1e-6)


def fedopt(kind, updates, model, lr, beta1, beta2, tau):
    """Return the model after all updates, element by element in float64, as algorithm 2 of the paper says."""
    out = []
    for j, x in enumerate(model.tolist()):
        m, v = 0.0, tau**2
        for update in updates:
            delta = float(update[j])
            m = beta1 * m + (1 - beta1) * delta
            if kind == "adagrad":
                v = v + delta**2
            elif kind == "adam":
                v = beta2 * v + (1 - beta2) * delta**2
            else:
                v = v - (1 - beta2) * delta**2 * math.copysign(1, v - delta**2) * (v != delta**2)
            x += lr * m / (math.sqrt(v) + tau)
        out.append(x)
    return out


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_adaptive_optimizers_follow_the_paper(kind):
    updates = [np.append(update[:40], np.float32(0)) for update in UPDATES]
    model = MODEL[:41]
    keys = {"lr": 0.05, "beta1": 0.8, "tau": 0.02}
    rest = {} if kind == "adagrad" else {"beta2": 0.7}
    optimizer = active().of("optimizers")[kind](**keys, **rest)
    expected = fedopt(kind, updates, model, **keys, beta2=0.7)
    np.testing.assert_allclose(played(optimizer, updates, model), expected, rtol=1e-5, atol=1e-6)


def test_delayed_nesterov_follows_a_hand_trace():
    """γ = 1/2, β = 1/2, N = 2: all values are exact. Updates 4, 2, 0, 8, 0 of the model 0."""
    stepper, model, trace = Stepper(DelayedNesterov(lr=0.5, momentum=0.5, every=2), 1), np.zeros(1, np.float32), []
    for update in (4, 2, 0, 8, 0):
        stepper.apply(np.array([update], np.float32), model, model)
        stepper.turn()
        trace.append(float(model[0]))
    # 0 + 4/4 = 1. Then + 2/4, m = 6/2 = 3, + 3/4: 2.25. Then + 0. Then + 8/4, m = 3/2 + 8/2 = 5.5, + 5.5/4. Then + 0.
    assert trace == [1.0, 2.25, 2.25, 5.625, 5.625]


def test_a_rate_of_one_adds_the_update():
    for optimizer in (NoOptimizer(), ServerSgd(lr=1.0), ServerMomentum(lr=1.0, momentum=0.0)):
        model = MODEL
        for update in UPDATES:
            model = model + update
        np.testing.assert_array_equal(played(optimizer), model)


def every_optimizer():
    for name, component in active().of("optimizers").usable().items():
        yield component(**({"every": 3} if name == "delayed_nesterov" else {}))


@pytest.mark.parametrize("optimizer", [*every_optimizer()], ids=lambda each: each.kind)
def test_parts_devices_and_checkpoints_do_not_show(optimizer):
    expected = played(optimizer)
    # In two ranges of columns, and with a checkpoint after the third update.
    stepper, model = Stepper(optimizer, SIZE), MODEL.copy()
    for number, update in enumerate(UPDATES):
        if number == 3:
            kept, stepper = stepper.state(), Stepper(optimizer, SIZE)
            stepper.restore(kept)
        for columns in (slice(0, 1000), slice(1000, SIZE)):
            stepper.apply(update[columns].copy(), model[columns], model[columns], columns)
        stepper.turn()
    np.testing.assert_array_equal(model, expected)
    # On tensors, as on a device.
    model, state, tensors = torch.from_numpy(MODEL.copy()), {}, [torch.from_numpy(u.copy()) for u in UPDATES]
    for name, value in optimizer.initial().items():
        state[name] = torch.full((SIZE,), value)
    for number, update in enumerate(tensors):
        model = model + optimizer.step(update, state, number)
    np.testing.assert_allclose(model.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_momentum_moves_the_model_without_an_update_and_the_norms_say_so():
    stepper, model = Stepper(ServerMomentum(lr=1.0, momentum=0.5), 2), np.zeros(2, np.float32)
    said = []
    for update in ([3, 4], [0, 0]):
        stepper.apply(np.array(update, np.float32), model, model)
        said.append(stepper.turn())
    assert said == [{"update_norm": 5.0, "change_norm": 5.0}, {"update_norm": 0.0, "change_norm": 2.5}]
    assert model.tolist() == [4.5, 6.0]


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda update: float(update.sum()), "step.. returned a float"),
        (lambda update: update[:1], "it must be float32"),
    ],
)
def test_an_own_optimizer_that_returns_something_else_is_an_error(returns, message):
    class Own(ServerOptimizer):
        def step(self, update, state, count):
            return returns(update)

    with pytest.raises(SpecError, match=message):
        played(Own(kind="own"))


@pytest.mark.parametrize("name", ["momentum", "further"])
def test_an_own_optimizer_that_replaces_its_state_is_an_error(name):
    class Own(ServerOptimizer):
        def initial(self):
            return {"momentum": 0.0}

        def step(self, update, state, count):
            state["momentum"] += update
            state[name] = update + state["momentum"]
            return update

    with pytest.raises(SpecError, match=rf"step\(\) replaced state\['{name}'\], which would be lost"):
        played(Own(kind="own"))


@pytest.mark.parametrize(("kind", "key"), [("yogi", "tau"), ("nesterov", "lr"), ("delayed_nesterov", "every")])
def test_keys_have_bounds(kind, key):
    with pytest.raises(SpecError, match=key):
        active().of("optimizers")[kind](**{key: 0})


def test_yogi_keeps_a_second_moment_that_equals_the_square():
    optimizer = ServerYogi(tau=0.5)
    state = {"momentum": np.zeros(1, np.float32), "second": np.full(1, 0.25, np.float32)}
    optimizer.step(np.full(1, 0.5, np.float32), state, 0)
    assert state["second"][0] == 0.25

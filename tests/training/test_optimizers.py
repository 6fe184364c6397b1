import numpy as np
import pytest
import torch
from training_examples import make_run

from hpcps.numerics.layout import Layout
from hpcps.training.build import build_trainer
from hpcps.training.pytorch.device import compute_device
from hpcps.training.pytorch.flat import TorchFlatModel
from hpcps.training.pytorch.optimizers import build_optimizer, orthogonalised
from hpcps.training.schedule import learning_rate, schedule_of

SHAPES = [(7, 3, 3, 3), (7,), (5, 11), (1,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
CONFIGS = [
    {"name": "sgd", "momentum": 0.0},
    {"name": "sgd", "momentum": 0.9},
    {"name": "nag", "momentum": 0.9},
    {"name": "nag", "momentum": 0.9, "weight_decay": 1e-2},
    {"name": "adam", "betas": [0.8, 0.99]},
    {"name": "adam", "weight_decay": 1e-2},
    {"name": "adamw", "betas": [0.8, 0.99], "weight_decay": 0.3},
]


def steps():
    """Ten gradients and learning rates, the rate changing on the way."""
    generator = np.random.default_rng(0)
    return [
        (torch.from_numpy(generator.standard_normal(SIZE).astype(np.float32)), 0.1 if number < 5 else 0.01)
        for number in range(10)
    ]


def config_of(table):
    return make_run({"name": "digits"}, optimizer=table).train.optimizer


def ours(table):
    optimizer, parameters = build_optimizer(config_of(table)), torch.linspace(-1, 1, SIZE)
    for gradient, rate in steps():
        optimizer.step(parameters, gradient, rate)
    return parameters


@pytest.mark.parametrize("table", CONFIGS, ids=str)
def test_the_flat_optimizer_equals_torch_on_separate_tensors(table):
    config = config_of(table)
    flat = torch.linspace(-1, 1, SIZE)
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    tensors = [torch.nn.Parameter(x.clone().view(shape)) for x, shape in zip(flat.split(sizes), SHAPES, strict=True)]
    theirs = (
        getattr(torch.optim, {"adam": "Adam", "adamw": "AdamW"}[config.name])(
            tensors, betas=config.betas, weight_decay=config.weight_decay
        )
        if config.adaptive
        else torch.optim.SGD(
            tensors, 0.1, config.momentum, weight_decay=config.weight_decay, nesterov=config.name == "nag"
        )
    )
    for gradient, rate in steps():
        theirs.param_groups[0]["lr"] = rate
        for tensor, piece in zip(tensors, gradient.split(sizes), strict=True):
            tensor.grad = piece.view(tensor.shape)
        theirs.step()
    expected = torch.cat([tensor.detach().flatten() for tensor in tensors])
    torch.testing.assert_close(ours(table), expected, rtol=1e-6, atol=1e-6)


LAYOUT = Layout.of([(str(number), shape) for number, shape in enumerate(SHAPES)])
MUON = {"name": "muon", "momentum": 0.95, "betas": [0.8, 0.99], "weight_decay": 0.3}


def muon_in_float64(matrices):
    """Return the parameters after `steps`, by the formulas of Muon and AdamW, one tensor after the other."""
    start = np.linspace(-1, 1, SIZE, dtype=np.float32).astype(np.float64)
    parameters = [start[block.offset : block.stop].reshape(block.shape) for block in LAYOUT.blocks]
    first = [np.zeros(shape) for shape in SHAPES]
    second = [np.zeros(shape) for shape in SHAPES]
    for step, (gradient, rate) in enumerate(steps(), 1):
        for n, block in enumerate(LAYOUT.blocks):
            g = gradient[block.offset : block.stop].numpy().astype(np.float64).reshape(block.shape)
            parameters[n] *= 1 - rate * 0.3
            if block in matrices:
                first[n] = 0.95 * first[n] + 0.05 * g
                x = (0.05 * g + 0.95 * first[n]).reshape(len(g), -1)
                x = x / np.linalg.norm(x)
                for _ in range(5):
                    # Without the transposition of tall matrices, which changes nothing but the time.
                    a = x @ x.T
                    x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
                parameters[n] -= rate * 0.2 * np.sqrt(max(x.shape)) * x.reshape(g.shape)
            else:
                first[n] = 0.8 * first[n] + 0.2 * g
                second[n] = 0.99 * second[n] + 0.01 * g**2
                corrected = first[n] / (1 - 0.8**step), second[n] / (1 - 0.99**step)
                parameters[n] -= rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    return np.concatenate([tensor.ravel() for tensor in parameters])


@pytest.mark.parametrize("which", [[], [0], [2], [0, 2]], ids=str)
def test_muon_is_its_definition(which):
    matrices = [LAYOUT.blocks[n] for n in which]
    optimizer, parameters = build_optimizer(config_of(MUON), matrices), torch.linspace(-1, 1, SIZE)
    for number, (gradient, rate) in enumerate(steps()):
        if number == 4:  # as after an interruption
            state = optimizer.state()
            optimizer = build_optimizer(config_of(MUON), matrices)
            optimizer.restore(state, torch.device("cpu"))
        optimizer.step(parameters, gradient, rate)
    np.testing.assert_allclose(parameters.numpy(), muon_in_float64(matrices), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", [(5, 11), (11, 5)], ids=str)
def test_muon_equals_that_of_torch_but_for_its_bfloat16(shape):
    matrix = torch.linspace(-1, 1, 55).view(shape)
    theirs = torch.nn.Parameter(matrix.clone())
    options = {"momentum": 0.95, "weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw"}
    (block,) = Layout.of([("weight", shape)]).blocks
    ours, mine = build_optimizer(config_of(MUON), [block]), matrix.clone().flatten()
    for (gradient, rate), peer in zip(steps(), [torch.optim.Muon([theirs], lr=1.0, **options)] * 10, strict=True):
        theirs.grad = gradient[:55].view(shape)
        peer.param_groups[0]["lr"] = rate
        ours.step(mine, gradient[:55].clone(), rate)
        peer.step()
    torch.testing.assert_close(mine, theirs.detach().flatten(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (20, 20)], ids=str)
def test_the_step_of_a_matrix_has_its_singular_vectors(shape):
    matrix = torch.from_numpy(np.random.default_rng(2).standard_normal(shape).astype(np.float32))
    u, values, vt = torch.linalg.svd(matrix, full_matrices=False)
    found = u.T @ orthogonalised(matrix) @ vt.T
    large = values > 0.05 * values[0]
    assert ((found.diagonal() > 0.6) & (found.diagonal() < 1.25))[large].all()
    assert (found - found.diagonal().diag()).abs().max() < 1e-4
    assert not orthogonalised(torch.zeros(shape)).any()


class Tied(torch.nn.Module):
    """A network of bytes whose output layer has the weight of its embedding."""

    def __init__(self):
        super().__init__()
        self.bytes, self.hidden = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)
        self.output = torch.nn.Linear(4, 9)
        self.output.weight = self.bytes.weight


def hidden_matrices(network):
    return [block.name for block in TorchFlatModel(network, compute_device(torch.device("cpu"))).hidden_matrices()]


def test_muon_takes_the_weights_of_hidden_layers():
    plain = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 4, bias=False))
    assert hidden_matrices(plain) == ["0.weight"]
    assert hidden_matrices(Tied()) == ["hidden.weight"]
    separate = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 9))
    assert hidden_matrices(separate) == ["1.weight"]


@pytest.mark.thorough
def test_muon_goes_on_from_a_checkpoint_of_kernels_in_another_order():
    """On a CPU, convolutions have the channels-last format, and checkpoints do not."""
    data = {"name": "synthetic", "limit": 320, "test_limit": 20}
    run = make_run(data, model={"name": "cifar_resnet8_v1"}, optimizer={"name": "muon", "lr": 0.02}, device="cpu")
    one, other = (build_trainer(run, "worker", 0) for _ in range(2))
    one.train(2)
    other.restore(one.state())
    models = []
    for trainer in (one, other):
        trainer.train(2)
        models.append(np.empty(trainer.layout.size, np.float32))
        trainer.copy_to(models[-1])
    assert np.isfinite(models[0]).all()
    np.testing.assert_array_equal(*models)


def rates(steps, per_epoch, **train):
    train = make_run({"name": "digits"}, **train).train
    return [learning_rate(train, step, per_epoch) for step in steps]


def test_decay_at_n_holds_from_the_epoch_after_on():
    decay = {"optimizer": {"lr": 0.2}, "lr_decay": {"factor": 0.1, "epochs": [2, 3]}}
    expected = pytest.approx([0.2, 0.2, 0.02, 0.02, 0.002, 0.002])
    assert rates([0, 2 * 91 - 1, 2 * 91, 3 * 91 - 1, 3 * 91, 1000], 91, **decay) == expected


def test_warm_up_is_linear_and_multiplies_decay():
    warm = {"optimizer": {"lr": 1.0}, "warmup": {"epochs": 2, "start": 0.2}}
    assert rates([0, 5, 10, 19, 20, 50], 10, **warm) == pytest.approx([0.2, 0.4, 0.6, 0.96, 1, 1])
    both = {**warm, "lr_decay": {"factor": 0.5, "epochs": [1]}}
    assert rates([9, 10, 20], 10, **both) == pytest.approx([0.56, 0.3, 0.5])


def test_the_epoch_of_somebody_else_drives_the_decay_but_not_the_warm_up():
    train = make_run({"name": "digits"}, optimizer={"lr": 1.0}, lr_decay={"factor": 0.5, "epochs": [1, 2]}).train
    assert [learning_rate(train, 0, 10, epoch) for epoch in (None, 0, 1, 2, 9)] == [1, 1, 0.5, 0.25, 0.25]
    assert learning_rate(train, 25, 10) == 0.25
    assert learning_rate(train, 25, 10, 0) == 1


def test_roles_have_their_own_rate_and_decay():
    run = make_run(
        {"name": "digits"},
        workers=3,
        optimizer={"lr": 1.0},
        lr_scale="sqrt_workers",
        lr_decay={"factor": 0.5, "epochs": [1, 2], "validator_epochs": [1]},
    )
    worker, validator = schedule_of(run, "worker", 0), schedule_of(run, "validator", 0)
    assert [learning_rate(worker, step, 1) for step in range(3)] == [0.5, 0.25, 0.125]
    assert [learning_rate(validator, step, 1) for step in range(3)] == [0.5, 0.25, 0.25]
    plain = make_run({"name": "digits"}, lr_decay={"epochs": [1, 2]})
    assert schedule_of(plain, "validator", 0) == plain.train


def test_cosine_decay_equals_torch_and_begins_after_the_warm_up():
    cosine = {"epochs": 5, "optimizer": {"lr": 0.5}, "lr_decay": {"schedule": "cosine", "final": 0.2}}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1)
    expected = []
    for _ in range(51):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates(range(51), 10, **cosine) == pytest.approx(expected)
    assert rates([60, 1000], 10, **cosine) == pytest.approx([0.1, 0.1])
    warm = rates([0, 5, 10, 30, 50], 10, **cosine, warmup={"epochs": 1, "start": 0.2})
    assert warm == pytest.approx([0.1, 0.3, 0.5, 0.3, 0.1])
    # With a policy of local steps the epochs of the run decide.
    train = make_run({"name": "digits"}, **cosine).train
    assert learning_rate(train, 7, 10, 5) == pytest.approx(0.1)


LARGE = [
    {"name": "sgd", "lr": 3e38},
    {"name": "nag", "lr": 1e38, "weight_decay": 3e38},
    {"name": "adam", "lr": 3e37},
    {"name": "adam", "lr": 3e37, "weight_decay": 3e38},
    {"name": "adamw", "lr": 1e30, "weight_decay": 1e8},
    {"name": "muon", "lr": 3e37},
]


@pytest.mark.parametrize("table", LARGE, ids=str)
def test_every_rate_that_a_file_may_have_can_be_taken(table):
    config = config_of(table)
    optimizer, parameters = build_optimizer(config), torch.linspace(-1, 1, SIZE)
    for gradient, _ in steps():
        optimizer.step(parameters, gradient, 1000 * config.lr)  # after a schedule that lets it grow
    assert not parameters.isfinite().any()

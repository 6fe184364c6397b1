"""CrossBarrier: steps return at once, and whoever looks at parameters sees those of plain steps, to the bit."""

import copy
import multiprocessing
import random
import time

import pytest
from forked import fork

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack  # noqa: E402

import hpcps.torch as bps  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.session.current import session  # noqa: E402

WIDTH = 8


class Scale(nn.Module):
    """Reads parameters of a ParameterList, which nobody calls."""

    def __init__(self):
        super().__init__()
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))])

    def forward(self, x):
        return x * self.factors[0] + self.factors[1]


class Attention(nn.Module):
    """MultiheadAttention reads the parameters of its `out_proj` without calling it."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Tied(nn.Module):
    """Two modules have the same weight, and a branch that only process 1 uses."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.branch = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) + (self.branch(x) if bps.rank() == 1 else 0)


class Table(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(10, WIDTH, sparse=sparse)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1]) % 10)


BLOCKS = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "attention": Attention,
    "lstm": Recurrent,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "hooked": lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "list": Scale,
    "tied": Tied,
    "table": lambda: Table(sparse=False),
}
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
}


def train(model, kind, barrier, draw, steps=4):
    """Train a model; return what it has computed, its parameters, and the state of its optimizer.

    With equal draws, what the script does between the steps is equal.
    """
    half = len([*model.parameters()]) // 2
    groups = [{"params": [*model.parameters()][:half]}, {"params": [*model.parameters()][half:], "lr": 0.02}]
    optimizer = bps.DistributedOptimizer(OPTIMIZERS[kind](groups), model.named_parameters())
    if barrier:
        optimizer = bps.CrossBarrier(model, optimizer, draw.choice((None, steps, 2)))
    else:
        draw.choice((None, steps, 2))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    clear = draw.choice((optimizer.zero_grad, model.zero_grad, lambda: optimizer.zero_grad(set_to_none=False)))
    generator, seen = torch.Generator().manual_seed(bps.rank()), []
    for _ in range(steps):
        loss = model(torch.randn(3, 5, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        seen.append(loss.detach())
        if draw.random() < 0.8:  # otherwise the gradients of the next step are added to the result
            clear()
        if draw.random() < 0.3:
            with torch.no_grad():
                seen.append(model.eval()(torch.ones(1, 5, WIDTH)))
            model.train()
        if draw.random() < 0.3:
            seen += [value.clone() for value in model.state_dict().values()]
        if draw.random() < 0.2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.synchronize() if barrier else None
    found = [value for _, each in sorted(optimizer.state_dict()["state"].items()) for value in each.values()]
    state = [torch.as_tensor(value) for value in found if value is not None]
    return [*seen, *(p.detach() for p in model.parameters()), *state]


def compare(seeds, blocks=None):
    def body():
        session().partition = 300  # so that most parameters have an exchange of their own
        for seed in seeds:
            draw = random.Random(seed)
            chosen = blocks or draw.sample([*BLOCKS], draw.randint(1, 4))
            kind = [*OPTIMIZERS][seed % len(OPTIMIZERS)]
            torch.manual_seed(seed)
            model = nn.Sequential(*(BLOCKS[name]() for name in chosen))
            models = model, copy.deepcopy(model)
            plain, crossed = (train(m, kind, k == 1, random.Random(seed)) for k, m in enumerate(models))
            assert len(plain) == len(crossed)
            for k, (wanted, found) in enumerate(zip(plain, crossed, strict=True)):
                assert torch.equal(wanted, found), (seed, kind, chosen, k, wanted, found)

    fork(2, body, 240)


@pytest.mark.thorough
def test_every_optimizer_and_module_sees_the_parameters_of_plain_steps():
    compare(range(len(OPTIMIZERS)), [*BLOCKS])


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 200, 40))
def test_random_networks_see_the_parameters_of_plain_steps(first):
    compare(range(100 + first, 140 + first))


def test_a_step_returns_at_once_and_a_module_waits_for_its_own_parameters_only():
    looked = multiprocessing.get_context("fork").Event()
    late = []

    class Late(torch.autograd.Function):
        """Process 1 has the gradients of the last layer, and computes those of the first one late."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if late:
                assert looked.wait(60)
            return gradient

    def body():
        session().partition = 300
        first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        model = nn.ModuleList([first, last])
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters())
        optimizer = bps.CrossBarrier(model, optimizer)
        x = torch.ones(2, WIDTH)
        for step in range(2):  # in the first one the processes agree on the gradients that are sparse
            optimizer.zero_grad()
            late.extend([step] * (step == bps.rank() == 1))
            last(Late.apply(first(x))).sum().backward()
            before = first.weight.detach().clone(), last.weight.detach().clone()
            optimizer.step()
        if bps.rank() == 0:
            assert torch.equal(last.weight, before[1])
            last(x)  # its gradients have come
            assert not torch.equal(last.weight, before[1])
            assert torch.equal(first.weight, before[0])
            looked.set()
        first(x)
        assert not torch.equal(first.weight, before[0])

    fork(2, body)


def test_the_end_of_the_session_waits_for_the_last_step():
    def body():
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters())
        bps.CrossBarrier(model, optimizer)
        for step in range(2):
            optimizer.zero_grad()
            if step == 1 and bps.rank() == 0:
                time.sleep(1.0)
            model(torch.ones(2, WIDTH)).sum().backward()
            before = model.weight.detach().clone()
            optimizer.step()
        bps.shutdown()
        assert not torch.equal(model.weight, before)

    fork(2, body)


class LanguageModel(nn.Module):
    """Reads the weights of a layer before it calls the layer; from its third call on also those of another one."""

    def __init__(self, words=4096, width=600):
        super().__init__()
        self.body, self.head, self.calls = nn.Linear(width, width), nn.Linear(width, words, bias=False), 0

    def forward(self, words):
        self.calls += 1
        found = nn.functional.embedding(words, self.head.weight)
        if self.calls > 2:
            found = found + torch.stack([self.body.weight.T, self.body.weight]).mean(dim=(0, 1))
        return self.head(torch.tanh(self.body(found)))


def test_parameters_that_are_read_outside_before_their_module_is_called_are_awaited():
    """Each of the layers has a bucket of its own."""

    def train(crosses):
        torch.manual_seed(0)
        model = LanguageModel()
        optimizer = torch.optim.SGD(model.parameters(), 50.0, momentum=0.9)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
        optimizer = bps.CrossBarrier(model, optimizer) if crosses else optimizer
        torch.manual_seed(bps.rank() + 1)
        for _ in range(4):
            words = torch.randint(4096, (64,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(words), words).backward()
            optimizer.step()
        if crosses:
            optimizer.synchronize()
        return [parameter.detach() for parameter in model.parameters()]

    def body():
        for plain, crossed in zip(train(False), train(True), strict=True):
            assert torch.equal(plain, crossed)

    fork(2, body)


class Counting(TorchFunctionMode):
    """A function mode of the script."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_function_mode_of_the_script_begins_and_ends_within_a_forward_pass():
    """Nothing is awaited any more when the second module begins, while the script's mode is active."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.mode = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Counting()

        def forward(self, x):
            with self.mode:
                x = self.second(self.first(x))
            calls = self.mode.calls
            x = torch.tanh(x)
            assert calls
            assert self.mode.calls == calls
            return x

    def body():
        model = Model()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        optimizer = bps.CrossBarrier(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            assert not _get_current_function_mode_stack()

    fork(2, body)


def test_a_mode_that_a_script_ends_within_a_forward_pass_ends_no_waiting_for_good():
    """It ends that of CrossBarrier in its place; the next forward pass begins another one."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.linear = Counting(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            if _get_current_function_mode_stack()[:1] == [self.own]:
                self.own.__exit__(None, None, None)
            return self.linear(x)

    def body():
        model, waiting = Model(), []
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        optimizer = bps.CrossBarrier(model, optimizer)
        model.register_forward_pre_hook(lambda *_: waiting.append(len(_get_current_function_mode_stack())))
        for step in range(4):
            if step == 1:
                model.own.__enter__()
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            while step == 1 and _get_current_function_mode_stack():
                model.own.__exit__(None, None, None)
        assert waiting == [0, 2, 1, 1]

    fork(2, body)


def test_parameters_that_are_read_before_their_update_are_an_error():
    def body():
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters())
        optimizer, x = bps.CrossBarrier(model, optimizer), torch.ones(2, WIDTH)
        model(x).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        nn.functional.linear(x, model.weight, model.bias).sum().backward()  # after synchronize() it may be read
        optimizer.step()
        with pytest.raises(RunError, match=r"weight has had .* without calling its module, .*: call optimizer.synchr"):
            nn.functional.linear(x, model.weight).sum().backward()
        optimizer._updates.clear()

    with pytest.raises(AssertionError, match="without calling its module"):
        fork(2, body)


def test_a_gradient_that_the_script_changes_after_its_step_is_an_error():
    def body():
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters())
        optimizer = bps.CrossBarrier(model, optimizer)
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        model.weight.grad.mul_(2)
        model(torch.ones(2, WIDTH))

    with pytest.raises(AssertionError, match=r"such as .*weight, changed between .*: to clip .*, use Distr"):
        fork(2, body)


def test_copies_of_a_model_wait_for_nothing_and_its_sparse_gradients_do():
    def body():
        torch.manual_seed(0)
        models = [Table(sparse=True) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        for k, model in enumerate(models):
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
            if k:
                optimizer = bps.CrossBarrier(model, optimizer)
            for _ in range(3):
                model(torch.ones(2, 3 + bps.rank(), WIDTH)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        optimizer.synchronize()
        assert torch.equal(models[0].table.weight, models[1].table.weight)
        twin = copy.deepcopy(models[1])
        twin(torch.ones(2, 3, WIDTH)).sum().backward()
        assert type(copy.deepcopy(optimizer)) is torch.optim.SGD

    fork(2, body)


def test_what_needs_all_gradients_is_refused_with_the_reason():
    def body():
        model = nn.Linear(WIDTH, WIDTH)

        def made(kind=torch.optim.SGD, parameters=None, **keywords):
            parameters = [*model.parameters()] if parameters is None else parameters
            return bps.DistributedOptimizer(kind(parameters, lr=0.1), **keywords)

        scheduled = made()
        torch.optim.lr_scheduler.StepLR(scheduled, 1)
        crossed = bps.CrossBarrier(model, made())
        hooked = bps.CrossBarrier(model, made())
        hooked.register_step_pre_hook(lambda *_: None)
        others = [nn.Parameter(torch.ones(3))]
        for wrong, words in (
            (lambda: bps.CrossBarrier(made(), model), "expects a model, not SGD"),
            (
                lambda: bps.CrossBarrier(model, torch.optim.SGD(model.parameters())),
                "DistributedOptimizer: call that",
            ),
            (lambda: bps.CrossBarrier(model, crossed), "CrossBarrier has this optimizer already"),
            (lambda: bps.CrossBarrier(model, scheduled), "a scheduler uses this .*: create it after CrossBarrier"),
            (lambda: bps.CrossBarrier(model, made(torch.optim.LBFGS)), "LBFGS may not allow: use one of SGD, Adam, Ad"),
            (lambda: bps.CrossBarrier(model, made(rule="geometric_median")), "this rule or attack needs all gradients"),
            (lambda: bps.CrossBarrier(model, made(parameters=others)), "lacks .*gradient/0, a parameter of the optim"),
            (lambda: bps.CrossBarrier(model, made(), 0), "num_steps is 0: give the number of steps of the script"),
            (lambda: crossed.step(lambda: 0.0), "a closure needs the loss after all parameters have changed: use Dist"),
            (lambda: hooked.step(), "the hooks of a step see all gradients and parameters at once: use Distributed"),
            (crossed.skip_synchronize, "which need all of them: use DistributedOptimizer without CrossBarrier"),
            (lambda: crossed._step_supports_amp_scaling, "a GradScaler needs all gradients before a step"),
        ):
            with pytest.raises(SpecError, match=words):
                wrong()
        clipping = bps.CrossBarrier(model, made())
        model(torch.ones(2, WIDTH)).sum().backward()
        clipping.synchronize()

    with pytest.raises(AssertionError, match=r"to clip gradients by their global norm, needs all gradients before"):
        fork(2, body)


def test_bytepss_module_has_the_other_names():
    import hpcps.torch.cross_barrier as module

    assert module.CrossBarrier is bps.CrossBarrier
    assert module.push_pull is bps.push_pull
    with pytest.raises(SpecError, match="no SyncBatchNorm"):
        _ = module.SyncBatchNorm

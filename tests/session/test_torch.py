"""hpcps.torch in several processes: what it returns equals one process that has everything."""

import builtins
import gc
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np
import pytest
from forked import fork
from running_processes import free_port

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # optimizers import it: here once, and not in every process

import hpcps.torch as bps  # noqa: E402
from hpcps.attacks import SignFlip, attackers  # noqa: E402
from hpcps.compression import Onebit, Qsgd, Topk  # noqa: E402
from hpcps.errors import LaunchError, RunError, SpecError  # noqa: E402
from hpcps.numerics.layout import private  # noqa: E402
from hpcps.protocol.messages import Peer  # noqa: E402
from hpcps.rules import GeometricMedian, Krum, Median, TrimmedMean  # noqa: E402
from hpcps.session import member  # noqa: E402
from hpcps.session.compressed import TensorDecoder, TensorEncoder  # noqa: E402
from hpcps.session.current import session  # noqa: E402
from hpcps.session.session import Session  # noqa: E402
from hpcps.session.sharding import Sharding  # noqa: E402
from hpcps.session.tensors import Declaration, Tensor  # noqa: E402
from hpcps.torch.horovod import operation  # noqa: E402
from hpcps.transport.shared_memory import Neighbours  # noqa: E402

FLIP = SignFlip(rate=0.25, scope="worker")
TYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]


@pytest.mark.thorough
def test_tensors_of_every_type_and_form():
    def body():
        rank, size = bps.rank(), bps.size()
        assert (size, bps.local_rank(), bps.local_size()) == (3, rank, 3)
        for name in TYPES:
            dtype = getattr(torch, name)
            for shape in ((), (0,), (7,), (5, 33), (300, 211)):
                every = [
                    torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(k)).to(dtype)
                    for k in range(size)
                ]
                wanted = sum(each.double() for each in every).to(dtype)
                assert torch.equal(bps.push_pull(every[rank], average=False, name=f"{name}{shape}"), wanted)
        table = torch.arange(12.0).reshape(3, 4) * (rank + 1)
        before = table.clone()
        assert torch.equal(bps.push_pull(table.t(), name="t"), 2 * torch.arange(12.0).reshape(3, 4).t())
        assert torch.equal(table, before)
        bps.synchronize(bps.push_pull_async_inplace(table[:, 1], name="column"))
        assert torch.equal(table[:, 1], 2 * torch.arange(12.0).reshape(3, 4)[:, 1])
        assert torch.equal(table[:, 0], before[:, 0])
        for elements in (3, 10**7):  # as after any change in place, autograd refuses values that it has saved
            changed = torch.ones(elements)
            total = (changed * torch.ones(elements, requires_grad=True)).sum()
            bps.synchronize(bps.push_pull_async_inplace(changed, name=f"changed {elements}"))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                total.backward()
        # Three without a name at a time, waited for in another order.
        handles = [bps.push_pull_async(torch.full((4,), float(rank + k))) for k in range(3)]
        assert [float(bps.synchronize(handle)[0]) for handle in handles[::-1]] == [3.0, 2.0, 1.0]
        with pytest.raises(RunError, match="synchronized already"):
            bps.poll(handles[0])
        bps.declare("late", torch.zeros(2))
        assert bps.allreduce(torch.ones(2), name="late").tolist() == [1.0, 1.0]
        with pytest.raises(SpecError, match="complex64"):
            bps.push_pull(torch.zeros(2, dtype=torch.complex64))
        with pytest.raises(SpecError, match="'wide' has elements that share"):
            bps.push_pull_async_inplace(torch.zeros(1, 4).expand(3, 4), name="wide")
        for call in (bps.push_pull, bps.push_pull_async, bps.allreduce_):
            with pytest.raises(SpecError, match=r"expect a tensor, not 1\.5"):
                call(1.5)
        with pytest.raises(SpecError, match=r'^rule.kind: unknown rule "medain": did you mean "median"'):
            bps.push_pull(torch.ones(2), rule="medain")
        bps.push_pull_async(torch.ones(3), name="never waited for")

    fork(3, body)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "compression",
    ["onebit", {"kind": "topk", "k": 0.01}, Qsgd(levels=3), Qsgd(direction="both"), Onebit(direction="model")],
    ids=str,
)
def test_a_compressor_encodes_tensors_with_a_residual_of_each(compression):
    """Against the compressor alone: what a process sends is the code of its tensor plus what earlier codes lost."""

    def body():
        kind = Onebit() if compression == "onebit" else Topk(k=0.01) if isinstance(compression, dict) else compression
        bps.init()
        rank, size = bps.rank(), bps.size()
        traffic, codes = bps.state.session().member.traffic, 0
        # The last residual and the last state are those of the results.
        residuals = np.zeros((2, size + 1, 30_000), np.float32)
        kept = [[{} for _ in range(size + 1)] for _ in range(2)]

        def travelled(values, place, k, way):
            if not kind.encodes(way):
                return values, 4 * len(values)
            wanted = values + residuals[place, k]
            code = kind.encode(wanted, kept[place][k])
            found = kind.decode(code, len(values))
            residuals[place, k] = wanted - found
            return found, len(code)

        for step in range(4):
            for place, (name, rule) in enumerate((("mean", None), ("median", "median"))):
                every = np.random.default_rng([step, place]).standard_normal((size, 30_000)).astype(np.float32)
                sent = np.empty_like(every)
                for k in range(size):
                    sent[k], taken = travelled(every[k], place, k, "update")
                    codes += taken * (k == rank)
                got = bps.push_pull(torch.from_numpy(every[rank]), name=name, compression=compression, rule=rule)
                combined = np.median(sent, axis=0) if rule else sent.astype(np.float64).mean(axis=0)
                expected, _ = travelled(combined.astype(np.float32), place, size, "model")
                np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-7)
        if rank == 2:  # the others hold the tensors, and send results
            assert codes < traffic.sent < codes + 8 * 300

    fork(3, body)


@pytest.mark.parametrize("rule", [None, "median"])
def test_with_ef21_the_estimates_of_what_is_sent_are_combined(rule):
    def body():
        kind = Topk(k=0.1, memory="ef21")
        table = kind.model_dump(exclude_none=True)
        rank, size = bps.rank(), bps.size()
        estimates = np.zeros((size, 3000), np.float32)
        for step in range(4):
            every = np.random.default_rng(step).standard_normal((size, 3000)).astype(np.float32)
            for k in range(size):
                estimates[k] += kind.decode(kind.encode(every[k] - estimates[k]), 3000)
            got = bps.push_pull(torch.from_numpy(every[rank]), name="x", compression=table, rule=rule)
            combined = np.median(estimates, axis=0) if rule else estimates.astype(np.float64).mean(axis=0)
            np.testing.assert_allclose(got.numpy(), combined.astype(np.float32), rtol=1e-6, atol=1e-7)

    fork(3, body)


def test_optimizers_and_models_take_a_compressor():
    """Half precision, so that the result is known: the mean of rounded gradients, the error of which comes later."""

    def body():
        for wrap in ("optimizer", "model"):
            layer = torch.nn.Linear(700, 1, bias=False)
            with torch.no_grad():
                layer.weight.zero_()
            optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
            keys = {"compression": "fp16", "rule": "trimmed_mean"}
            if wrap == "optimizer":
                optimizer = bps.DistributedOptimizer(optimizer, layer.named_parameters(), **keys)
                model = layer
            else:
                model = bps.DistributedDataParallel(layer, **keys)
            made, x = 0.0, torch.full((1, 700), 0.1 + 1e-5)
            for _ in range(50):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                made += float(x[0, 0])
            assert float(x[0, 0].half()) * 50 != pytest.approx(made, abs=1e-4)
            assert layer.weight.detach().numpy() == pytest.approx(np.full((1, 700), -made), abs=1e-4)

    fork(3, body)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "compression",
    ["int8", {"kind": "topk", "k": 0.01}, {"kind": "topk", "k": 0.1, "memory": "ef21"}, "float16"],
    ids=str,
)
def test_gradients_that_travel_together_are_encoded_as_alone(compression):
    def body():
        keys = {"compression": bps.Compression.fp16 if compression == "float16" else compression}
        shapes = [(200, 200), (30_000,), (3, 5)]
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **keys)
        generator = torch.Generator().manual_seed(bps.rank())
        for _ in range(2):
            given = [torch.randn(shape, generator=generator) for shape in shapes]
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient.clone()
            optimizer.synchronize()
            for k, (parameter, gradient) in enumerate(zip(parameters, given, strict=True)):
                torch.testing.assert_close(parameter.grad, bps.push_pull(gradient, name=f"{k}", **keys), rtol=0, atol=0)

    fork(2, body)


def test_an_aggregator_names_the_tensor_that_is_no_encoding():
    declaration = Declaration("x", "float32", ((900,),), {"kind": "median", "compression": {"kind": "onebit"}})
    worker = Peer("worker", 0)
    tensor, values = Tensor(declaration, Sharding({worker: 1}), None), np.ones(900, np.float32)
    encode, decode = TensorEncoder.of(tensor, "update", private), TensorDecoder.of(tensor, "update")
    assert TensorEncoder.of(tensor, "model", private) is TensorDecoder.of(tensor, "model") is None
    words = encode(values).copy()
    np.testing.assert_array_equal(decode(worker, words), values)
    for wrong in (words[:-1], words[:0], np.append(words, words), np.zeros(900, np.float32)):
        with pytest.raises(RunError, match="tensor 'x' has come in an encoding that is invalid"):
            decode(worker, wrong)


def test_compressors_that_scripts_cannot_use_are_refused():
    def body():
        x = torch.ones(900)
        for wrong, words in (
            ("onebti", r'unknown compression "onebti": did you mean "onebit"'),
            ({"kind": "int8", "memory": "nesterov"}, 'use "residual", "ef21" or "none"'),
            ({"kind": "int8", "memory": "ef21", "direction": "both"}, 'ef21 is for direction = "update"'),
            ("powersgd", "needs `rows` in a script"),
            (3, "compression must be the name"),
        ):
            with pytest.raises(SpecError, match=words):
                bps.push_pull(x, name=f"x {wrong}", compression=wrong)
        with pytest.raises(SpecError, match="for the mean or a rule"):
            bps.push_pull(x, False, compression="int8")
        with pytest.raises(SpecError, match="are for float32"):
            bps.push_pull(x.double(), compression="int8")
        with pytest.raises(SpecError, match='set acts_on = "encoding", or leave out compression='):
            bps.DistributedOptimizer(
                torch.optim.SGD([torch.nn.Parameter(x)], lr=1.0), compression="int8", attack={"kind": "nan"}
            )
        with pytest.raises(RunError, match="differs"):
            bps.push_pull(x, name="other", compression={"kind": "topk", "k": 2 + bps.rank()})

    fork(2, body)


def test_a_script_has_one_session():
    def body():
        bps.shutdown()
        with pytest.raises(LaunchError, match="only once"):
            bps.init()

    fork(2, body)


def test_the_names_of_horovod():
    def body():
        x = torch.full((3,), float(bps.rank()))
        assert bps.allreduce(x).tolist() == [1.0] * 3
        assert bps.allreduce(x, op=bps.Sum).tolist() == bps.allreduce(x, average=False, name="x").tolist() == [3.0] * 3
        assert bps.synchronize(bps.allreduce_async(x, op=bps.Average)).tolist() == [1.0] * 3
        assert x.tolist() == [bps.rank()] * 3
        assert bps.allreduce_(x, op=bps.Sum) is x
        bps.synchronize(bps.allreduce_async_(x, name="y"))
        assert x.tolist() == [3.0] * 3
        for wrong in ({"op": "median"}, {"op": bps.Sum, "average": True}):
            with pytest.raises(SpecError, match="op"):
                bps.allreduce(x, **wrong)
        assert bps.get_pushpull_speed()[1] > 0

    fork(3, body)


def test_compression_exchanges_float16():
    def body():
        for size in (100, 50_001):
            every = [torch.randn(size, generator=torch.Generator().manual_seed(k)) for k in range(2)]
            got = bps.push_pull(every[bps.rank()], name=f"x{size}", compression=bps.Compression.fp16)
            halves = [each.half().double() for each in every]
            assert torch.equal(got, ((halves[0] + halves[1]) / 2).half().float())
        number = torch.tensor([3 + bps.rank()])
        assert bps.push_pull(number, False, "i", compression=bps.Compression.fp16).tolist() == [7]
        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], bps.Compression.fp16, op=bps.Sum
        )
        (parameter * torch.tensor([0.1, 1.0])).sum().backward()
        optimizer.step()
        assert parameter.tolist() == [-2 * float(torch.tensor(0.1).half()), -2.0]
        wire, context = bps.Compression.fp16.compress(torch.ones(2, dtype=torch.float64))
        assert bps.Compression.fp16.decompress(wire, context).dtype == torch.float64

    fork(2, body)


def test_the_gradient_of_push_pull_is_exchanged():
    def body():
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (bps.push_pull(x, average=False, name="x") * (bps.rank() + 1)).sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]

    fork(2, body)


def test_broadcasts():
    def body():
        torch.manual_seed(bps.rank())
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (bps.rank() + 1))
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        bps.broadcast_parameters(model.state_dict(), root_rank=1)
        bps.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 0.2
        state = [*model.state_dict().values(), *(s["exp_avg"] for s in optimizer.state.values())]
        for k, value in enumerate(state):
            total = bps.push_pull(value.double(), average=False, name=f"check {k}")
            assert torch.equal(total, 3 * value.double())
        for thing in ({"epoch": 3}, "x" * 5000, None):
            assert bps.broadcast_object(thing if bps.rank() == 2 else "other", 2) == thing
        with pytest.raises(SpecError, match="0 to 2"):
            bps.broadcast_parameters({"a": torch.zeros(1)}, root_rank=3)
        bps.push_pull(torch.zeros(1), name="no process is behind")
        # The first one that sees it says what differs; it may end before the others have read that.
        with pytest.raises(RunError, match=r"differs|has ended"):
            bps.broadcast_parameters({"b": torch.zeros(1)}, root_rank=min(bps.rank(), 1))

    fork(3, body)


@pytest.mark.thorough
@pytest.mark.parametrize("elements", [4, 3_000_000])
def test_tensors_without_a_name_in_another_order_are_an_error_and_are_not_mixed(elements):
    def body():
        first, second = (bps.push_pull_async(torch.full((elements,), float(k))) for k in (1, 2))
        # Process 1 awaits the second first, so that its next tensor gets the other free name.
        order = (first, second) if bps.rank() == 0 else (second, first)
        assert float(bps.synchronize(order[0])[0]) == 1 + bps.rank()
        with pytest.raises(RunError, match=r"without a name differs: .* name the tensors, or synchronize"):
            others(order[1])

    def others(awaited):
        third = bps.push_pull_async(torch.full((elements,), 3.0))
        bps.synchronize(awaited)
        fourth = bps.push_pull_async(torch.full((elements,), 4.0))
        bps.synchronize(third), bps.synchronize(fourth)

    fork(2, body)


@pytest.mark.thorough
def test_processes_that_wait_for_each_other_say_so_and_end(monkeypatch, capfd):
    """Blocking exchanges in different orders: each process names the other and its tensor, long before the timeout."""
    monkeypatch.setattr(member, "_STALLED", 1.0)
    monkeypatch.setattr(member, "_ASK_AFTER", 0.1)

    def body():
        names = ["a", "b"]
        for name in names:
            bps.push_pull(torch.ones(3), name=name)
        first = names[bps.rank()]
        session().member._timeout = 3.0
        with pytest.raises(RunError, match=r"waited 3 s for worker-\d in tensor"):
            bps.push_pull(torch.ones(3), name=first)

    fork(2, body)
    printed = capfd.readouterr().err
    for rank, tensor in enumerate("ab"):
        said = rf"hpcps: worker-{rank} on \S+: has waited 1 s for worker-{1 - rank} in tensor '{tensor}', .*; after 3 s"
        assert re.search(said, printed), printed


def test_an_exchange_that_only_one_process_begins_is_an_error_at_its_end():
    def body():
        bps.push_pull(torch.ones(3), name="all")
        if bps.rank() == 1:
            with pytest.raises(RunError, match="'more'"):
                begin_and_end()

    def begin_and_end():
        bps.push_pull_async(torch.ones(3), name="more")  # fails if process 0 has ended already
        bps.shutdown()

    fork(2, body)


def _optimize(shape, **keys):
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (5, shape)]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **keys)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        (lambda shape: bps.push_pull(torch.ones(shape), name="x"), r"'x', 12 x .*, mean, of the shape \[(3, 4|4, 3)\]"),
        (lambda shape: bps.allreduce(torch.ones(shape)), r"\[(3, 4|4, 3)\]"),
        (lambda shape: bps.push_pull(torch.ones(12).view(shape).t(), name="x", average=False), r"\[(3, 4|4, 3)\]"),
        (lambda shape: bps.push_pull(torch.ones(1200, 1000).view(shape[0], -1), name="x"), r"\[3, 400000\]"),
        (_optimize, r"tensor 0 of 2 in it of the shape \[(3, 4|4, 3)\]"),
        (partial(_optimize, rule="geometric_median"), r"tensor 1 of 2 in it of the shape \[(3, 4|4, 3)\]"),
        (partial(_optimize, compression=bps.Compression.fp16), r"of the shape \[(3, 4|4, 3)\]"),
        (lambda shape: bps.broadcast_parameters({"x": torch.ones(shape)}), r"\(3, 4\)"),
    ],
)
def test_tensors_of_other_shapes_are_not_combined(exchange, message):
    def body():
        with pytest.raises(RunError, match=f"differs.*{message}|has ended"):
            exchange(((3, 4), (4, 3))[bps.rank()])

    fork(2, body)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def batches(steps, size, passes):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(passes, 8 * size, 6, generator=generator)
        y = torch.randint(0, 3, (passes, 8 * size), generator=generator)
        yield x, y


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("passes", [1, 3])
def test_the_optimizer_equals_one_process_with_the_whole_batch(passes, dtype):
    """Within rounding: Adam's first steps divide by small numbers, which amplifies that of sums in another order."""
    tolerances = {"sgd": 1e-6, "momentum": 1e-6, "adam": 2e-5} if dtype == torch.float32 else {}

    def body():
        loss, rank, size = torch.nn.CrossEntropyLoss(), bps.rank(), bps.size()
        mine = slice(8 * rank, 8 * rank + 8)
        for kind, make in OPTIMIZERS.items():
            model, one = network().to(dtype), network().to(dtype)
            named = [(f"{kind}.{name}", p) for name, p in model.named_parameters()]
            optimizer, whole = (
                bps.DistributedOptimizer(make(model.parameters()), named, backward_passes_per_step=passes),
                make(one.parameters()),
            )
            assert isinstance(optimizer, type(whole))
            for step, (xs, ys) in enumerate(batches(4, size, passes)):
                for x, y in zip(xs.to(dtype), ys, strict=True):
                    (loss(model(x[mine]), y[mine]) / passes).backward()
                    (loss(one(x), y) / passes).backward()
                if step == 1:  # as with clipping
                    optimizer.synchronize()
                    with optimizer.skip_synchronize():
                        optimizer.step()
                else:
                    optimizer.step()
                whole.step()
                optimizer.zero_grad()
                whole.zero_grad()
            for a, b in zip(model.parameters(), one.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=tolerances.get(kind, 1e-12))

    fork(3, body)


def test_the_model_equals_one_process_with_the_whole_batch():
    """DistributedDataParallel with BatchNorm statistics of process 0, a pass without exchange, and an unused layer."""

    def body():
        loss, rank, size = torch.nn.MSELoss(), bps.rank(), bps.size()
        torch.manual_seed(rank)  # the parameters of process 0 are those of all
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5, affine=False), torch.nn.Linear(5, 1))
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
        ddp = bps.DistributedDataParallel(model)
        one = torch.nn.Linear(6, 1)
        assert bps.broadcast_object(model[0].weight.tolist()) == model[0].weight.tolist()
        simple = torch.nn.Linear(6, 1)
        wrapped = bps.DistributedDataParallel(simple, device_ids=[0], broadcast_buffers=False)
        one.load_state_dict(simple.state_dict())
        mine, whole = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (simple, one))
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            for k in range(2):
                x, y = torch.randn(8 * size, 6, generator=generator), torch.randn(8 * size, 1, generator=generator)
                part = slice(8 * rank, 8 * rank + 8)
                loss(one(x), y).backward()
                if k == 0:
                    with wrapped.no_sync():
                        loss(wrapped(x[part]), y[part]).backward()
                else:
                    loss(wrapped(x[part]), y[part]).backward()
            mine.step(), whole.step()
            mine.zero_grad(), whole.zero_grad()
        for a, b in zip(simple.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        loss(ddp(torch.randn(8, 6)), torch.zeros(8, 1)).backward()
        assert model.unused.grad is None
        assert bps.broadcast_object(model[0].weight.grad.tolist()) == model[0].weight.grad.tolist()
        statistics = model[1].running_mean.clone()
        ddp(torch.randn(8, 6))
        ddp.eval()
        assert ddp(torch.ones(1, 6)).shape == (1, 1)
        ddp.train()
        assert not torch.equal(model[1].running_mean, statistics)
        bps.push_pull(torch.zeros(1), name="end")
        with pytest.raises(SpecError, match="2 devices"):
            bps.DistributedDataParallel(one, device_ids=[0, 1])

    fork(3, body)


def test_mistakes_with_the_optimizer():
    def body():
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        named = list(model.named_parameters())
        for wrong, reason in ((named[:1], "lacks 3"), ([*named, named[0]], "names twice: 0.weight")):
            with pytest.raises(SpecError, match=reason):
                bps.DistributedOptimizer(sgd, wrong)
        optimizer = bps.DistributedOptimizer(sgd, named)
        model(torch.ones(2, 6)).sum().backward()
        with pytest.raises(RunError, match="lose gradients"):
            optimizer.zero_grad()
        optimizer.step()
        other = torch.optim.SGD(network().parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(other, 1)
        with pytest.raises(SpecError, match="create it after"):
            bps.DistributedOptimizer(other)

    fork(2, body)


def test_a_layer_that_is_frozen_later_does_not_move():
    """Not by weight decay either: a step of a plain optimizer leaves out what has no gradient."""

    def body():
        model, rank = network(), bps.rank()
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), model.named_parameters()
        )
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(rank))
        for step in range(3):
            optimizer.zero_grad()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            model(x).square().mean().backward()
            optimizer.step()
            moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
            assert moved == [step == 0] * 2 + [True] * 2
            model[0].requires_grad_(False)

    fork(2, body)


def test_a_backward_pass_that_an_exception_ended_is_an_error_at_the_next_forward_pass():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("it fails here")

    def body():
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 1))
        ddp, x = bps.DistributedDataParallel(model), torch.ones(8, 6)
        ddp(x).sum().backward()
        middle = ddp.module[0](x)
        with pytest.raises(ValueError, match="it fails here"):
            ddp.module[1](Fails.apply(middle)).sum().backward()
        for call in (lambda: ddp(x), lambda: bps.push_pull(x, name="the session has ended")):
            with pytest.raises(RunError, match=r"an exception has ended the last backward .* restart all processes"):
                call()

    fork(2, body)


def test_arguments_that_cannot_be_used_are_refused_with_the_remedy():
    def body():
        def optimizer(**keys):
            parameter = torch.nn.Parameter(torch.ones(3))
            return bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), **keys)

        x, fp16 = torch.ones(3), bps.Compression.fp16
        for call in (optimizer, bps.exchange, lambda **keys: bps.push_pull(x, **keys)):
            with pytest.raises(SpecError, match="leave out average=False and op=Sum"):
                call(rule="median", average=False)
            for wrong, name in ((bps.Compression, "Compression"), (Onebit, "Onebit")):
                with pytest.raises(SpecError, match=rf"compression is the class {name}: use Compression\.none"):
                    call(compression=wrong)
            call(compression=None)
        with pytest.raises(SpecError, match="leave out average=False and op=Sum"):
            optimizer(rule="median", op=bps.Sum)
        for call in (optimizer, bps.exchange):
            with pytest.raises(SpecError, match="a class of Compression converts"):
                call(attack={"kind": "nan"}, compression=fp16)
        with pytest.raises(SpecError, match='use compression="fp16"'):
            optimizer(rule="geometric_median", compression=fp16)
        optimizer(rule="geometric_median", compression="fp16").step()
        with pytest.raises(SpecError, match="once for each optimizer"):
            bps.DistributedOptimizer(optimizer())
        for passes in (0, 1.5):
            with pytest.raises(SpecError, match=f"must be a whole number from 1, not {passes}"):
                optimizer(backward_passes_per_step=passes)
        frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        for keys in ({}, {"rule": "geometric_median"}):
            with pytest.raises(SpecError, match="no parameter requires a gradient"):
                bps.DistributedDataParallel(frozen, **keys)
        model = torch.nn.Linear(3, 2)
        with pytest.raises(SpecError, match=r"broadcast_parameters needs the names .*named_parameters\(\)"):
            bps.broadcast_parameters(list(model.parameters()))
        with pytest.raises(SpecError, match="DistributedOptimizer needs the names"):
            bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.parameters())
        with pytest.raises(SpecError, match="got no tensor: use broadcast_optimizer_state"):
            bps.broadcast_parameters({"lr": 0.1})
        with pytest.raises(SpecError, match="give the name of a tensor as name='gradient'"):
            bps.push_pull(x, "gradient")
        for push in (bps.push_pull, bps.push_pull_async, bps.push_pull_async_inplace, bps.allreduce):
            with pytest.raises(SpecError, match="one on the meta device has none"):
                push(torch.ones(3, device="meta"))
        assert bps.broadcast_object(bps.rank() + 4, root_rank=1, name="epoch") == 5
        assert bps.push_pull(x, name="the session goes on").tolist() == [1.0] * 3

    fork(2, body)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("rule", "attack"), [(Median(), None), (TrimmedMean(trim=0.25), None), (GeometricMedian(), None), (Krum(f=0), FLIP)]
)
def test_a_rule_equals_the_rule_on_the_stacked_gradients(rule, attack):
    def body():
        rank, size = bps.rank(), bps.size()
        loss, model = torch.nn.CrossEntropyLoss(), network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(sgd, rule=rule, attack=attack, seed=3)
        ((xs, ys),) = batches(1, size, 1)
        every = []
        for k in range(size):
            other = network()
            loss(other(xs[0, 8 * k : 8 * k + 8]), ys[0, 8 * k : 8 * k + 8]).backward()
            every.append([p.grad for p in other.parameters()])
        loss(model(xs[0, 8 * rank : 8 * rank + 8]), ys[0, 8 * rank : 8 * rank + 8]).backward()
        optimizer.synchronize()
        sizes = [p.numel() for p in model.parameters()]
        stacked = torch.stack([torch.cat([gradient.reshape(-1) for gradient in gradients]) for gradients in every])
        if attack is not None:
            stacked[[*attackers(attack, 4, 3)]] *= -1
        wanted = rule(stacked, blocks=sizes).split(sizes)
        for p, each in zip(model.parameters(), wanted, strict=True):
            np.testing.assert_array_equal(p.grad.reshape(-1).numpy(), each.numpy())

    fork(4, body)


@pytest.mark.parametrize("named", [True, False])
def test_several_models_of_a_script_may_have_the_same_names(named):
    def body():
        rank, size = bps.rank(), bps.size()
        for shapes in ([(5, 8), (8, 1)], [(5, 8), (5, 8)]):
            torch.manual_seed(rank)  # the parameters of process 0 are those of all
            models = [torch.nn.Sequential(torch.nn.Linear(*shape)) for shape in shapes]
            for _ in range(2):
                for model in models:
                    bps.broadcast_parameters(model.state_dict())
            declared = len(bps.state.session().member.participant._tensors)
            ones = [torch.nn.Sequential(torch.nn.Linear(*shape)) for shape in shapes]
            for one, model in zip(ones, models, strict=True):
                one.load_state_dict(bps.broadcast_object(model.state_dict()))
            for model in models:
                bps.broadcast_parameters(model.state_dict())
            assert len(bps.state.session().member.participant._tensors) - declared <= 4  # those of broadcast_object
            mine = [
                bps.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters() if named else None
                )
                for model in models
            ]
            whole = [torch.optim.SGD(one.parameters(), lr=0.1) for one in ones]
            for _ in range(2):
                xs = [torch.randn(2 * size, shape[0], generator=torch.Generator().manual_seed(4)) for shape in shapes]
                sum(m(x[rank::size]).square().mean() for m, x in zip(models, xs, strict=True)).backward()
                sum(m(x).square().mean() for m, x in zip(ones, xs, strict=True)).backward()
                for optimizer in (*mine, *whole):
                    optimizer.step()
                for optimizer in (*mine, *whole):
                    optimizer.zero_grad()
            for model, one in zip(models, ones, strict=True):
                for a, b in zip(model.parameters(), one.parameters(), strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

    fork(2, body)


def _set_numpy(gradient):
    gradient.numpy()[:] = 0


def _set_data(gradient):
    gradient.data = torch.zeros_like(gradient)


def _set_all(model, value):
    for parameter in model.parameters():
        parameter.grad = value(parameter.grad)


CHANGES = {
    "clip": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "replace": lambda model: _set_all(model, torch.clone),
    "clear": lambda model: model.zero_grad(),
    "data.clamp_": lambda model: [p.grad.data.clamp_(-1e-3, 1e-3) for p in model.parameters()],
    "data.mul_": lambda model: model.bias.grad.data.mul_(0.5),
    "data =": lambda model: _set_data(model.weight.grad),
    "numpy": lambda model: _set_numpy(model.weight.grad),
    "numpy of a view": lambda model: _set_numpy(model.weight.grad.view(-1)[:3]),
    "data of the transposed": lambda model: model.weight.grad.data.t().add_(1.0),
    "data with gaps": lambda model: model.gaps.grad.data.mul_(0.5),
    "unscale": lambda model: torch._amp_foreach_non_finite_check_and_unscale_(
        [p.grad for p in model.parameters()], torch.zeros(1), torch.full((1,), 0.5)
    ),
    "inference": torch.inference_mode()(lambda model: model.bias.grad.mul_(0.5)),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout")
@pytest.mark.parametrize("keys", [{}, {"rule": "geometric_median"}, {"compression": bps.Compression.fp16}], ids=str)
@pytest.mark.parametrize("width", [6, 3000])
def test_a_gradient_that_changes_during_its_exchange_is_an_error(keys, width):
    """Whether torch counts the change or not, before and after the result is written."""
    for k, (name, change) in enumerate(CHANGES.items()):
        for done in (False, True):
            bps.init(alone=True)
            model = torch.nn.Linear(width, 2)
            model.gaps = torch.nn.Parameter(torch.ones(width, 2))
            named = [(f"{k}.{name}", p) for name, p in model.named_parameters()]
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, **keys)
            for step in range(3):
                if step:  # what is not changed passes
                    optimizer.step()
                    optimizer.zero_grad()
                model.gaps.grad = torch.zeros(width, 4)[:, :2]  # autograd adds to it
                (model(torch.ones(2, width)).sum() + model.gaps.sum()).backward()
            if done:
                bps.push_pull(torch.ones(1), name="time for the exchange")
            before = model.weight.detach().clone()
            change(model)
            for _ in range(2):  # also if the script catches it: others may have taken this step
                with pytest.raises(RunError, match=r"such as .*\.(weight|bias|gaps), changed .*synchronize\(\) before"):
                    optimizer.step()
            assert torch.equal(model.weight, before), name
            bps.shutdown()  # the second error has come from the session: the script knows


@pytest.mark.parametrize("elements", [3, 70_000, 3_000_000])
def test_gradients_stay_those_of_the_process_until_the_script_waits_for_the_results(elements):
    """Else a change at the time of the result would be lost without an error."""

    def body():
        weight = torch.nn.Parameter(torch.ones(elements))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
        for step in range(2):
            (weight * (bps.rank() + step)).sum().backward()
            bps.push_pull(torch.ones(1), name="time for the exchange")
            assert torch.equal(weight.grad, torch.full((elements,), float(bps.rank() + step)))
            optimizer.synchronize()
            assert torch.equal(weight.grad, torch.full((elements,), 0.5 + step))
            optimizer.zero_grad()

    fork(2, body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("left_out", [(), (1,)])
@pytest.mark.parametrize("kind", ["DistributedOptimizer", "DistributedDataParallel"])
def test_a_step_of_the_optimizer_that_one_process_leaves_out_is_noticed(kind, left_out):
    """Although it has exchanged the gradients."""
    both = multiprocessing.get_context("fork").Barrier(2)

    def body():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "DistributedOptimizer":
            bps.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            model = bps.DistributedDataParallel(model)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            if kind == "DistributedOptimizer":
                optimizer.synchronize()
            if not (bps.rank() == 1 and step in left_out):
                optimizer.step()
        with pytest.raises(RunError, match="steps of the optimizer differ") if left_out else nullcontext():
            bps.shutdown()
        both.wait(50)  # the other process may still read the memory of this one
        os._exit(0)

    fork(2, body)


@pytest.mark.parametrize("elements", [3, 70_000])
def test_a_tensor_with_the_name_of_a_gradient_whose_result_is_not_written_is_refused(elements):
    """Else its values would become the gradient."""
    bps.init(alone=True)
    weight = torch.nn.Parameter(torch.ones(elements))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    (name,) = optimizer._gradients.names.values()
    weight.sum().backward()
    bps.push_pull(torch.ones(1), name="time for the exchange")
    with pytest.raises(RunError, match=f"'{name}' is being exchanged: step or synchronize its optimizer first"):
        bps.push_pull(torch.full((elements,), 7.0), name=name)
    optimizer.step()
    assert torch.equal(weight, torch.zeros(elements))
    bps.shutdown()


def test_the_others_learn_of_a_process_that_changes_its_gradients():
    read = multiprocessing.get_context("fork").Barrier(2)

    def body():
        model = torch.nn.Linear(6, 2)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

        def steps():
            for _ in range(2):
                model(torch.ones(2, 6)).sum().backward()
                if bps.rank() == 1:
                    _set_numpy(model.bias.grad)
                with suppress(RunError) if bps.rank() == 1 else nullcontext():
                    optimizer.step()
                optimizer.zero_grad()

        with pytest.raises(RunError, match=r"(worker-1 has failed: )?1 of 2 gradients, such as .* changed between"):
            steps()
        read.wait(50)  # the other process may still read the memory of this one
        os._exit(0)

    fork(2, body)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "keys", [{}, {"rule": "median"}, {"rule": "geometric_median"}, {"compression": "int8"}], ids=str
)
def test_parameters_that_no_process_uses_do_not_move(keys):
    """As those of one process, and of DistributedDataParallel: not by weight decay, momentum or Adam's averages."""

    def body():
        rank = bps.rank()
        sizes = {"both": (3, 4), "one": (70_000,), "none": (5,), "none, large": (3_000_000,), "later": (6,)}
        parameters = {name: torch.nn.Parameter(torch.ones(size)) for name, size in sizes.items()}
        adam = torch.optim.AdamW(parameters.values(), lr=0.1, weight_decay=0.1)
        optimizer = bps.DistributedOptimizer(adam, parameters.items(), **keys)
        for step in range(3):
            optimizer.zero_grad()
            used = ["both"] + ["one"] * (rank == 1) + ["later"] * (step == 1)
            before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            sum((parameters[name] * (rank + 1.0)).sum() for name in used).backward()
            optimizer.step()
            moved = {name for name, parameter in parameters.items() if not torch.equal(parameter, before[name])}
            # A median of two is their mean.
            assert moved == {"both", "one"} | ({"later"} if step == 1 else set()), step
            without = {name for name, parameter in parameters.items() if parameter.grad is None}
            assert without == set(sizes) - moved
            for name, parameter in parameters.items():
                assert torch.equal(bps.push_pull(parameter.detach(), name=name), parameter)

    fork(2, body)


def test_zero_grad_forgets_the_passes_before_it():
    """Three batches an epoch, and two of each step: the last one of an epoch has no step."""

    def body():
        for clear in ("optimizer", "model", "none"):
            model, one = network(), network()
            sgd = OPTIMIZERS["sgd"](model.parameters())
            optimizer = bps.DistributedOptimizer(sgd, model.named_parameters(), backward_passes_per_step=2)
            whole = OPTIMIZERS["sgd"](one.parameters())
            for _ in range(3):
                for each, net in ((optimizer, model), (whole, one)):
                    {"optimizer": each.zero_grad, "model": net.zero_grad, "none": lambda: None}[clear]()
                    if clear == "none":
                        for parameter in net.parameters():
                            parameter.grad = None
                    for k, (xs, ys) in enumerate(batches(3, 1, 1)):
                        torch.nn.functional.cross_entropy(net(xs[0]), ys[0]).backward()
                        if k == 1:
                            each.step()
                            each.zero_grad()
            for a, b in zip(model.parameters(), one.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

    fork(2, body)


def test_the_discriminator_of_a_gan_has_two_passes():
    """The loop of PyTorch's tutorial: the pass of the generator goes through the discriminator without a step."""

    def body():
        for frozen in (False, True):
            nets = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
            bps.broadcast_parameters({f"{k}.{n}": p for k, net in enumerate(nets) for n, p in net.named_parameters()})
            generator, judge = nets
            g = bps.DistributedOptimizer(torch.optim.SGD(generator.parameters(), lr=0.1), generator.named_parameters())
            d = bps.DistributedOptimizer(
                torch.optim.SGD(judge.parameters(), lr=0.1), judge.named_parameters(), backward_passes_per_step=2
            )
            for _ in range(3):
                judge.zero_grad()
                judge(torch.full((2, 3), 1.0 + bps.rank())).mean().backward()
                fake = generator(torch.ones(2, 3))
                (-judge(fake.detach()).mean()).backward()
                d.step()
                generator.zero_grad()
                judge.requires_grad_(not frozen)
                judge(fake).mean().backward()
                judge.requires_grad_(True)
                g.step()
            for k, net in enumerate(nets):
                for name, value in net.named_parameters():
                    assert torch.equal(bps.push_pull(value.detach(), name=f"{frozen} {k} {name}"), value)

    fork(2, body)


def _two_passes(model, optimizer):
    for _ in range(2):
        model(torch.ones(2, 6)).sum().backward()


def _twice_in_reentrant_checkpoints(model, optimizer):
    x = torch.ones(2, 6, requires_grad=True)
    halves = [torch.utils.checkpoint.checkpoint(model, x * k, use_reentrant=True) for k in (1, 2)]
    sum(half.sum() for half in halves).backward()


def _generator(model, optimizer):
    model(torch.ones(2, 6)).sum().backward()
    optimizer.zero_grad()


def _no_step(model, optimizer):
    model(torch.ones(2, 6)).sum().backward()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("mistake", "message", "ends"),
    [
        (_two_passes, "call step.* after each backward pass, or raise backward_passes_per_step.*requires_grad_", True),
        (_twice_in_reentrant_checkpoints, "if reentrant checkpoints use a module twice, .* use_reentrant=False", True),
        (_generator, r"zero_grad\(\) between .* for another optimizer, .* requires_grad_\(False\)", False),
        (
            _no_step,
            r"the script ends, or calls join\(\), after a backward .* of 4 gradients, such as .*gradient/0",
            False,
        ),
    ],
)
def test_a_backward_pass_without_its_step_is_an_error_with_a_remedy(mistake, message, ends):
    """Also if the script catches it, and in all processes."""

    both = multiprocessing.get_context("fork").Barrier(2)

    def body():
        model = network()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
        both.wait(50)  # the failure of one must not meet the other before its own mistake
        if mistake is _no_step:
            mistake(model, optimizer)
            bps.push_pull(torch.ones(1), name="all have begun")
            with pytest.raises(RunError, match=message):
                bps.shutdown()
        else:
            with pytest.raises(RunError, match=message):
                mistake(model, optimizer)
            with pytest.raises(RunError, match=message) if ends else nullcontext():
                bps.push_pull(torch.ones(3), name="x")
        both.wait(50)  # the other process may still read the memory of this one
        os._exit(0)

    fork(2, body)


def test_checkpoints_without_a_backward_pass_of_their_own_work():
    read = multiprocessing.get_context("fork").Barrier(2)

    def body():
        model, one = network(), network()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
        ddp = bps.DistributedDataParallel(network())
        for net in (model, ddp, one):
            net.requires_grad_(True)
            x = torch.ones(2, 6, requires_grad=True)
            sum(torch.utils.checkpoint.checkpoint(net, x * k, use_reentrant=False).sum() for k in (1, 2)).backward()
        optimizer.step()
        OPTIMIZERS["sgd"](one.parameters()).step()
        for a, b in zip(model.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        x = bps.push_pull(torch.ones(2, 6), name="both are here").requires_grad_()
        with pytest.raises(RunError, match=r"a reentrant checkpoint has a backward pass of its own: .*=False"):
            torch.utils.checkpoint.checkpoint(ddp, x, use_reentrant=True).sum().backward()
        read.wait(50)  # the other process may still read the memory of this one
        os._exit(0)

    fork(2, body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("after", ["nothing", "a result"])
def test_a_process_that_skips_a_step_is_named_with_the_numbers_of_steps(after, monkeypatch):
    """It catches its own exception, goes on with the next batch, and is one step behind the others."""
    monkeypatch.setattr(member, "_STALLED", 0.5)

    def body():
        model = network()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
        said = r"worker-1 has ended .* after 2 steps" if after == "nothing" else r"waited 3 s for .*, after [23] steps"
        session().member._timeout = 3.0

        def train():
            for step in range(3):
                optimizer.zero_grad()
                try:
                    if (bps.rank(), step) == (1, 1):
                        raise ValueError
                    model(torch.ones(2, 6)).sum().backward()
                except ValueError:
                    continue
                optimizer.step()
            if after == "a result":
                bps.push_pull(torch.ones(1), name="accuracy")

        if bps.rank() == 0 or after == "a result":
            with pytest.raises(RunError, match=said):
                train()
        else:
            train()
        with suppress(RunError):  # it may hear of the error of the other
            bps.shutdown()

    fork(2, body)


def test_a_step_after_synchronize_exchanges_nothing_again():
    """Neither with `skip_synchronize` nor without: a second sum would be another number."""

    def body():
        size = bps.size()
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=bps.Sum)
        for step, calls in enumerate(["plain", "synchronize", "clip", "cleared", "plain", "twice"]):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            before, wanted = model.weight.item(), float(size)
            if calls != "plain":
                optimizer.synchronize()
            if calls == "clip":
                model.weight.grad.mul_(0.5)
                wanted /= 2
            elif calls == "cleared":  # then there is another gradient
                optimizer.zero_grad()
                model.weight.grad = torch.full((1, 1), 0.5)
                wanted /= 2
            optimizer.step()
            if calls == "twice":
                model.weight.grad.fill_(1.0)
                optimizer.step()
                wanted *= 2
            assert model.weight.item() == before - wanted, (step, calls)

    fork(2, body)


@pytest.mark.parametrize("scales", [False, True])
def test_clipping_and_loss_scaling_equal_one_process(scales):
    """The code of docs/how-to/own-script.md; with scaling, one step has an infinite gradient in one process."""
    if scales and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch has no GradScaler for the CPU")
    scaling = partial(torch.amp.GradScaler, "cpu") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler

    def body():
        loss, rank, size = torch.nn.CrossEntropyLoss(), bps.rank(), bps.size()
        model, one = network(), network()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["momentum"](model.parameters()), model.named_parameters())
        whole = OPTIMIZERS["momentum"](one.parameters())
        scaler, other = (scaling(init_scale=1024.0, enabled=scales) for _ in range(2))
        if scales:
            scaler.scale(model(torch.ones(2, 6)).sum()).backward()
            with pytest.raises(RunError, match=r"GradScaler would unscale .* call optimizer.synchronize\(\) before"):
                scaler.step(optimizer)
            optimizer.synchronize()
            optimizer.zero_grad()
        for step, (xs, ys) in enumerate(batches(5, size, 1)):
            if scales and step == 2:
                xs[0, 0] = float("inf")
            before = [p.detach().clone() for p in model.parameters()]
            scaler.scale(loss(model(xs[0, 8 * rank : 8 * rank + 8]), ys[0, 8 * rank : 8 * rank + 8])).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

            other.scale(loss(one(xs[0]), ys[0])).backward()
            other.unscale_(whole)
            assert float(torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)) > 0.1 or (scales and step == 2)
            other.step(whole)
            other.update()
            whole.zero_grad()
            assert scaler.get_scale() == other.get_scale() == (512.0 if step >= 2 else 1024.0) or not scales
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert same == (scales and step == 2)
            for a, b in zip(model.parameters(), one.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

    fork(3, body)


@pytest.mark.parametrize("later", ["unfrozen", "added"])
def test_a_parameter_that_is_not_exchanged_is_an_error_with_a_remedy(later):
    def body():
        model, one, rank = network(), network(), bps.rank()
        (xs, _), *_ = batches(1, 2, 1)
        if later == "unfrozen":
            model[0].requires_grad_(False)
        parameters = model.parameters() if later == "unfrozen" else model[2].parameters()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](parameters), model.named_parameters())
        model(xs[0, 8 * rank : 8 * rank + 8]).square().mean().backward()
        optimizer.step()
        if later == "unfrozen":
            model[0].requires_grad_(True)
        else:
            optimizer.add_param_group({"params": model[0].parameters()})
        model(xs[0, 8 * rank : 8 * rank + 8]).square().mean().backward()
        with pytest.raises(RunError, match=r"parameter 0\.weight was frozen, or not in .* create another optimizer"):
            optimizer.step()
        one.load_state_dict(model.state_dict())
        optimizer.zero_grad()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
        whole = OPTIMIZERS["sgd"](one.parameters())
        for _ in range(3):
            optimizer.zero_grad(), whole.zero_grad()
            model(xs[0, 8 * rank : 8 * rank + 8]).square().mean().backward()
            one(xs[0]).square().mean().backward()
            optimizer.step(), whole.step()
        for a, b in zip(model.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)

    fork(2, body)


BLOCKWISE = TrimmedMean(trim=0.25, before=({"kind": "nnm", "per": "block", "f": 0},))


@pytest.mark.sample(1)
@pytest.mark.parametrize("rule", [None, Median(), BLOCKWISE])
def test_small_gradients_are_exchanged_together(rule, monkeypatch):
    monkeypatch.setattr("hpcps.session.buckets._SHARED_PARTITION", 1000)

    def body():
        sizes = [(3,), (0,), (90, 2), (70,), (1,), (40_000,), (5, 5), (11,)]
        types = [torch.float32] * 7 + [torch.float64 if rule is None else torch.float32]
        every = [
            [torch.randn(s, dtype=t) for s, t in zip(sizes, types, strict=True)]
            for k in range(3)
            if torch.manual_seed(k)
        ]
        parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in every[0]]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), rule=rule)
        for k in range(2):
            optimizer.zero_grad(set_to_none=k == 0)
            mine = every[bps.rank()]
            sum((p * g).sum() for p, g in zip(parameters[1:], mine[1:], strict=True)).backward()
            optimizer.synchronize()
            assert parameters[0].grad is None  # it was not used
            for p, *rows in list(zip(parameters, *every, strict=True))[1:]:
                stacked = torch.stack(rows).reshape(3, -1)
                wanted = stacked.double().mean(0).to(p.dtype) if rule is None else rule(stacked)
                assert torch.equal(p.grad.reshape(-1), torch.as_tensor(wanted)), p.shape
        optimizer.step()
        assert parameters[3].any()

    fork(3, body)


@pytest.mark.thorough
def test_the_hook_equals_one_process_and_the_rule():
    def body():
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank, size, loss = bps.rank(), bps.size(), torch.nn.CrossEntropyLoss()
        encoded = {"compression": {"kind": "lossless", "min_bytes": 0}}
        for rule, keys in ((None, {}), (Median(), {}), (GeometricMedian(), {}), (Median(), encoded)):
            model, one = network(), network()
            ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
            ddp.register_comm_hook(bps.exchange(rule=rule, **keys), bps.hook)
            mine, whole = OPTIMIZERS["momentum"](model.parameters()), OPTIMIZERS["momentum"](one.parameters())
            for xs, ys in batches(4, size, 1):
                mine.zero_grad()
                loss(ddp(xs[0, 8 * rank : 8 * rank + 8]), ys[0, 8 * rank : 8 * rank + 8]).backward()
                every = []
                for k in range(size):
                    one.zero_grad()
                    loss(one(xs[0, 8 * k : 8 * k + 8]), ys[0, 8 * k : 8 * k + 8]).backward()
                    every.append([p.grad.clone().reshape(-1) for p in one.parameters()])
                stacked = torch.stack([torch.cat(gradients) for gradients in every])
                wanted = stacked.double().mean(0).float() if rule is None else rule(stacked)
                for p, part in zip(one.parameters(), wanted.split([p.numel() for p in one.parameters()]), strict=True):
                    p.grad = part.reshape(p.shape)
                mine.step()
                whole.step()
            for a, b in zip(model.parameters(), one.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        dist.destroy_process_group()

    fork(3, body)


@pytest.mark.thorough
def test_a_script_may_end_as_soon_as_a_step_of_the_hook_has(monkeypatch):
    charge = Session.charge

    def slow(session, task):
        charge(session, task)
        if task == "wait":
            time.sleep(0.3)

    monkeypatch.setattr(Session, "charge", slow)

    def body():
        import torch.distributed as dist

        dist.init_process_group("gloo")
        ddp = torch.nn.parallel.DistributedDataParallel(network())
        ddp.register_comm_hook(bps.exchange(), bps.hook)
        ddp(torch.ones(2, 6)).sum().backward()
        dist.destroy_process_group()

    fork(2, body)


@pytest.mark.sample(1, 1)
@pytest.mark.thorough
@pytest.mark.parametrize("form", ["kept", "sent", "within a step"])
def test_a_model_that_trains_without_the_hook_that_a_script_has_made_is_an_error(form):
    """Lightning on CPUs and Accelerate take a hook, and do not register it."""

    def body():
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def pair():
            model = torch.nn.parallel.DistributedDataParallel(network())
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def step(model, optimizer):
            def closure():
                optimizer.zero_grad()
                loss = model(torch.ones(2, 6)).sum()
                loss.backward()
                return loss

            if form != "within a step":
                closure()
            optimizer.step(closure if form == "within a step" else None)

        state = bps.exchange("median")
        dist.init_process_group("gloo")
        if form == "sent":
            state = pickle.loads(pickle.dumps(state))
        other, idle = pair(), torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1)
        other[0].register_comm_hook(None, allreduce_hook)
        step(*other)
        idle.step()
        with pytest.raises(SpecError, match=r"averaged gradients without the hook.*Lightning.*Accelerate"):
            step(*pair())
        with pytest.raises(RunError, match="averaged gradients without the hook"):
            bps.shutdown()
        dist.destroy_process_group()
        assert state is not None

    fork(2, body)


@pytest.mark.thorough
def test_models_may_step_before_another_one_that_has_the_hook():
    def body():
        import torch.distributed as dist

        dist.init_process_group("gloo")
        models = [torch.nn.parallel.DistributedDataParallel(network()) for _ in range(2)]
        models[1].register_comm_hook(bps.exchange("median"), bps.hook)
        for model in [*models, *models]:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        dist.destroy_process_group()

    fork(2, body)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "buckets", "together"), [(None, 0.0005, True), ("geometric_median", 0.0005, True), (None, 25, False)]
)
def test_models_with_the_hook_have_an_exchange_each(rule, buckets, together):
    def body():
        import torch.distributed as dist

        dist.init_process_group("gloo")

        def pair():
            return [torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=buckets) for _ in range(2)]

        x, models = torch.ones(2, 6), pair()
        for model in models:
            model.register_comm_hook(bps.exchange(rule), bps.hook)
        for _ in range(2):
            sum(model(x).sum() for model in models).backward()
        for a, b in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        shared, models = bps.exchange(rule), pair()
        for model in models:
            model.register_comm_hook(shared, bps.hook)
        wrong = pytest.raises((SpecError, RunError), match=r"one exchange\(\) per model")
        if together:  # in all processes: one may hear of it from another
            with wrong:
                sum(model(x).sum() for model in models).backward()
        else:
            models[0](x).sum().backward()
            with wrong:
                if bps.rank() == 1:
                    models[1](x).sum().backward()
                bps.push_pull(torch.ones(1), name="after")
        with pytest.raises(RunError, match=r"one exchange\(\) per model"):
            bps.push_pull(torch.ones(1), name="the session has ended")
        time.sleep(1)  # the other process may still read the memory of this one
        os._exit(0)

    fork(2, body)


@pytest.mark.thorough
@pytest.mark.skipif(
    torch.__version__.startswith("2.3."), reason="its DistributedDataParallel broadcasts none over gloo"
)
def test_the_hook_combines_complex_gradients():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.spectrum = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.complex64))
            self.bias = torch.nn.Parameter(torch.ones(5))

        def forward(self, x):
            return (self.spectrum * x).real.sum() + (self.bias * x.real).sum()

    def body():
        import torch.distributed as dist

        dist.init_process_group("gloo")
        every = [complex(1, 4), complex(2, -3), complex(9, 7)]
        for rule, wanted in ((None, complex(4, -8 / 3)), ("median", complex(2, -4)), ("geometric_median", None)):
            model = torch.nn.parallel.DistributedDataParallel(Model())
            model.register_comm_hook(bps.exchange(rule), bps.hook)
            for _ in range(3):  # the buckets of the second step are others
                model.zero_grad()
                model(torch.tensor(every[bps.rank()])).backward()
                found = model.module.spectrum.grad
                mean = bps.push_pull(torch.view_as_real(found), name="equal in all")
                assert torch.equal(torch.view_as_complex(mean), found)
                if wanted is not None:
                    assert found[2, 3].item() == pytest.approx(wanted)
                    assert model.module.bias.grad[4].item() == pytest.approx(wanted.real)
        dist.destroy_process_group()

    fork(3, body)


class OddBucket:
    """A bucket with fewer elements than its parameters."""

    def index(self):
        return 0

    def parameters(self):
        return [torch.ones(3, 4), torch.ones(5)]

    def buffer(self):
        return torch.ones(16)

    def is_last(self):
        return True


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("state", "given", "reason"),
    [
        (lambda: None, None, r"the state of the hook is None, not exchange\(\)"),
        (bps.exchange, OddBucket(), r"bucket 0 .* has 16 elements, and .* have 17, of the shapes \[3, 4\], \[5\]"),
        (bps.exchange, torch.ones(3), "it got a tensor: no process has whole gradients with fully_shard"),
        (bps.exchange, None, r"'ddp 0 bucket 0 \(0\)' is float8"),
    ],
)
def test_an_error_in_the_hook_ends_the_session_in_all_processes(state, given, reason):
    """Also if the script catches it; the others name the process."""

    read = multiprocessing.get_context("fork").Barrier(2)

    def body():
        torch.distributed.init_process_group("gloo")
        if bps.rank() == 1:
            bucket = OddBucket() if given is None else given
            if given is None:
                bucket.parameters = lambda: [torch.ones(4, 4)]
                bucket.buffer = lambda: torch.ones(16).to(torch.float8_e5m2)
            with pytest.raises(SpecError, match=reason):
                bps.hook(state(), bucket)
            with pytest.raises(RunError, match=reason):
                bps.push_pull(torch.ones(3), name="x")
        else:
            with pytest.raises(RunError, match=f"worker-1 has failed: .*{reason}"):
                bps.push_pull(torch.ones(3), name="x")
        read.wait(50)  # the other process may still read the memory of this one
        os._exit(0)

    fork(2, body)


def test_sharded_tensors_are_refused():
    sharding = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(sharding, "distribute_tensor"):
        pytest.skip("this torch has no public DTensor")

    def body():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        model = torch.nn.Linear(4, 4)
        model.weight = torch.nn.Parameter(sharding.distribute_tensor(model.weight.detach(), mesh))
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        for call in (
            lambda: bps.DistributedOptimizer(sgd, model.named_parameters()),
            lambda: bps.DistributedDataParallel(model),
            lambda: bps.broadcast_parameters(model.state_dict()),
            lambda: bps.push_pull(model.weight.detach(), name="weight"),
        ):
            with pytest.raises(SpecError, match=r"weight.* is a DTensor, as fully_shard .*\.full_tensor\(\)"):
                call()
        assert bps.push_pull(model.weight.detach().full_tensor(), name="whole").shape == (4, 4)
        dist.destroy_process_group()

    fork(2, body)


def test_torchrun_on_several_hosts_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(Neighbours, "reach", lambda self, cards, me: [False] * len(cards))
    with pytest.raises(AssertionError, match="on several hosts, start the script with `hpcps launch`"):
        fork(2, lambda: None)


@pytest.mark.thorough
def test_torchrun_names_the_process_that_does_not_call_init(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # that of torchrun
    found = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in {**found, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"worker-0 waited 1 s for worker-1 to call init\(\)"):
        bps.init(timeout=1.0)  # torch 2.2 takes whole seconds


def test_exchanges_in_inference_mode_do_not_spoil_later_ones():
    def body():
        with torch.inference_mode():
            given = torch.ones(5000)
            handle = bps.push_pull_async(given)
            assert bps.push_pull(given, name="accuracy").tolist() == [1.0] * 5000
            assert bps.synchronize(handle).tolist() == [1.0] * 5000
            bps.synchronize(bps.push_pull_async_inplace(given, average=False, name="in place"))
        assert given.tolist() == [2.0] * 5000
        assert bps.push_pull(torch.ones(5000)).tolist() == [1.0] * 5000
        assert bps.push_pull(torch.full((5000,), 3.0), name="accuracy").tolist() == [3.0] * 5000

    fork(2, body)


def test_a_step_with_a_closure_is_that_of_one_process():
    class Own(torch.optim.SGD):
        def step(self):
            return super().step()

    def train(targets, wrap):
        parameter = torch.nn.Parameter(torch.zeros(3))
        own = wrap(torch.optim.LBFGS([parameter], line_search_fn="strong_wolfe", max_iter=5))

        def closure():
            own.zero_grad()
            loss = sum(((parameter - target) ** 4).sum() for target in targets) / len(targets)
            loss.backward()
            return loss

        return [own.step(closure).item() for _ in range(3)], parameter.detach()

    def body():
        targets = [torch.tensor([1.0, 5.0, -2.0]), torch.tensor([3.0, -1.0, 0.5])]
        losses, found = train([targets[bps.rank()]], bps.DistributedOptimizer)
        wanted, alone = train(targets, lambda optimizer: optimizer)
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
        np.testing.assert_allclose(found, alone, rtol=1e-4)
        parameter = torch.nn.Parameter(torch.zeros(2))
        own = bps.DistributedOptimizer(Own([parameter], lr=1.0))
        (parameter * (1.0 + bps.rank())).sum().backward()
        own.step()
        assert parameter.tolist() == [-1.5, -1.5]
        plain = bps.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0))
        assert plain.step(lambda: None) is None

    fork(2, body)


def test_a_rule_that_gives_zero_for_so_few_processes_is_refused():
    def body():
        for rule in ("trimmed_mean", "phocas"):
            with pytest.raises(SpecError, match="the result of 2 processes would be zero: start at least 3"):
                bps.push_pull(torch.ones(3), rule=rule)
        assert bps.push_pull(torch.ones(3), rule={"kind": "trimmed_mean", "f": 0}).tolist() == [1.0] * 3

    fork(2, body)


@pytest.mark.usefixtures("starts_processes")
def test_the_end_of_a_forked_child_is_not_that_of_its_parent(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, signal, sys, torch\nimport hpcps.torch as bps\nbps.init()\nbps.shutdown()\nbps.init()\n"
        "for _ in range(3):\n    child = os.fork()\n    if not child:\n"
        "        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n        sys.exit(3)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "print(bps.push_pull(torch.ones(2)).tolist())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[1.0, 1.0]\n"), done.stderr


@pytest.mark.usefixtures("starts_processes")
def test_an_error_at_the_end_of_a_script_is_its_exit_status(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import time, torch\nimport hpcps.torch as bps\nbps.init(timeout=4)\n"
        "if bps.rank() == 0:\n    bps.push_pull_async(torch.ones(3), name='a')\nelse:\n    time.sleep(7)\n"
    )
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, script],
            env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert "waited 4 s for worker-1 in tensor 'a'" in said[0]
    assert [process.returncode for process in both] == [1, 1], said


@pytest.mark.thorough
def test_sessions_of_one_process_leave_nothing_behind():
    def session():
        bps.init(alone=True)
        model = torch.nn.Linear(6, 2)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        bps.shutdown()
        gc.collect()

    def state():
        # A new file descriptor takes the lowest number that is free.
        with open(os.devnull) as lowest:
            return lowest.fileno(), sys.excepthook, sys.exit, vars(builtins)["exit"], signal.getsignal(signal.SIGTERM)

    session()
    before = state()
    session()
    assert state() == before


def test_one_process_needs_nothing():
    environment = {name: os.environ.pop(name) for name in ("WORLD_SIZE", "RANK") if name in os.environ}
    try:
        with pytest.raises(RunError, match="init"):
            bps.push_pull(torch.ones(3))
        bps.init()
        assert (bps.rank(), bps.size()) == (0, 1)
        assert bps.push_pull(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
        x = torch.tensor(3.0, requires_grad=True)
        slope = torch.autograd.grad(bps.push_pull(x) ** 3, x, create_graph=True)[0]
        assert torch.autograd.grad(slope, x)[0] == 18.0  # the second derivative
        assert [operation(value, None) for value in (None, True, 1, False, 0)] == ["mean"] * 3 + ["sum"] * 2
    finally:
        bps.shutdown()
        os.environ.update(environment)

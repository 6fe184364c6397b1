"""The names of Horovod and BytePS: scripts that make the calls of their examples, and what each name does.

The scripts are our own; they stand for pytorch_mnist, pytorch_synthetic_benchmark and pytorch_imagenet_resnet50 of
Horovod, and train_mnist_byteps, train_imagenet_resnet50_byteps, its form with DistributedDataParallel, and
microbenchmark-byteps of BytePS.
"""

import copy
import importlib
import math
import pickle
import timeit
from unittest.mock import MagicMock, patch

import pytest
from forked import fork

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import hpcps.torch as hvd  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.protocol.messages import Peer  # noqa: E402
from hpcps.session.session import Session  # noqa: E402
from hpcps.torch.compatibility import ABSENT  # noqa: E402

bps = hvd

HOROVOD = """
Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet Product Sum SyncBatchNorm
add_process_set allgather allgather_async allgather_object allreduce allreduce_ allreduce_async allreduce_async_
alltoall alltoall_async barrier broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object
broadcast_optimizer_state broadcast_parameters ccl_built check_extension cross_rank cross_size cuda_built ddl_built
elastic functions global_process_set gloo_built gloo_enabled grouped_allgather grouped_allgather_async
grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
grouped_reducescatter_async handle_average_backwards_compatibility init is_homogeneous is_initialized join
local_rank local_size mlsl_built mpi_built mpi_enabled mpi_ops mpi_threads_supported nccl_built poll rank
reducescatter reducescatter_async remove_process_set rocm_built shutdown size sparse_allreduce_async start_timeline
stop_timeline sync_batch_norm synchronize
"""
BYTEPS = """
BytePSPushPull Compression CrossBarrier DistributedOptimizer broadcast_object broadcast_optimizer_state
broadcast_parameters byteps_push_pull byteps_torch_set_num_grads cross_barrier declare get_pushpull_speed init
local_rank local_size ops parallel poll push_pull push_pull_async push_pull_async_inplace
push_pull_group_sync_inplace push_pull_inplace rank resume shutdown size suspend synchronize
"""
"""Their public names, of all versions."""


@pytest.mark.parametrize("module", ["hpcps.torch", "hpcps.torch.mpi_ops", "hpcps.torch.ops"])
def test_every_name_of_horovod_and_byteps_is_there_or_says_what_to_use(module):
    found, refused = importlib.import_module(module), []
    absent = [name for row in ABSENT for name in row.names]
    assert len(set(absent)) == len(absent)
    for name in {*HOROVOD.split(), *BYTEPS.split(), *absent}:
        if name not in absent:
            assert getattr(found, name) is not None
            continue
        with pytest.raises(SpecError, match=f"^hpcps.torch has no {name}, a name of (Horovod|BytePS): .*"):
            getattr(found, name)
        refused.append(name)
    assert sorted(refused) == sorted(absent)
    with pytest.raises(AttributeError, match="no attribute 'median'"):
        _ = found.median


def test_an_argument_that_has_no_meaning_is_named():
    one = torch.nn.Parameter(torch.ones(1))
    for call, words in (
        (lambda: hvd.init(comm=[0, 1]), "hpcps.torch has no comm=, a name of Horovod: `hpcps launch` or mpirun says"),
        (lambda: hvd.init(lazy=True), "hpcps.torch has no lazy=, a name of BytePS: init always waits for the other"),
        (
            lambda: hvd.allreduce(one, process_set=None),
            "has no process_set=, a name of Horovod: all processes exchange",
        ),
        (lambda: hvd.DistributedOptimizer(torch.optim.SGD([one]), num_groups=2), "has no num_groups=, a name of Horo"),
    ):
        with pytest.raises(SpecError, match=words):
            call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'median'"):
        hvd.allreduce(one, median=True)


def test_a_tensor_of_one_element_of_a_strided_one():
    def body():
        (one,) = torch.arange(4.0)[::3].split(1)[1:]
        assert hvd.broadcast(one, 0).tolist() == [3.0]
        assert hvd.allgather(one).tolist() == [3.0, 3.0]

    fork(2, body)


def test_a_from_import_says_it_too():
    with pytest.raises(SpecError, match=r"no SyncBatchNorm, a name of Horovod: .* use torch\.nn\.GroupNorm"):
        exec("from hpcps.torch import SyncBatchNorm")


def test_the_page_has_the_table_of_names():
    from generate.names import table

    lines = table().splitlines()
    assert len(lines) == 2 + len(ABSENT)
    assert all(f"`{name}`" in line for row, line in zip(ABSENT, lines[2:], strict=True) for name in row.names)


def everywhere(processes, body):
    """Call a function in several processes, or in this one alone."""
    if processes > 1:
        fork(processes, body)
        return
    hvd.init(alone=True)
    try:
        body()
    finally:
        hvd.shutdown()


def bits(dtype, shape, seed):
    """Return a tensor of any bits, as far as its type has them."""
    most = 2 if dtype == torch.bool else 256
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, most, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_broadcasts_and_allgathers_keep_the_bits_of_every_type(processes):
    def body():
        rank, size = hvd.rank(), hvd.size()
        root = size - 1
        names = ("float32", "complex64", "complex128", "uint16", "bool", "float8_e4m3fn", "bfloat16", "int64")
        for dtype in (getattr(torch, name) for name in names if hasattr(torch, name)):
            for shape in ((), (3,), (0, 2), (30_000,)):
                own, wanted = (bits(dtype, shape, seed).view(dtype).reshape(shape) for seed in (rank, root))
                handle = hvd.broadcast_async(own, root)
                results = [hvd.broadcast(own, root, name="x"), hvd.broadcast(own, root), hvd.synchronize(handle)]
                in_place, again = own.clone(), own.clone()
                assert hvd.broadcast_(in_place, root) is in_place
                assert hvd.synchronize(hvd.broadcast_async_(again, root, "y")) is again
                for result in (*results, in_place, again):
                    assert same_bits(result, wanted)
                if rank != root and shape == (30_000,):
                    assert not same_bits(own, wanted)
            every = [bits(dtype, (k, 5), k).view(dtype).reshape(k, 5) for k in range(size)]
            handle = hvd.allgather_async(every[rank], name="async")
            for got in (hvd.allgather(every[rank]), hvd.allgather(every[rank], name="g"), hvd.synchronize(handle)):
                assert same_bits(got, torch.cat([each.view(torch.uint8) for each in every]).view(dtype))
        conjugate = torch.full((20_000,), 1 + 1j * rank).conj()
        hvd.broadcast_(conjugate, root)
        assert conjugate[7] == 1 - 1j * root
        assert hvd.allgather(torch.tensor(rank)).tolist() == [*range(size)]
        assert hvd.allgather(torch.zeros(rank + 1, 0)).shape == (size * (size + 1) // 2, 0)
        assert hvd.allgather_object({"rank": rank, "x": "y" * 1000 * rank})[-1] == {
            "rank": root,
            "x": "y" * 1000 * root,
        }
        hvd.barrier()

    everywhere(processes, body)


def same_bits(a, b):
    values = [each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b)]
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(*values)


def test_an_allgather_makes_progress_without_the_others_waiting_for_it():
    def body():
        handle = hvd.allgather_async(torch.full((hvd.rank(),), 7))
        if hvd.rank() == 1:
            assert hvd.synchronize(handle).tolist() == [7, 7, 7]
        hvd.push_pull(torch.ones(1), name="later")  # the others wait for it only now
        if hvd.rank() != 1:
            while not hvd.poll(handle):
                pass
            assert hvd.synchronize(handle).tolist() == [7, 7, 7]

    fork(3, body)


def test_the_gradients_of_broadcast_and_allgather():
    def body():
        rank, size = hvd.rank(), hvd.size()
        x = torch.ones(rank + 1, requires_grad=True)
        (hvd.allgather(x, name="x") * torch.arange(6.0) * (rank + 1)).sum().backward()
        first = rank * (rank + 1) // 2
        assert x.grad.tolist() == [6.0 * (first + k) for k in range(rank + 1)]
        y = torch.ones(2, requires_grad=True)
        (hvd.broadcast(y, 1, name="y") * (rank + 1)).sum().backward()
        assert y.grad.tolist() == [6.0 * (rank == 1)] * 2
        assert not hvd.allreduce(y, op=hvd.Max).requires_grad
        assert size == 3

    fork(3, body)


@pytest.mark.parametrize("processes", [1, 3])
def test_operations_factors_and_groups_of_allreduce(processes):
    def body():
        rank, size = hvd.rank(), hvd.size()
        last = size - 1
        x = torch.tensor([rank, 5 - rank])
        assert hvd.allreduce(x, op=hvd.Max).tolist() == [last, 5]
        assert hvd.allreduce(x, op=hvd.Min, name="x").tolist() == [0, 5 - last]
        handle = hvd.allreduce_async(torch.tensor([rank + 1.5]), op=hvd.Product)
        assert hvd.synchronize(handle).tolist() == [math.prod(k + 1.5 for k in range(size))]
        ones = torch.ones(2)
        factors = {"prescale_factor": 0.5, "postscale_factor": 3.0, "op": hvd.Sum}
        assert hvd.allreduce(ones, **factors).tolist() == hvd.allreduce_(ones.clone(), **factors).tolist()
        assert hvd.allreduce(ones, name="f", **factors).tolist() == [1.5 * size] * 2
        assert hvd.synchronize(hvd.allreduce_async(ones, **factors)).tolist() == [1.5 * size] * 2
        assert ones.tolist() == [1, 1]
        pair = [torch.full((2,), float(rank)), torch.ones(3)]
        for got in (
            hvd.grouped_allreduce(pair, op=hvd.Sum, name="pair"),
            hvd.synchronize(hvd.grouped_allreduce_async(pair, op=hvd.Sum)),
            hvd.grouped_allreduce_([each.clone() for each in pair], op=hvd.Sum),
            hvd.synchronize(hvd.grouped_allreduce_async_(pair, op=hvd.Sum)),
        ):
            assert [each.tolist() for each in got] == [[size * last / 2] * 2, [size] * 3]
        assert pair[1].tolist() == [size] * 3
        (with_gradient,) = hvd.grouped_allreduce([torch.ones(2, requires_grad=True)])
        assert with_gradient.requires_grad
        assert hvd.push_pull_inplace(ones, False, "ones") is ones
        assert ones.tolist() == [size] * 2
        assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
        assert {hvd.mpi_enabled(), hvd.nccl_built(), hvd.gloo_enabled(), hvd.cuda_built()} == {False}
        assert isinstance(hvd.mpi_built(), bool)

    everywhere(processes, body)


@pytest.mark.parametrize(("rank", "wanted"), [(0, (0, 2, 0, 2)), (1, (1, 2, 0, 1)), (2, (0, 1, 1, 2))])
def test_the_ranks_within_and_across_hosts(rank, wanted):
    hosts, group = ["one", "one", "two"], MagicMock(rank=rank)
    group.backoff.return_value.longest = 1.0
    group.collect.return_value = [f"{host} False" for host in hosts]
    with patch("socket.gethostname", lambda: hosts[rank]):
        found = Session(group, [Peer("worker", k) for k in range(3)])
    assert (found.local_rank, found.local_size, found.cross_rank, found.cross_size) == wanted
    assert not found.homogeneous


def test_bad_input_names_the_tensor_and_the_remedy():
    def body():
        x = torch.ones(3)
        for wrong, words in (
            (lambda: hvd.broadcast(x, 2, "w"), "the root_rank of tensor 'w' is 2: the ranks go from 0 to 1"),
            (lambda: hvd.broadcast_(x, "0"), "of a tensor without a name is '0': the ranks go from 0 to 1"),
            (lambda: hvd.allreduce(x, op="mode"), "op is 'mode': use Average, Sum, Min, Max or Product, or a rule"),
            (lambda: hvd.allreduce(x, op=hvd.Max, rule="median"), "leave out op=Max, or rule="),
            (lambda: hvd.allreduce(x, op=hvd.Min, compression="onebit"), "a compressor is for the mean or a rule"),
            (
                lambda: hvd.push_pull(x, version=1),
                "version is 1: the exchanges of a tensor go one after another: leave it out",
            ),
            (lambda: hvd.push_pull_async(x, priority="high"), "priority is 'high': give a whole number; a larger"),
            (lambda: hvd.push_pull_inplace(x, priority=0.5), "priority is 0.5: give a whole number; a larger"),
            (lambda: hvd.allreduce(x, prescale_factor=math.inf), "prescale_factor is inf: give a finite number"),
            (lambda: hvd.allreduce_(x.int(), name="i", op=hvd.Sum, postscale_factor=2.0), "'i' is torch.int32: post"),
            (lambda: hvd.allgather(torch.eye(2).to_sparse(), "s"), "tensor 's' is sparse: use"),
            (lambda: hvd.allgather(3), "expect a tensor, not 3"),
            (lambda: hvd.push_pull(x.to(torch.complex64), False, "c"), "'c' is complex64: only a broadcast or an allg"),
            (lambda: hvd.push_pull(x, rule={"kind": "median", "before": ["nmn"]}), 'got "nmn": did you mean "nnm"'),
        ):
            with pytest.raises(SpecError, match=words):
                wrong()
        got = hvd.push_pull(x, name="before", rule={"kind": "median", "before": ["nnm"]})
        assert got.tolist() == [1, 1, 1]
        hvd.barrier()

    fork(2, body)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rank: hvd.broadcast(torch.ones(3 + rank), 0, "w"), r"'broadcast/w \((3|4),\) torch.float32 of rank 0'"),
        (lambda rank: hvd.broadcast(torch.ones(3), rank, "w"), "of rank (0|1)', 3 x float32, broadcast"),
        (lambda rank: hvd.broadcast(torch.ones(3, dtype=(torch.int32, torch.float32)[rank]), 0), "3 x (int|float)32"),
        (
            lambda rank: hvd.allgather(torch.ones(2, 3 + rank), "w"),
            r"\('rows', (3|4)\).*', rows of (3|4) x",
        ),
        (lambda rank: hvd.allreduce(torch.ones(3), name="w", op=(hvd.Max, hvd.Min)[rank]), "3 x float32, (max|min)"),
    ],
)
def test_calls_that_differ_between_the_processes_name_the_tensor_and_the_process(call, message):
    def body():
        hvd.barrier()
        with pytest.raises(RunError, match=f"differs: worker-. declares .*{message}|has ended"):
            call(hvd.rank())

    fork(2, body)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    )


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, 6, generator=generator), torch.randint(0, 3, (64,), generator=generator)


def check_equal_everywhere(model):
    """Check that all processes have the same parameters, and that they have moved."""
    for name, value in model.named_parameters():
        every = hvd.allgather(value.detach()[None], name=f"check {name}")
        assert all(torch.equal(each, every[0]) for each in every), name
        assert not torch.equal(value, dict(network().named_parameters())[name]), name


def in_one_process(gradients_of, lr, momentum, steps, weight_decay=0.0):
    """Return the parameters that one process has after SGD with the mean of the gradients of all."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            gradients_of(copy.copy(model), rank, step)
        for parameter in model.parameters():
            parameter.grad /= hvd.size()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def own_samples(rank, step, size=8):
    x, y = samples()
    order = list(DistributedSampler(range(len(x)), hvd.size(), rank, seed=0))
    part = order[step * size : (step + 1) * size]
    return x[part], y[part]


def gradients_of(model, rank, step):
    x, y = own_samples(rank, step)
    functional.cross_entropy(model(x), y).backward()


def mnist_of_horovod():
    torch.manual_seed(42 + hvd.rank())
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += hvd.rank()
    sampler = DistributedSampler(TensorDataset(*samples()), num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(TensorDataset(*samples()), batch_size=8, sampler=sampler)
    lr_scaler = hvd.local_size() if hvd.nccl_built() else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * lr_scaler, momentum=0.5 + 0.1 * hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none, op=hvd.Average,
        gradient_predivide_factor=1.0,
    )  # fmt: skip
    model.train()
    sampler.set_epoch(0)
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    accuracy = hvd.allreduce(torch.tensor(float(hvd.rank())), name="avg_accuracy")
    assert accuracy.item() == (hvd.size() - 1) / 2
    check_equal_everywhere(model)
    wanted = in_one_process(gradients_of, 0.1 * hvd.size(), 0.5, len(loader))
    torch.testing.assert_close([*model.parameters()], wanted, rtol=1e-5, atol=1e-6)


def mixed_precision_and_predivision_of_horovod():
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16, gradient_predivide_factor=2.0**10,
    )  # fmt: skip
    x, y = own_samples(hvd.rank(), 0)
    optimizer.zero_grad()
    (65_536 * 4 * functional.cross_entropy(model(x), y)).backward()  # as a GradScaler does; float16 ends at 65,504
    optimizer.synchronize()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad /= 65_536 * 4
    with optimizer.skip_synchronize():
        optimizer.step()
    wanted = in_one_process(gradients_of, 0.1, 0.0, 1)
    torch.testing.assert_close([*model.parameters()], wanted, rtol=1e-3, atol=1e-3)


def synthetic_benchmark():
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16, op=hvd.Average,
    )  # fmt: skip
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    x, y = own_samples(hvd.rank(), 0)

    def benchmark_step():
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    assert timeit.timeit(benchmark_step, number=3) > 0
    check_equal_everywhere(model)


def imagenet_of_horovod():
    resume = torch.tensor(7 if hvd.rank() == 0 else 0)
    assert hvd.broadcast(resume, root_rank=0, name="resume_from_epoch").item() == 7
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none,
        backward_passes_per_step=2, op=hvd.Average, gradient_predivide_factor=1.0,
    )  # fmt: skip
    if hvd.rank() == 0:
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    metric, seen = torch.tensor(0.0), 0

    def passes(model, rank, step):
        for half in (0, 1):
            x, y = own_samples(rank, 2 * step + half)
            loss = functional.cross_entropy(model(x), y)
            loss.div(2).backward()
        return loss

    steps = max(1, 64 // hvd.size() // 16)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (step + 1)
        optimizer.zero_grad()
        loss = passes(model, hvd.rank(), step)
        optimizer.step()
        metric, seen = metric + hvd.allreduce(loss.detach().cpu(), name="train_loss"), seen + 1
    assert math.isfinite(metric / seen)
    check_equal_everywhere(model)
    if steps == 1:
        wanted = in_one_process(passes, 0.1, 0.9, 1, 5e-5)
        torch.testing.assert_close([*model.parameters()], wanted, rtol=1e-5, atol=1e-6)


def mnist_of_byteps():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * bps.size(), momentum=0.5)
    optimizer = bps.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=bps.Compression.none
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0, prefix="Parameter.")
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    assert any(name.startswith("Parameter.0.weight ") for name in bps.state.session().declared)
    steps = 64 // bps.size() // 8
    for step in range(steps):
        x, y = own_samples(bps.rank(), step)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    loss = torch.tensor(float(bps.rank()))
    assert bps.push_pull(loss, name="mean_loss", average=True, version=0, priority=0).item() == (bps.size() - 1) / 2
    bps.declare("sum_accuracy")
    assert bps.push_pull_inplace(loss, average=False, name="sum_accuracy") is loss
    wanted = in_one_process(gradients_of, 0.1 * bps.size(), 0.5, steps)
    torch.testing.assert_close([*model.parameters()], wanted, rtol=1e-5, atol=1e-6)


def imagenet_of_byteps():
    model = network()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    bps.declare("acc")
    bps.synchronize(bps.byteps_push_pull(torch.empty(2), name="acc"))
    optimizer.set_backward_passes_per_step(2)
    for half in (0, 1):
        x, y = own_samples(bps.rank(), half)
        functional.cross_entropy(model(x), y).div(2).backward()
    optimizer.step()
    handle = bps.byteps_push_pull(torch.tensor([float(bps.rank()), 1.0]), name="acc")
    assert bps.synchronize(handle).tolist() == [(bps.size() - 1) / 2, 1]
    check_equal_everywhere(model)


def imagenet_of_byteps_with_ddp():
    from hpcps.torch.parallel import DistributedDataParallel

    model = network()
    with torch.no_grad():
        model[1].running_mean += bps.rank()
        model[0].weight += bps.rank()
    model = DistributedDataParallel(model, device_ids=[0], broadcast_buffers=False)
    assert model.module[1].running_mean.tolist() == [float(bps.rank())] * 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = 64 // bps.size() // 8
    for step in range(steps):
        x, y = own_samples(bps.rank(), step)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        model.synchronize()
        optimizer.step()
    wanted = in_one_process(gradients_of, 0.1, 0.9, steps)
    torch.testing.assert_close([*model.parameters()], wanted, rtol=1e-5, atol=1e-6)


def microbenchmark_of_byteps():
    from hpcps.torch.ops import poll, push_pull_async_inplace, synchronize

    for size in (1, 100, 20_000):
        data = torch.full((size,), float(bps.rank()))
        handle = push_pull_async_inplace(data, True, str(size))
        while not poll(handle):
            pass
        synchronize(handle)
        assert data[-1] == (bps.size() - 1) / 2


SCRIPTS = [
    mnist_of_horovod,
    mixed_precision_and_predivision_of_horovod,
    synthetic_benchmark,
    imagenet_of_horovod,
    mnist_of_byteps,
    imagenet_of_byteps,
    imagenet_of_byteps_with_ddp,
    microbenchmark_of_byteps,
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_scripts_that_make_the_calls_of_the_examples(processes):
    def body():
        for script in SCRIPTS:
            script()

    everywhere(processes, body)


def test_an_optimizer_is_copied_without_its_session():
    def body():
        model = network()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        gradients_of(model, hvd.rank(), 0)
        optimizer.step()
        for made in (copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert type(made) is torch.optim.SGD
            assert made.param_groups[0]["lr"] == 0.1
            assert len(made.state) == 5
            made.step()  # of this process alone
        hvd.barrier()

    fork(2, body)


def test_mistakes_with_the_arguments_of_the_optimizer():
    def body():
        def wrapped(**keys):
            return hvd.DistributedOptimizer(torch.optim.SGD(network().parameters(), lr=0.1), **keys)

        for wrong, words in (
            ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor is 0.0: give a positive number"),
            ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "is for the mean of gradients: leave it out"),
            ({"gradient_predivide_factor": 2.0, "rule": "median"}, "is for the mean of gradients: leave it out"),
            ({"op": hvd.Max}, "op is max: steps use the mean or the sum of gradients"),
        ):
            with pytest.raises(SpecError, match=words):
                wrapped(**wrong)
        optimizer = wrapped(backward_passes_per_step=2)
        with pytest.raises(SpecError, match="must be a whole number from 1, not 0"):
            optimizer.set_backward_passes_per_step(0)
        (parameter, *_) = optimizer.param_groups[0]["params"]
        parameter.sum().backward()
        with pytest.raises(RunError, match=r"between a backward pass and its step: call it after step\(\)"):
            optimizer.set_backward_passes_per_step(1)
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(1)
        hvd.barrier()

    fork(2, body)

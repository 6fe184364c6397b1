"""Sparse tensors and gradients: they have the same bits as dense ones, and only their rows travel."""

import multiprocessing
import os
import warnings
from contextlib import suppress

import pytest
from forked import fork

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # optimizers import it: here once, and not in every process

import hpcps.torch as bps  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.session.current import session  # noqa: E402

WORDS, WIDTH = 40, 3
FORMS = [((9, 4), 1), ((9,), 1), ((4, 3, 2), 2), ((3, 3), 2), ((5, 0), 1)]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.bool]


def alone(body):
    """Call `body()` as the only process."""
    bps.init(alone=True)
    try:
        body()
    finally:
        with suppress(RunError):  # of which the body knows
            bps.shutdown()


def drawn(shape, indices, dtype, rank):
    """Return a tensor of which some rows are zero; that of rank 1 has none but zeros."""
    draw = torch.Generator().manual_seed(rank)
    rows = torch.rand(shape[:indices], generator=draw) < (0.0 if rank == 1 else 0.4)
    values = torch.randint(1, 9, shape, generator=draw) / 7
    return (values * rows.reshape(*rows.shape, *[1] * (len(shape) - indices))).to(dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("types", [TYPES[k : k + 2] for k in range(0, len(TYPES), 2)], ids=str)
def test_sparse_tensors_of_every_type_and_form(types):
    def body():
        for dtype in types:
            for shape, indices in FORMS:
                dense = drawn(shape, indices, dtype, bps.rank())
                for average in (True, False) if dtype.is_floating_point else (False,):
                    wanted = bps.push_pull(dense, average)
                    given = dense.to_sparse(indices)
                    found = bps.push_pull(given, average, name=f"{dtype} {shape} {average}")
                    assert found.layout is torch.sparse_coo
                    assert torch.equal(found.to_dense(), wanted)
                    assert torch.equal(given.to_dense(), dense)
                    handle = bps.push_pull_async_inplace(given, average)
                    assert bps.synchronize(handle) is given
                    assert torch.equal(given.to_dense(), wanted)

    fork(3, body)


@pytest.mark.thorough
def test_calls_of_horovod():
    def body():
        rank = bps.rank()
        given = torch.sparse_coo_tensor([[1, 1, rank]], [1.0, 2.0, 4.0], (3,), check_invariants=True)  # one twice
        total = torch.tensor([4.0, 6.0 + 4.0, 0.0])
        assert torch.equal(bps.sparse_allreduce_async(given, "a", bps.Sum)().to_dense(), total)
        assert torch.equal(bps.sparse_allreduce_async(given, "b")().to_dense(), total / 2)
        assert torch.equal(bps.allreduce(given, op=bps.Sum, postscale_factor=0.5).to_dense(), total / 2)
        (found,) = bps.grouped_allreduce_([given.clone()], op=bps.Sum, prescale_factor=0.5)
        assert torch.equal(found.to_dense(), total / 2)
        leaf = given.clone().requires_grad_()
        bps.push_pull(leaf).to_dense().sum().backward()
        assert leaf.grad.to_dense().tolist() == [1.0, 1.0, 0.0]  # torch: of the indices of the result

    fork(2, body)


def trained(sparse, *, steps=4, words=WORDS, optimizer=torch.optim.SGD, wrapped=False, skips=(), **arguments):
    """Return the parameters after some steps, and the last gradient of the embedding."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(words, WIDTH, sparse=sparse), torch.nn.Flatten(), torch.nn.Linear(4 * WIDTH, 2)
    )
    used = optimizer(model.parameters(), lr=0.02)
    passes = arguments.get("backward_passes_per_step", 1)
    called = model
    if wrapped:
        called = bps.DistributedDataParallel(model, **arguments)
    else:
        used = bps.DistributedOptimizer(used, model.named_parameters(), **arguments)
    draw = torch.Generator().manual_seed(bps.rank())
    for step in range(steps):
        used.zero_grad()
        for _ in range(passes):
            batch = torch.randint(0, WORDS, (2, 4), generator=draw)
            if (bps.rank(), step) in skips:  # its embedding has no gradient
                called[2](torch.ones(2, 4 * WIDTH)).sum().backward()
            else:
                called(batch).square().sum().backward()
        used.step()
    return [parameter.detach().clone() for parameter in model.parameters()], model[0].weight.grad


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        # Sums of several passes are rounded in another order.
        {"backward_passes_per_step": 2, "close": 1e-6},
        {"compression": bps.Compression.fp16},
        {"wrapped": True},
        {"skips": ((0, 0), (1, 2), (0, 3), (1, 3), (2, 3))},
        {"op": bps.Sum},
        {"gradient_predivide_factor": 2.0},
    ],
    ids=str,
)
def test_steps_with_sparse_gradients_equal_those_with_dense_ones(arguments):
    arguments = dict(arguments)
    close = arguments.pop("close", 0.0)

    def body():
        parameters, gradient = trained(True, **arguments)
        others, _ = trained(False, **arguments)
        for one, other in zip(parameters, others, strict=True):
            assert torch.allclose(one, other, rtol=close, atol=close)
        assert gradient is None if "skips" in arguments else gradient.layout is torch.sparse_coo

    fork(3, body)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "arguments", [{"sparse_as_dense": True}, {"rule": "median"}, {"compression": "onebit"}], ids=str
)
def test_what_takes_all_values_gets_dense_gradients(arguments):
    def body():
        parameters, gradient = trained(True, **arguments)
        others, _ = trained(False, **{k: v for k, v in arguments.items() if k != "sparse_as_dense"})
        for one, other in zip(parameters, others, strict=True):
            assert torch.equal(one, other)
        assert gradient.layout is torch.strided

    fork(3, body)


@pytest.mark.thorough
def test_an_optimizer_for_sparse_gradients():
    """SparseAdam refuses dense gradients, also in the first step, and also of a process whose embedding was unused."""

    def body():
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(WORDS, WIDTH, sparse=True)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SparseAdam(embedding.parameters()), embedding.named_parameters()
        )
        for step in range(3):
            if bps.rank() != step % 2:
                embedding(torch.tensor([step, step + bps.rank()])).sum().backward()
            optimizer.step()
            assert embedding.weight.grad.layout is torch.sparse_coo
            optimizer.zero_grad()
        every = bps.allgather(embedding.weight.detach().reshape(1, -1))
        assert torch.equal(every[0], every[1])

    fork(2, body)


@pytest.mark.thorough
def test_a_gradient_with_indices_of_elements_is_exchanged_as_a_dense_one():
    def body():
        weight = torch.nn.Parameter(torch.zeros(3, 2))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, [("weight", weight)])
        for _ in range(2):
            optimizer.zero_grad()
            table = torch.full((3, 2), 2.0 * bps.rank()).to_sparse()
            torch.sparse.sum(table * weight).backward()
            optimizer.step()
            assert weight.grad.layout is torch.strided
        assert torch.equal(weight, torch.full((3, 2), -2.0))

    fork(2, body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sparse_gradient_that_comes_before_dense_ones(wrapped):
    """The backward pass reaches the embedding, which is used last, first."""

    def body():
        found = []
        for sparse in (True, False):
            torch.manual_seed(0)
            table, bias = torch.nn.Embedding(WORDS, 2, sparse=sparse), torch.nn.Linear(1, 2)
            model = torch.nn.ModuleDict({"table": table, "bias": bias})
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if wrapped:
                bps.DistributedDataParallel(model)
            else:
                optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
            for step in range(3):
                optimizer.zero_grad()
                first = bias(torch.ones(2, 1))
                (first * table(torch.tensor([step, bps.rank() + 3]))).sum().backward()
                if not wrapped:
                    assert optimizer._gradients.begun
                optimizer.step()
            found.append([parameter.detach() for parameter in model.parameters()])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)

    fork(2, body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("arguments", [{"rule": "median"}, {"compression": "onebit"}, {}], ids=str)
def test_sparse_gradients_that_no_hook_has_seen(arguments):
    """They are of a backward pass in `no_sync`; in the first pass, which decides without a rule, they are None."""

    def body():
        table, bias = torch.nn.Parameter(torch.zeros(6, 2)), torch.nn.Parameter(torch.zeros(2))
        holder = torch.nn.Module()
        holder.table, holder.bias = table, bias
        model = bps.DistributedDataParallel(holder, **arguments)
        bias.sum().backward()
        with model.no_sync():
            torch.nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
        bias.sum().backward()
        assert table.grad.layout is torch.strided
        assert table.grad[1].tolist() == [1.0, 1.0]

    fork(2, body)


def test_a_sparse_gradient_of_the_script():
    def body():
        weight = torch.nn.Parameter(torch.zeros(6, 2))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, [("weight", weight)])
        for _ in range(2):
            optimizer.step()
            weight.grad = torch.eye(6, 2).to_sparse(1)
        weight.grad = torch.eye(6, 2).to_sparse()
        optimizer.step()
        assert torch.equal(weight, -2 * torch.eye(6, 2))

    alone(body)


@pytest.mark.thorough
def test_a_factor_keeps_large_gradients_in_the_range_of_float16():
    def body():
        for sparse in (True, False):
            weight = torch.nn.Parameter(torch.zeros(6, 2))
            optimizer = torch.optim.SGD([weight], lr=1.0)
            options = {"compression": bps.Compression.fp16, "gradient_predivide_factor": 1000.0}
            optimizer = bps.DistributedOptimizer(optimizer, [("weight", weight)], **options)
            for _ in range(2):
                optimizer.zero_grad()
                rows = torch.nn.functional.embedding(torch.tensor([bps.rank()]), weight, sparse=sparse)
                (1e6 * rows).sum().backward()
                optimizer.step()
            assert torch.equal(weight[:3, 0], torch.tensor([-1e6, -1e6, 0]))

    fork(2, body)


@pytest.mark.thorough
def test_many_rows_are_combined_in_parts(monkeypatch):
    monkeypatch.setattr("hpcps.torch.rows._TILE", 50)

    def body():
        every = [drawn((90, 3), 1, torch.float64, rank) for rank in range(3)]
        wanted = bps.push_pull(every[bps.rank()])
        assert torch.equal(bps.push_pull(every[bps.rank()].to_sparse(1)).to_dense(), wanted)

    fork(3, body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dense_at", [0, 1])
def test_a_gradient_that_is_dense_in_one_process(dense_at):
    """In the first step it is exchanged as a dense one; in a later one, its rows are."""

    def body():
        weight = torch.nn.Parameter(torch.zeros(6, 2))
        bias = torch.nn.Parameter(torch.zeros(2))
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD([weight, bias], lr=1.0), [("weight", weight), ("bias", bias)]
        )
        for step in range(3):
            optimizer.zero_grad()
            sparse = bps.rank() == 0 or step != dense_at
            rows = torch.nn.functional.embedding(torch.tensor([1 + bps.rank(), 3]), weight, sparse=sparse)
            (rows.sum() + bias.sum()).backward()
            optimizer.step()
        assert torch.equal(weight[:, 0], torch.tensor([0, -1.5, -1.5, -3, 0, 0]))
        assert torch.equal(bias, torch.full((2,), -3.0))

    fork(2, body)


@pytest.mark.thorough
def test_only_rows_travel():
    def body():
        trained(True, words=500_000, steps=2)
        buckets = session().member.participant._buckets.values()
        memory = [vars(bucket).get("_values") for bucket in buckets]
        assert sum(each.nbytes for each in memory if each is not None) < 2_000_000, "the table has 6 MB"
        sent = [bucket._rows._memory._values.nbytes for bucket in buckets if hasattr(bucket, "_rows")]
        assert sum(sent) < 10_000

    fork(2, body)


def test_bad_input():
    def body():
        given = torch.eye(2).to_sparse()
        remedy = "takes all of its values: use to_dense"
        for call in (
            lambda: bps.push_pull(given, name="s", rule="median"),
            lambda: bps.allreduce(given, name="s", op=bps.Max),
            lambda: bps.push_pull(given, name="s", compression="onebit"),
            lambda: bps.sparse_allreduce_async(given, "s", bps.Min),
        ):
            with pytest.raises(SpecError, match=f"tensor 's' is sparse, which the mean and the sum combine.*{remedy}"):
                call()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch says that it tries the format out
            rows = torch.eye(2).to_sparse_csr()
        with pytest.raises(SpecError, match=r"'s' is sparse, with the layout torch\.sparse_csr: use to_dense"):
            bps.push_pull(rows, name="s")
        with pytest.raises(SpecError, match="a tensor without a name is sparse, with no index: use to_dense"):
            bps.push_pull(torch.tensor(3.0).to_sparse())
        with pytest.raises(SpecError, match="tensor 's' is dense: use allreduce_async, or to_sparse"):
            bps.sparse_allreduce_async(torch.eye(2), "s")
        with pytest.raises(SpecError, match="complex64: only a broadcast or an allgather takes it"):
            bps.push_pull(torch.eye(2, dtype=torch.complex64).to_sparse(), average=False, name="s")
        with pytest.raises(SpecError, match="the mean is for floats"):
            bps.push_pull(torch.eye(2, dtype=torch.int32).to_sparse(), name="s")

    alone(body)


def test_tensors_of_other_shapes_name_both_processes():
    read = multiprocessing.get_context("fork").Barrier(2)

    def body():
        with pytest.raises(RunError) as caught:
            bps.push_pull(torch.eye(2 + bps.rank()).to_sparse(), name="s")
        read.wait(50)
        text = str(caught.value)
        assert all(part in text for part in ("worker-0", "worker-1", "(2, 2)", "(3, 3)")), text
        os._exit(0)

    fork(2, body)


@pytest.mark.parametrize("change", ["values", "new"])
def test_a_gradient_that_the_script_changes(change):
    def body():
        weight = torch.nn.Parameter(torch.zeros(6, 2))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
        for step in range(2):
            optimizer.zero_grad()
            torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
            if step == 1 and change == "values":
                weight.grad._values().mul_(2)
            elif step == 1:
                weight.grad = weight.grad * 2
            if step == 1:
                with pytest.raises(RunError, match=r"1 of 1 gradients, such as .*gradient/weight, changed between"):
                    optimizer.step()
            else:
                optimizer.step()

    alone(body)


def test_a_sparse_weight_is_refused():
    def body():
        weight = torch.nn.Parameter(torch.eye(3).to_sparse())
        optimizer = torch.optim.SGD([weight], lr=1.0)
        with pytest.raises((SpecError, RunError), match="weight' is sparse: use sparse=False, or to_dense"):
            bps.DistributedOptimizer(optimizer, [("weight", weight)])

    alone(body)

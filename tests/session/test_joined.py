"""`join`: processes without data left give nothing, and the others go on until all have joined."""

import os
import re
import time

import numpy as np
import pytest
from forked import fork
from launched_scripts import launched
from members import Members

from hpcps.errors import RunError
from hpcps.protocol.messages import Peer
from hpcps.session.tensors import Declaration

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # optimizers import it: here once, and not in every process

import hpcps.torch as bps  # noqa: E402

LARGE = 700_001


def exchange(members, who, given, reduction, name="x", dtype="float32"):
    """Exchange arrays of some workers while the others have joined; return the results."""
    targets = []
    for k, values in zip(who, given, strict=True):
        tensor = members.workers[k].declare(Declaration(name, dtype, ((values.size,),), reduction))
        targets.append(np.zeros_like(values))
        members.workers[k].start(tensor, [values.view(np.uint8)], [targets[-1].view(np.uint8)])
    members.run()
    return targets


def join(members, *who):
    for k in who:
        members.workers[k].join()
        members.run()
    waiting = any(member.joining for member in members.workers)
    return [] if waiting else [member.last for member in members.workers]


@pytest.mark.parametrize("servers", [0, 1, 3])
@pytest.mark.parametrize("size", [5, LARGE])
def test_one_that_has_joined_counts_as_zeros_in_sums_and_means_and_not_in_others(servers, size):
    members = Members(3, servers)
    given = [np.arange(size, dtype=np.float32) % 7 + 1 + k for k in range(3)]
    exchange(members, range(3), given, "mean")
    assert join(members, 1) == []
    for turn in range(2):
        for reduction, wanted in {
            "sum": given[0] + given[2],
            "mean": ((given[0].astype("f8") + given[2]) / 3).astype("f4"),
            "max": given[2],
            "min": given[0],
            "product": given[0] * given[2],
        }.items():
            for found in exchange(members, (0, 2), [given[0], given[2]], reduction, f"{reduction} {turn}"):
                np.testing.assert_array_equal(found, wanted)
    assert not any(member.participant.open for member in members.workers)
    assert join(members, 2, 0) == [0, 0, 0]
    for found in exchange(members, range(3), given, "mean"):
        np.testing.assert_array_equal(found, (sum(each.astype("f8") for each in given) / 3).astype("f4"))


def test_one_that_joins_while_others_wait_ends_their_exchange():
    members = Members(3, 2)
    small, large = np.ones(4, np.float32), np.ones(LARGE, np.float32)
    results = exchange(members, (0, 1), [small, small], "sum", "small")
    results += exchange(members, (0, 1), [large, large], "mean", "large")
    assert not any(target.any() for target in results)
    join(members, 2)
    for target, wanted in zip(results, (2, 2, np.float32(2 / 3), np.float32(2 / 3)), strict=True):
        np.testing.assert_array_equal(target, np.full_like(target, wanted))


@pytest.mark.parametrize(
    "reduction",
    ["broadcast", "accumulate", {"kind": "median"}, {"kind": "mean", "attack": {"kind": "negative"}, "seed": 0}],
    ids=str,
)
def test_what_needs_all_is_an_error_that_names_the_tensor_and_the_remedy(reduction):
    members = Members(3)
    join(members, 1)
    exchange(members, (0, 2), [np.ones(3, np.float32)] * 2, reduction)
    for member in members.workers:
        with pytest.raises(RunError, match=r"tensor 'x', 3 x float32.* and worker-1 has called join\(\): until all"):
            member.check()


def test_blocks_that_no_other_worker_has_are_unused():
    members = Members(3, 1)
    declaration = Declaration("x", "float32", ((2,), (3,)), "mean")
    tensors = [member.declare(declaration) for member in members.workers]
    join(members, 1)
    exchanges = []
    for k, absent in ((0, (0, 1)), (2, (1,))):
        values, target = np.zeros(20, np.uint8), np.zeros(20, np.uint8)
        exchanges.append(members.workers[k].start(tensors[k], [values], [target], absent=absent))
    members.run()
    assert [exchange.unused for exchange in exchanges] == [(1,), (1,)]


@pytest.mark.parametrize("after", [True, False])
def test_one_that_ends_without_joining_is_named(after):
    members = Members(3, 1)
    if after:
        join(members, 0)
    members.workers[1].leave()
    members.run()
    if not after:
        join(members, 0)
    with pytest.raises(RunError, match=r"worker-0 waited in join\(\) for worker-1: worker-1 has ended its script"):
        members.workers[0].check()


def test_one_that_has_joined_learns_the_tensors_of_the_others_and_counts_their_steps():
    members = Members(3, 2)
    ones = np.ones(6, np.float32)
    join(members, 1)
    for name in "abc":
        exchange(members, (0, 2), [ones, ones], "sum", name)
    members.workers[0].steps = members.workers[2].steps = 3
    members.workers[0].updates = 5
    assert join(members, 0, 2) == [2, 2, 2]
    assert [(member.steps, member.updates) for member in members.workers] == [(3, 5)] * 3
    assert [member.missed for member in members.workers] == [set(), {"a", "b", "c"}, set()]
    for name in "dab":
        for found in exchange(members, range(3), [ones] * 3, "sum", name):
            np.testing.assert_array_equal(found, 3 * ones)
    assert join(members, 2, 1, 0) == [0, 0, 0]
    assert members.workers[1].missed == {"a", "b", "c"}


def test_a_worker_that_was_waited_for_counts_and_not_one_that_has_joined():
    members = Members(3, 1)
    join(members, 1)
    aggregator, now = members.all[-1]._aggregator, [1.0]
    aggregator._clock = lambda: now[0]
    values = np.ones(3, np.float32)
    exchange(members, (0,), [values], "sum")
    now[0] = 3.0
    exchange(members, (2,), [values], "sum")
    assert dict(aggregator.waited) == {Peer("worker", 2): 2.0}


def model_of(sparse=False):
    torch.manual_seed(0)
    first = [torch.nn.Embedding(9, 4, sparse=True), torch.nn.Flatten()] if sparse else [torch.nn.Linear(4, 12)]
    return torch.nn.Sequential(*first, torch.nn.Linear(12, 2))


def batches(rank, sparse=False):
    """Return the batches of a process: each has another number of them."""
    draw = torch.Generator().manual_seed(rank)
    for _ in range((2, 5, 3)[rank]):
        yield torch.randint(9, (4, 3), generator=draw) if sparse else torch.randn(4, 4, generator=draw)


def check_steps(sparse=False, **options):
    """Train on uneven data; compare each step with that of one process which has the gradients of all."""
    model, plain = model_of(sparse), model_of(sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    every = [list(batches(rank, sparse)) for rank in range(3)]
    for epoch in range(2):
        for number in range(5):
            loss = sum(plain(each[number]).square().mean() for each in every if number < len(each)) / 3
            reference.zero_grad()
            loss.backward()
            reference.step()
        for batch in every[bps.rank()]:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            bps.allreduce(torch.ones(3))  # without a name
            optimizer.step()
        last = bps.join()
        assert last == 1
        assert bps.allreduce(torch.ones(3), op=bps.Sum).tolist() == [3, 3, 3]
        bps.broadcast_parameters(model.state_dict(), root_rank=last)
        bps.broadcast_optimizer_state(optimizer, root_rank=last)
        for mine, wanted in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5, msg=f"epoch {epoch}")


@pytest.mark.parametrize(
    "options", [{}, {"sparse": True}, {"compression": bps.Compression.fp16, "op": bps.Sum}], ids=str
)
def test_uneven_data(options):
    def body():
        if "op" in options:
            check_sums()
        else:
            check_steps(**options)

    def check_sums():
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        for _ in batches(bps.rank()):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.synchronize()
        found = {float(parameter.grad.mean()) for parameter in model.parameters()}
        assert found == {(3.0, 1.0, 2.0)[bps.rank()]}, found
        assert bps.join() == 1

    fork(3, body)


@pytest.mark.parametrize(
    "compression",
    ["onebit", {"kind": "topk", "k": 0.5}, {"kind": "topk", "k": 0.5, "memory": "ef21"},
     {"kind": "randomk", "k": 0.5, "direction": "both", "memory": "residual"}],
    ids=str,
)  # fmt: skip
def test_compressed_tensors_of_those_that_have_not_joined(compression):
    """One that has joined changes no estimate and no residual, so all is as if it had not been there."""

    def body():
        session_rank, alone = bps.rank(), torch.arange(40.0)
        first = bps.push_pull(alone * (session_rank + 1), name="x", compression=compression)
        if session_rank == 1:
            assert bps.join() == 0
        else:
            found = bps.push_pull(alone, name="x", compression=compression)
            assert torch.isfinite(found).all()
            assert not torch.equal(found, first)
            both = bps.allgather(found.reshape(1, -1))
            assert len(both) == 2
            assert torch.equal(both[0], both[1])
            time.sleep(0.3 * (session_rank == 0))
            assert bps.join() == 0
        again = bps.push_pull(alone * (session_rank + 1), name="x", compression=compression)
        every = bps.allgather(again.reshape(1, -1))
        assert all(torch.equal(each, again) for each in every)

    fork(3, body)


def test_a_process_without_any_batch():
    """Others declare tensors that it has not seen; it may begin with them later, but not with a first step."""

    def body():
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
        for turn in range(3 * (bps.rank() == 1)):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            bps.push_pull(torch.ones(3 + turn), name=f"loss {turn}")
        assert bps.join() == 1
        assert bps.push_pull(torch.ones(3), name="accuracy").tolist() == [1, 1, 1]
        assert bps.push_pull(torch.ones(5), name="loss 2").tolist() == [1, 1, 1, 1, 1]
        if bps.rank() == 0:
            with pytest.raises(RunError, match="the first step of this process comes after join"):
                optimizer.synchronize()
        os._exit(0)  # a shutdown would wait for the step

    fork(2, body)


def test_a_process_that_is_the_only_one():
    def body():
        for _ in range(2):
            assert bps.push_pull(torch.ones(2), average=False).tolist() == [1, 1]
            assert bps.join() == 0

    fork(1, body)


def test_a_step_that_has_begun_is_refused():
    def body():
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), sparse_as_dense=True)
        model(torch.ones(1, 4)).sum().backward()
        bps.join()

    with pytest.raises(AssertionError, match=r"calls join\(\), after a backward pass without its step"):
        fork(2, body)


SCRIPT = """
import os, signal, sys
import numpy as np
import hpcps.numpy as bps
from hpcps.session.current import session
bps.init()
rank = bps.rank()
for step in range(2 + rank):
    found = bps.push_pull(np.ones(700_001, np.float32), average=False, name="x")
    assert found[0] == 3 - max(0, step - 1), step
    if sys.argv[1] == "kill" and step == 2 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
last = session().join()
assert last == 2 and bps.push_pull(np.ones(3), average=False, name="y").tolist() == [3, 3, 3]
sys.stdout.write(f"last {last}\\n")
"""


@pytest.mark.parametrize(
    ("transport", "servers"), [("mpi", "0"), ("pslite", "1"), pytest.param("mpi", "2", marks=pytest.mark.soak)]
)
def test_every_transport(tmp_path, transport, servers, starts_processes):
    options = "--transport", transport, "--servers", servers
    assert launched(tmp_path, SCRIPT, "none", options=options).count("last 2\n") == 3


@pytest.mark.parametrize(("transport", "servers"), [("mpi", "0"), pytest.param("pslite", "1", marks=pytest.mark.soak)])
def test_a_process_that_is_killed_while_others_have_joined(tmp_path, transport, servers, starts_processes):
    options = "--transport", transport, "--servers", servers
    said = launched(tmp_path, SCRIPT, "kill", options=options, succeeds=False)
    assert re.search(r"worker-1 on .* failed .*SIGKILL", said), said
    assert "last" not in said
    if transport == "mpi":
        assert "worker-0 waited in join() for worker-1: worker-1 has ended: it was killed" in said, said

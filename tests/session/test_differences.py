"""Asynchronous training: workers push differences, and get the newest weights without waiting for others."""

import numpy as np
import pytest
from forked import fork
from members import Members

from hpcps.errors import RunError
from hpcps.session.reduction import ACCUMULATE
from hpcps.session.tensors import Declaration

SIZES = [5, 300, 200_000]


def begun(members, first):
    """Give all workers the same weights, those of worker 0."""
    tensors = [
        [member.declare(Declaration(f"t{t}", "float32", ((size,),), ACCUMULATE)) for t, size in enumerate(SIZES)]
        for member in members.workers
    ]
    for member, own in zip(members.workers, tensors, strict=True):
        push(member, own, first if member.peer.index == 0 else None)
    members.run()
    return tensors


def push(member, tensors, values):
    """Push values; return the memory of the results."""
    targets = [np.zeros(size, np.float32) for size in SIZES]
    for t, (tensor, target) in enumerate(zip(tensors, targets, strict=True)):
        source = None if values is None else [values[t].view(np.uint8)]
        member.start(tensor, source, [target.view(np.uint8)])
    member.flush()
    return targets


def random(seed):
    # Multiples of 1/8: their sums are exact in any order.
    return [
        np.random.default_rng([seed, t]).integers(-99, 99, size).astype(np.float32) / 8 for t, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize("servers", [0, 2])
def test_a_worker_does_not_wait_for_others(servers):
    members, weights = Members(3, servers), random(0)
    tensors = begun(members, weights)
    for step in range(1, 9):
        worker = (1, 1, 2, 1)[step % 4]
        changes = random(step)
        results = push(members.workers[worker], tensors[worker], changes)
        members.run()
        for t, change in enumerate(changes):
            weights[t] = weights[t] + change
            np.testing.assert_array_equal(results[t], weights[t])
    results = push(members.workers[0], tensors[0], None)
    members.run()
    for result, wanted in zip(results, weights, strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("servers", [0, 1])
def test_nothing_is_lost_in_any_order(servers):
    order, members, total = np.random.default_rng(servers), Members(3, servers), random(0)
    tensors = begun(members, total)
    for step in range(20):
        some = [k for k in range(3) if order.random() < 0.7]
        for k in some:
            changes = random(100 * step + k)
            push(members.workers[k], tensors[k], changes)
            total = [whole + change for whole, change in zip(total, changes, strict=True)]
        members.run(order)
    for k in range(3):
        results = push(members.workers[k], tensors[k], None)
        members.run(order)
        for result, wanted in zip(results, total, strict=True):
            np.testing.assert_array_equal(result, wanted)


def test_who_has_ended_still_answers_but_a_failure_ends_all():
    members = Members(3)
    tensors = begun(members, random(0))
    members.workers[0].leave()
    members.run()
    results = push(members.workers[1], tensors[1], random(1))
    members.run()
    np.testing.assert_array_equal(results[2], random(0)[2] + random(1)[2])
    members.workers[2].leave("ValueError: boom")
    members.run()
    with pytest.raises(RunError, match="worker-2 has failed: ValueError: boom"):
        push(members.workers[1], tensors[1], random(2))


def test_the_optimizer_pushes_differences_of_weights(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo")
    import hpcps.torch as bps
    from hpcps.errors import SpecError

    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")

    def body():
        rank = bps.rank()
        torch.manual_seed(rank)
        model = torch.nn.Linear(6, 4)
        sgd = torch.optim.SGD(model.parameters(), lr=0.125)
        with pytest.raises(SpecError, match="rule= and attack="):
            bps.DistributedOptimizer(sgd, model.named_parameters(), rule="median")
        optimizer = bps.DistributedOptimizer(sgd, model.named_parameters())
        assert isinstance(optimizer, torch.optim.SGD)
        first = [p.detach().double() for p in model.parameters()]
        for k, start in enumerate(first):
            assert torch.equal(bps.push_pull(start, average=False, name=f"first {k}"), 3 * start)
        moved = [torch.zeros_like(p) for p in first]
        for _ in range(2 + 5 * rank):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.synchronize()
            for total, p in zip(moved, model.parameters(), strict=True):
                total -= 0.125 * p.grad.double()
            with optimizer.skip_synchronize():
                optimizer.step()
        moved = [bps.push_pull(total, average=False, name=f"moved {k}") for k, total in enumerate(moved)]
        optimizer.zero_grad()  # a step without gradients only pulls
        optimizer.step()
        for p, start, total in zip(model.parameters(), first, moved, strict=True):
            torch.testing.assert_close(p.detach().double(), start + total, rtol=0, atol=1e-5)
        with pytest.raises(SpecError, match="asynchronous training is for DistributedOptimizer"):
            bps.exchange()

    fork(3, body)

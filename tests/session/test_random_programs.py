"""Random programs of hpcps.torch in several processes: none hangs, and all results are right.

A started world runs many programs. Every process begins the same tensors in an order of its own, is late at random, and
waits for the handles in another order. Priorities and credits are random, and networks slow, so that tensors wait. At
the end processes have different numbers of turns, and join.
"""

import random
import time

import pytest
from forked import fork
from members import Link

torch = pytest.importorskip("torch")

import hpcps.torch as bps  # noqa: E402
from hpcps.session.buckets import PARTITION  # noqa: E402
from hpcps.session.current import session  # noqa: E402

SIZES = (0, 1, 3, 100, 5_000, 16_384, 16_385, 300_000)


class SlowLink(Link):
    """Sends messages only while its process polls."""

    def __init__(self, end, draw):
        super().__init__(end)
        self.receive = self._receive
        self._draw = draw

    def _receive(self):
        if self._draw.random() < 0.5:
            self.advance()
        return self._end.receive()


def slow_down(draw):
    """Let the messages of this process wait in its outbox."""
    with session()._lock:
        session().member._transport = SlowLink(session().member._transport, draw)
    type(session())._longest = 1e-3  # nothing else ends the pause of a process whose link has a message


def program(seed):
    shared, own = random.Random(seed), random.Random(f"{seed} {bps.rank()}")
    session().limit(own.choice((0, PARTITION, 4 * PARTITION)))
    # Names occur in several programs, so tensors that were exchanged together are exchanged apart.
    tensors = [
        (f"{size} {kind} {k}", size, kind)
        for k in range(shared.randint(1, 12))
        for size, kind in [(shared.choice(SIZES), shared.choice(("sum", "mean", "median")))]
    ]
    for name, size, kind in tensors:
        bps.declare(name, torch.zeros(size), average=kind != "sum", rule="median" if kind == "median" else None)
    handles = {}
    todo = list(tensors)
    own.shuffle(todo)
    while todo or handles:
        if todo and (own.random() < 0.6 or not handles):
            name, size, kind = todo.pop()
            values = torch.full((size,), float(bps.rank() ** 2 + len(name)))
            begin = own.choice((bps.push_pull_async, bps.push_pull_async_inplace))
            rule, priority = "median" if kind == "median" else None, own.randint(-9, 9)
            handles[name] = begin(values, kind != "sum", name, priority=priority, rule=rule)
        elif own.random() < 0.2:
            bps.poll(own.choice(list(handles.values())))
        elif not todo:  # who waits earlier may wait for one that waits for it
            name = own.choice(list(handles))
            kind, size = next((kind, size) for each, size, kind in tensors if each == name)
            every = torch.tensor([float(k**2 + len(name)) for k in range(bps.size())])
            wanted = {"sum": every.sum(), "mean": every.double().mean(), "median": every.double().quantile(0.5)}[kind]
            assert torch.equal(bps.synchronize(handles.pop(name)), torch.full((size,), float(wanted))), (seed, name)
        if own.random() < 0.05:
            time.sleep(own.random() * 0.02)
    uneven_turns([shared.choice((0, 1, 1, 3)) for _ in range(bps.size())], own)


def uneven_turns(turns, own):
    """Exchange tensors as often as each process has turns, and join then."""
    for turn in range(turns[bps.rank()]):
        there = [rank + 1.0 for rank, number in enumerate(turns) if number > turn]
        handles = [
            bps.push_pull_async(
                torch.full((size,), bps.rank() + 1.0), False, f"{size} uneven", priority=own.randint(-9, 9)
            )
            for size in (3, 16_385, 300_000)
        ]
        for handle in handles:
            found = bps.synchronize(handle)
            assert torch.equal(found, torch.full(found.shape, sum(there))), (turns, turn)
    last = bps.join()
    assert bps.push_pull(torch.tensor([last]), average=False, name="last").tolist() == [last * bps.size()], turns


def run(processes, seeds, seconds):
    def body():
        slow_down(random.Random(bps.rank()))
        for seed in seeds:
            program(seed)

    fork(processes, body, seconds)


@pytest.mark.thorough
def test_random_programs():
    run(3, range(50), 60)


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2, 4, 5, 9])
def test_many_random_programs(processes):
    run(processes, range(1000 * processes, 1000 * processes + 200), 900)

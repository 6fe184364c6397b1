"""A process of `own_script.py`, started by `hpcps launch`: measures exchanges, and writes the seconds of each turn.

hpcps launch -n 4 python own_script_rank.py small|mlp|resnet18|hosts TURNS FILE
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

import hpcps.torch as bps
from hpcps.registry import active

if TYPE_CHECKING:
    from mpi4py import MPI

NUMBER, ELEMENTS = 200, 1024
"""The small tensors, of 4 KB each."""
WARM_UP = 3
"""Turns that are not counted."""
BATCH = {"mlp": 32, "resnet18": 16}
LARGE, LAYERS = 1 << 24, 16
"""The elements that are exchanged between hosts, 64 MB, and the layers of equal size that have them."""
COMPUTING = 1.3
"""The seconds of computing in a step between hosts, in those of its exchange."""

Exchanges = dict[str, Callable[[], object]]


def small() -> Exchanges:
    """Return one exchange of 800 KB, and the same as 200 tensors, by push_pull and by an optimizer."""

    def push(tensors: list[torch.Tensor]) -> Callable[[], object]:
        names = [f"{len(tensors)}/{k}" for k in range(len(tensors))]

        def exchange() -> None:
            handles = [
                bps.push_pull_async_inplace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)
            ]
            for handle in handles:
                bps.synchronize(handle)

        return exchange

    def optimize(sizes: list[int]) -> Callable[[], object]:
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        named = [(f"{len(sizes)}/{k}", parameter) for k, parameter in enumerate(parameters)]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0), named)
        return optimizer.synchronize

    one, many = [NUMBER * ELEMENTS], [ELEMENTS] * NUMBER
    return {
        "push_pull, one": push([torch.ones(size) for size in one]),
        "push_pull, many": push([torch.ones(size) for size in many]),
        "optimizer, one": optimize(one),
        "optimizer, many": optimize(many),
    }


def mlp() -> Exchanges:
    """Return a step of a network of 25 M parameters, see `training`."""
    sizes = (1024, 4096, 4096, 1000)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return training(torch.nn.Sequential(*layers[:-1]), torch.randn(BATCH["mlp"], sizes[0]))


def resnet18() -> Exchanges:
    """Return a step of `resnet18_v1` on images of 32 x 32, see `training`."""
    model = active().of("models")["resnet18_v1"]().build((3, 32, 32), 10)
    return training(model, torch.randn(BATCH["resnet18"], 3, 32, 32))


class Buckets:
    """Averages the buckets of DistributedDataParallel by Iallreduce of mpi4py, while the backward pass runs.

    PyTorch's wheels have no MPI backend. Without a thread of its own, MPI works on a bucket whenever a later one comes,
    and on all of them after the last one.
    """

    def __init__(self) -> None:
        from mpi4py import MPI  # here, because only this variant needs it

        assert MPI.Query_thread() == MPI.THREAD_MULTIPLE, "the thread of hpcps calls MPI, too"
        self._mpi, self._comm = MPI, MPI.COMM_WORLD.Dup()
        self._pending: list[tuple[MPI.Request, torch.Tensor, torch.futures.Future[torch.Tensor]]] = []

    def hook(self, state, bucket):  # type: ignore[no-untyped-def]  # torch does not accept annotations that are text
        """Begin to average a bucket; after the last one, wait for all."""
        values: torch.Tensor = bucket.buffer().div_(self._comm.size)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, values.numpy())
        self._pending.append((request, values, future))
        self._mpi.Request.Testall([request for request, _, _ in self._pending])
        if bucket.is_last():
            for request, values, waiting in self._pending:
                request.Wait()
                waiting.set_result(values)
            self._pending = []
        return future


def training(model: torch.nn.Module, x: torch.Tensor) -> Exchanges:
    """Return a step of a model without an exchange, with those of hpcps, and with DistributedDataParallel.

    DistributedDataParallel averages by gloo, or by MPI. It does not broadcast buffers, such as running means, because
    the optimizer of hpcps does not.
    """
    torch.distributed.init_process_group("gloo")
    y = torch.zeros(len(x), dtype=torch.long)

    def step_of(model: torch.nn.Module, optimizer: Any) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    def sgd(model: torch.nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    none, own, hooked, plain, summed = (copy.deepcopy(model) for _ in range(5))
    with_hook, with_mpi = (DistributedDataParallel(each, broadcast_buffers=False) for each in (hooked, summed))
    with_hook.register_comm_hook(bps.exchange(), bps.hook)
    with_mpi.register_comm_hook(None, Buckets().hook)
    return {
        "none": step_of(none, sgd(none)),
        "optimizer": step_of(own, bps.DistributedOptimizer(sgd(own), own.named_parameters())),
        "hook": step_of(with_hook, sgd(hooked)),
        "DDP": step_of(DistributedDataParallel(plain, broadcast_buffers=False), sgd(plain)),
        "mpi4py": step_of(with_mpi, sgd(summed)),
    }


class Slow(torch.autograd.Function):
    """A layer whose backward pass takes some seconds and no core, as on an accelerator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


def hosts() -> Exchanges:
    """Return an exchange of 64 MB, computing that takes somewhat longer, and both in one step."""
    parameters = [torch.nn.Parameter(torch.zeros(LARGE // LAYERS)) for _ in range(LAYERS)]
    own = [torch.nn.Parameter(torch.zeros_like(parameter)) for parameter in parameters]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0))
    values = torch.ones(LARGE)

    def backward(parameters: list[torch.nn.Parameter], seconds: float) -> None:
        x = torch.zeros((), requires_grad=True)
        for parameter in parameters:
            parameter.grad = None
            x = Slow.apply(x + parameter.sum(), seconds / LAYERS)  # type: ignore[no-untyped-call]
        x.backward()  # type: ignore[no-untyped-call]

    def step(seconds: float) -> None:
        backward(parameters, seconds)
        optimizer.synchronize()

    for _ in range(WARM_UP):
        bps.push_pull(torch.zeros(1), name="begin")
        began = time.perf_counter()
        step(0.0)
        seconds = COMPUTING * bps.broadcast_object(time.perf_counter() - began)
    return {
        "one tensor": lambda: bps.synchronize(bps.push_pull_async_inplace(values, name="large")),
        "exchange": lambda: step(0.0),
        "computing": lambda: backward(own, seconds),
        "both": lambda: step(seconds),
    }


def measure(turns: int, exchanges: Mapping[str, Callable[[], object]]) -> dict[str, list[list[float]]]:
    """Run the exchanges in turn.

    Returns:
        For each exchange, lists over the turns: the seconds until the last process has the result, and the seconds that
        all processes computed.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in exchanges}
    for turn in range(WARM_UP + turns):
        for name, exchange in exchanges.items():
            bps.push_pull(torch.zeros(1), name="ready")
            began, computed = time.perf_counter(), time.process_time()
            exchange()
            if turn >= WARM_UP:
                spent[name].append((time.perf_counter() - began, time.process_time() - computed))
    result = {}
    for name, own in spent.items():
        every = [bps.broadcast_object(own, root) for root in range(bps.size())]
        turns_of_all = list(zip(*every, strict=True))
        result[name] = [
            [max(seconds for seconds, _ in turn) for turn in turns_of_all],
            [sum(computed for _, computed in turn) for turn in turns_of_all],
        ]
    return result


def main() -> None:
    what, turns, file = sys.argv[1:]
    bps.init()
    torch.manual_seed(0)
    tasks = {"small": small, "mlp": mlp, "resnet18": resnet18, "hosts": hosts}
    seconds = measure(int(turns), tasks[what]())
    if bps.rank() == 0:
        Path(file).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()

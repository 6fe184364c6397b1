"""A process of `own_script.py`, started by `hpcps launch`: measures an exchange, and writes the seconds of each turn.

hpcps launch -n 4 python own_script_rank.py small TURNS FILE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import hpcps.torch as bps

NUMBER, ELEMENTS = 200, 1024
"""The small tensors, of 4 KB each."""
WARM_UP = 3
"""Turns that are not counted."""


def small() -> dict[str, Callable[[], object]]:
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


def measure(turns: int, exchanges: Mapping[str, Callable[[], object]]) -> dict[str, list[list[float]]]:
    """Run the exchanges in turn.

    Returns:
        For each exchange, lists over the turns: the seconds until the last process has the result, and the seconds that
        all processes computed.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in exchanges}
    for turn in range(turns):
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
    seconds = measure(int(turns), {"small": small}[what]())
    if bps.rank() == 0:
        Path(file).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()

"""A process of `scheduling.py`, started by `hpcps launch`: measures exchanges, and writes the seconds of each turn.

hpcps launch -n 4 --servers 4 python scheduling_rank.py tensors|model|small_model TURNS FILE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import hpcps.torch as bps
from hpcps.session.current import session

TENSORS, ELEMENTS = 20, 1 << 24
"""The tensors that are begun at once, and the elements of all of them, 64 MB."""
WITHIN = 0.01
"""The seconds within which they must begin."""
CONVOLUTIONS = (1_792, 36_928, 73_856, 147_584, 295_168, 590_080, 590_080, 1_180_160, *(2_359_808,) * 5)
CONNECTED = (102_764_544, 16_781_312, 4_097_000)
"""The parameters of the layers of VGG 16, whose last layers have nine tenths of its 553 MB."""
SMALL = 9
"""How many times fewer parameters the layers of the small network have."""
SHARE = 0.97
"""The share of computing that is for its convolutions, in equal parts."""
BACKWARD = 2 / 3
"""The share of computing that is for the backward pass."""
STEPS = 4
"""The steps of a turn, after one that begins with idle links."""
WARM_UP = 1
"""Turns that are not counted."""

Seconds = dict[str, list[list[float]]]


def tensors(turns: int) -> Seconds:
    """Measure when the first layer's tensor and all tensors have their results, the last layer begun first.

    Returns:
        The seconds of each turn until the last process has them, with and without priorities.
    """
    values = [torch.ones(ELEMENTS // TENSORS) for _ in range(TENSORS)]
    spent: dict[str, list[float]] = {}
    credit = session().member.outbox.credit
    for turn in range(WARM_UP + turns):
        for mode in ("with", "without"):
            session().limit(credit if mode == "with" else 0)
            bps.barrier()
            began = time.perf_counter()
            handles = {
                layer: bps.push_pull_async_inplace(
                    values[layer], name=f"layer {layer}", priority=-layer if mode == "with" else 0
                )
                for layer in reversed(range(TENSORS))
            }
            begun = time.perf_counter() - began
            bps.synchronize(handles[0])
            first = time.perf_counter() - began
            for handle in list(handles.values())[:-1]:
                bps.synchronize(handle)
            whole = time.perf_counter() - began
            if turn >= WARM_UP:
                for what, seconds in (("begun", begun), ("first layer", first), ("whole", whole)):
                    spent.setdefault(f"{what}, {mode} priorities", []).append(seconds)
    return _last(spent)


class _Timed(torch.autograd.Function):
    """A layer that computes for some seconds and takes no core, as on an accelerator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: _Layer, _: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        time.sleep((1 - BACKWARD) * layer.seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
        time.sleep(BACKWARD * ctx.layer.seconds)
        return gradient, None, ctx.layer.gradient.detach()


class _Layer(torch.nn.Module):
    """A layer that has a gradient.

    Attributes:
        seconds: how long its passes take together.
        gradient: the gradient, in the same memory in each step, as an accelerator's allocator has it.
    """

    seconds = 0.0

    def __init__(self, gradient: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros_like(gradient))
        self.gradient = gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Timed.apply(x, self, self.weight)  # type: ignore[no-untyped-call]
        return result


def _set_computing(model: torch.nn.Sequential, seconds: float) -> None:
    """Let the passes of a network take so many seconds together."""
    for number, layer in enumerate(model):
        convolves = number < len(CONVOLUTIONS)
        share = SHARE / len(CONVOLUTIONS) if convolves else (1 - SHARE) / len(CONNECTED)
        layer.seconds = share * seconds


def model(turns: int, smaller: int = 1) -> Seconds:
    """Measure a step of a network whose last layers are large, and which computes as long as its exchange takes.

    Args:
        turns: the number of turns.
        smaller: how many times fewer parameters its layers have than those of VGG 16.

    Returns:
        The seconds of a step on average over each turn, of the process in which it takes longest.
    """
    torch.distributed.init_process_group("gloo")
    # They take turns, so they have one gradient for each layer.
    gradients = [torch.ones(elements // smaller) for elements in (*CONVOLUTIONS, *CONNECTED)]
    names = ("DistributedOptimizer", "CrossBarrier", "DDP with gloo")
    networks = {name: torch.nn.Sequential(*map(_Layer, gradients)) for name in names}

    def optimizer(name: str) -> Any:
        plain = torch.optim.SGD(networks[name].parameters(), lr=0.1)
        return plain if name == "DDP with gloo" else bps.DistributedOptimizer(plain, networks[name].named_parameters())

    optimizers = {name: optimizer(name) for name in networks}
    bps.CrossBarrier(networks["CrossBarrier"], optimizers["CrossBarrier"])
    called = {**networks, "DDP with gloo": DistributedDataParallel(networks["DDP with gloo"], broadcast_buffers=False)}
    x = torch.zeros(1, requires_grad=True)

    def step(name: str) -> None:
        optimizers[name].zero_grad()
        called[name](x).sum().backward()
        optimizers[name].step()

    def turn(name: str) -> float:
        bps.barrier()
        step(name)
        began = time.perf_counter()
        for _ in range(STEPS):
            step(name)
        seconds = (time.perf_counter() - began) / STEPS
        if name == "CrossBarrier":
            optimizers[name].synchronize()
        return seconds

    exchanges = [turn("DistributedOptimizer") for _ in range(1 + WARM_UP)]
    exchange = _last({"exchange": exchanges})["exchange"][0][-1]
    for name in called:
        _set_computing(networks[name], exchange)
    spent: dict[str, list[float]] = {name: [] for name in called}
    for number in range(WARM_UP + turns):
        for name in called:
            seconds = turn(name)
            if number >= WARM_UP:
                spent[name].append(seconds)
    return {**_last(spent), "computing": [[exchange]]}


def small_model(turns: int) -> Seconds:
    """Measure a step as `model` does, with fewer parameters."""
    return model(turns, smaller=SMALL)


def _last(spent: dict[str, list[float]]) -> Seconds:
    """Return the seconds of the last process in each turn, by what was measured."""
    every = bps.allgather_object(spent)
    return {name: [[max(seconds) for seconds in zip(*(own[name] for own in every), strict=True)]] for name in spent}


TASKS: dict[str, Callable[[int], Seconds]] = {"tensors": tensors, "model": model, "small_model": small_model}


def main() -> None:
    what, turns, file = sys.argv[1:]
    bps.init()
    torch.manual_seed(0)
    seconds = TASKS[what](int(turns))
    if bps.rank() == 0:
        Path(file).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()

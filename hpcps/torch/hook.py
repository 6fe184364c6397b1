"""The communication hook of DistributedDataParallel, which reads the annotations of the hook: they must be classes."""

from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch does not declare the name

from hpcps.session.tensors import rule_of
from hpcps.torch.exchange import begin, reduction_of
from hpcps.torch.state import init, session, size

_models = count()


class Buckets:
    """How a hook combines the gradients of one model.

    DistributedDataParallel changes its buckets after the first step, so each list of gradients has its own name.
    """

    def __init__(self, reduction: Any) -> None:
        """Begin without buckets."""
        self.reduction = reduction
        self._model = next(_models)
        self._names: dict[tuple[object, ...], str] = {}

    def name(self, bucket: GradBucket, blocks: list[int]) -> str:
        """Return the name of a bucket, the same in all processes."""
        known = (bucket.index(), bucket.buffer().dtype, *blocks)
        return self._names.setdefault(known, f"ddp {self._model} bucket {bucket.index()} ({len(self._names)})")


def exchange(rule: object = None, *, average: bool = True) -> Buckets:
    """Return the state of `hook`: `ddp.register_comm_hook(exchange(rule="trimmed_mean"), hook)`.

    Args:
        rule: the rule that combines the gradients of the processes, see `push_pull`; by default the mean. A rule that
            sees blocks gets the gradient of each parameter as a block.
        average: without a rule, whether to return the mean, else the sum.

    Raises:
        SpecError: the rule cannot be used.
    """
    init()
    reduction = reduction_of(average, rule)
    rule_of(reduction, size())
    return Buckets(reduction)


def hook(state: Buckets, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Combine the gradients of a bucket with those of the other processes, while the backward pass goes on."""
    blocks = [parameter.numel() for parameter in bucket.parameters()]
    values = bucket.buffer()
    pending = begin(values, values, state.name(bucket, blocks), state.reduction, blocks=blocks)
    future: torch.futures.Future[Tensor] = torch.futures.Future()

    def done() -> None:
        if pending.exchange.error is not None:
            future.set_exception(pending.exchange.error)  # type: ignore[arg-type]
        else:
            future.set_result(pending.finish())
            if bucket.is_last():
                session().charge("wait")
                session().step()

    session().then(pending.exchange, done)
    if bucket.is_last():  # the script now waits for the buckets
        session().charge("train")
    return future

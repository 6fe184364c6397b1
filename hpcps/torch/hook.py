"""The communication hook of DistributedDataParallel, which reads the annotations of the hook: they must be classes."""

import gc
from collections.abc import Iterator, Sequence
from itertools import count
from math import prod
from typing import Any, NoReturn
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch does not declare the name
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from hpcps.errors import SpecError
from hpcps.session.current import is_initialized, session, size
from hpcps.session.join import messages
from hpcps.session.reduction import is_whole, operation_of, rule_of
from hpcps.torch.compression import Compressing, Compression, conversion
from hpcps.torch.exchange import reduction_of
from hpcps.torch.state import check_world, init, is_asynchronous
from hpcps.torch.together import Together
from hpcps.torch.updates import UpdateCounter

_models = count()


class Buckets:
    """How a hook combines the gradients of one model.

    DistributedDataParallel changes its buckets after the first step, so each list of gradients has its own name.

    Attributes:
        reduction: how gradients are combined.
        whole: whether all gradients of a step are combined at once; None before the first backward pass.
        waiting: the buckets whose exchange has not begun: gradients, shapes of their blocks, and what gets the result.
        model: the number of the model; None before the first backward pass.
        exchanges: the exchange of each list of gradients, by its name.
        updates: the steps of the optimizer.
    """

    def __init__(self, reduction: Any) -> None:
        """Begin without buckets, and without a session if frameworks have not started their processes."""
        self.reduction = reduction
        self.whole: bool | None = None
        self.waiting: list[tuple[Tensor, list[tuple[int, ...]], torch.futures.Future[Tensor]]] = []
        self.model: int | None = None
        self._names: dict[tuple[object, ...], str] = {}
        self._first: dict[int, Tensor] = {}  # the first parameter of each bucket of the first step
        self._parameters: set[Tensor] = set()
        self._knows_model = False
        self.updates = UpdateCounter()
        self.exchanges: dict[str, Together] = {}
        _unused.add(self)

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        """Continue in a process to which a framework has sent this object."""
        self.__dict__.update(attributes)
        if self.model is None:
            _unused.add(self)

    def join(self) -> None:
        """Join the processes of `torch.distributed`, if this process has not joined others.

        Raises:
            LaunchError: they cannot reach each other, see `init`.
            RunError: this process has joined others.
            SpecError: gradients of so many processes cannot be combined in this way.
        """
        init()
        _refuse_asynchronous()
        check_world()
        self.whole = is_whole(self.reduction, rule_of(self.reduction, size()))

    def begin(self) -> None:
        """Begin the first backward pass: join the others, and check that DistributedDataParallel has the same ones.

        Raises:
            LaunchError, RunError, SpecError: see `join`.
        """
        if self.whole is None:
            self.join()
        self.model = next(_models)
        _unused.discard(self)
        check_world(
            dist.get_world_size(_group_of(self)),
            "DistributedDataParallel's process group",
            "use no process_group and no init(alone=True), ",
        )

    def check(self, bucket: GradBucket, parameters: list[Tensor]) -> None:
        """Check that a bucket, with these parameters, is of the same model as the earlier ones.

        Raises:
            SpecError: it is of another one.
        """
        first = parameters[0]
        if self._knows_model:
            same = first in self._parameters
        else:
            same = self._first.setdefault(bucket.index(), first) is first
            self._parameters.update(parameters)
            self._knows_model = bucket.is_last()
        if not same:
            raise SpecError(
                "two models have the same exchange(): register one exchange() per model with register_comm_hook"
            )

    def name(self, bucket: GradBucket, shapes: Sequence[tuple[int, ...]]) -> str:
        """Return the name of a bucket, the same in all processes."""
        known = (bucket.index(), bucket.buffer().dtype, *shapes)
        return self._names.setdefault(known, f"ddp {self.model} bucket {bucket.index()} ({len(self._names)})")


class _Unused:
    """The states that no bucket has reached; it is an error if a model trains without the hook meanwhile.

    A framework may take a state and not register it, and torch then averages gradients. The first step of each
    optimizer therefore looks for its model, after its backward pass, which some frameworks do within the step.
    """

    def __init__(self) -> None:
        """Begin without states."""
        self._states: WeakSet[Buckets] = WeakSet()
        self._seen: WeakSet[Optimizer] = WeakSet()
        self._handle: RemovableHandle | None = None

    def add(self, state: Buckets) -> None:
        """Watch the optimizers until a bucket reaches this state."""
        self._states.add(state)
        self._seen = WeakSet()
        if self._handle is None:
            self._handle = register_optimizer_step_post_hook(self._check)

    def discard(self, state: Buckets) -> None:
        """Note that a bucket has reached a state."""
        self._states.discard(state)
        if self._handle is not None and not self._states:
            self._handle.remove()
            self._handle = None

    def _check(self, optimizer: Optimizer, *_: object) -> None:
        """Check that the model of an optimizer has a hook, if there is a state that no model has.

        Raises:
            SpecError: it has none; the session ends.
        """
        if optimizer in self._seen or not self._states:
            return
        self._seen.add(optimizer)
        models = [*_data_parallel_models()]
        registered = [state for model in models for _, state in model._comm_hooks]
        if all(any(state is each for each in registered) for state in self._states):
            return
        stepped = {id(each) for group in optimizer.param_groups for each in group["params"] if each.grad is not None}
        if any(not model._comm_hooks and any(id(p) in stepped for p in model.parameters()) for model in models):
            _fail(_UNREGISTERED)


_UNREGISTERED = (
    "DistributedDataParallel has averaged gradients without the hook, and no model has the exchange() of this script: "
    "call model.register_comm_hook(exchange(...), hook) before the first backward pass; Lightning, which registers a "
    "hook only on GPUs, needs self.trainer.strategy.model.register_comm_hook(exchange(...), hook) in on_train_start, "
    "and Accelerate, which registers only hooks of torch, needs it after prepare()"
)


def _fail(problem: str) -> NoReturn:
    """End the session, if there is one, and the script."""
    error = SpecError(problem)
    if is_initialized():
        session().fail(error)
        raise error
    with messages():
        raise error


_unused = _Unused()


def exchange(
    rule: object = None,
    *,
    average: bool = True,
    attack: object = None,
    seed: int = 0,
    compression: Compressing = Compression.none,
) -> Buckets:
    """Return the state of `hook`: `ddp.register_comm_hook(exchange(rule="trimmed_mean"), hook)`.

    It joins the processes of `torch.distributed`, as `init` does, at once if they are initialised, else in the first
    backward pass: a framework may take it before it starts its processes.

    Args:
        rule: the rule that combines the gradients of the processes, see `push_pull`; by default the mean. A rule that
            sees blocks gets the gradient of each parameter as a block; one that sees whole vectors gets all of a step.
        average: without a rule, whether to return the mean, else the sum.
        attack: an attack to simulate, see `DistributedOptimizer`.
        seed: the seed of the attack's random numbers.
        compression: a compressor of hpcps, see `Compressing`.

    Raises:
        SpecError: the rule cannot be used.
    """
    _refuse_asynchronous()
    reduction = reduction_of(operation_of(average), rule, attack, seed, compression)
    if conversion(compression) is not Compression.none:
        raise SpecError('Compression.fp16 is not for the hook: use compression="fp16"')
    buckets = Buckets(reduction)
    if dist.is_initialized():
        buckets.join()
    return buckets


def _refuse_asynchronous() -> None:
    if is_asynchronous():
        raise SpecError("asynchronous training is for DistributedOptimizer: DistributedDataParallel waits for all")


def _group_of(state: Buckets) -> dist.ProcessGroup | None:
    """Return the process group of the DistributedDataParallel that has a state; None if it cannot be found.

    torch gives a hook neither the model nor the group.
    """
    for model in _data_parallel_models():
        if any(own is state for _, own in model._comm_hooks):
            group: dist.ProcessGroup = model.process_group
            return group
    return None


def _data_parallel_models() -> Iterator[DistributedDataParallel]:
    return (each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel))


def hook(state: Buckets, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Combine the gradients of a bucket with those of the other processes, while the backward pass goes on.

    A gradient of complex numbers is a tensor of their real and imaginary parts. An error ends the session in all
    processes: the script may catch it, and the others would wait for this process.

    Raises:
        SpecError: the state is not `exchange()`, or the bucket cannot be combined.
        RunError: the session cannot go on.
    """
    try:
        return _begin(state, bucket)
    except Exception as error:
        if is_initialized():
            session().fail(error)
        raise


def _begin(state: Buckets, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    if not isinstance(state, Buckets):
        raise SpecError(
            f"the state of the hook is {state!r}, not exchange(): use "
            "ddp.register_comm_hook(hpcps.torch.exchange(), hpcps.torch.hook)"
        )
    if isinstance(bucket, Tensor):
        raise SpecError(
            "the hook is for DistributedDataParallel, which gives it buckets, and it got a tensor: no process has "
            "whole gradients with fully_shard and FullyShardedDataParallel"
        )
    if state.model is None:
        state.begin()
    parameters = bucket.parameters()
    state.check(bucket, parameters)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    state.waiting.append((bucket.buffer(), _shapes(bucket), future))
    if state.whole and not bucket.is_last():
        return future
    buffers, found, futures = zip(*state.waiting, strict=True)
    state.waiting = []
    shapes = [shape for each in found for shape in each]
    name = state.name(bucket, shapes)
    if name not in state.exchanges:
        state.exchanges[name] = Together(buffers, name, state.reduction, shapes=shapes)
    together = state.exchanges[name]
    exchange = together.begin(buffers)

    def done() -> None:
        try:
            together.finish()
            if bucket.is_last():  # before the results, because the script may end with them
                session().charge("wait")
                session().step()
        except Exception as error:
            for each in futures:
                each.set_exception(error)
            if exchange.error is None:
                raise
            return
        for each, buffer in zip(futures, buffers, strict=True):
            each.set_result(buffer)

    session().then(exchange, done)
    if bucket.is_last():  # the script now waits for the buckets
        state.updates.count(parameters)
        session().charge("train")
    return future


def _shapes(bucket: GradBucket) -> list[tuple[int, ...]]:
    """Return the shape of each gradient in the buffer of a bucket.

    Raises:
        SpecError: they do not fill it, or are sparse.
    """
    values = bucket.buffer()
    if values.layout is not torch.strided:
        raise SpecError(
            f"bucket {bucket.index()} of DistributedDataParallel has a sparse gradient, and the hook combines dense "
            "ones: use sparse=False, or DistributedOptimizer or DistributedDataParallel of hpcps.torch"
        )
    # DistributedDataParallel stores a complex number as two real ones.
    pairs = [parameter.is_complex() and not values.is_complex() for parameter in bucket.parameters()]
    shapes = [(*p.shape, 2) if pair else tuple(p.shape) for p, pair in zip(bucket.parameters(), pairs, strict=True)]
    if sum(map(prod, shapes)) != values.numel():
        raise SpecError(
            f"bucket {bucket.index()} of DistributedDataParallel has {values.numel()} elements, and its parameters "
            f"have {sum(map(prod, shapes))}, of the shapes {', '.join(str(list(shape)) for shape in shapes[:8])}: the "
            "hook combines only gradients of the shapes of their parameters"
        )
    return shapes

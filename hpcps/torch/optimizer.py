"""DistributedOptimizer: combines the gradients of all processes before each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from hpcps.errors import RunError, SpecError
from hpcps.session.current import is_initialized, rank, session
from hpcps.session.reduction import ACCUMULATE, Reduction
from hpcps.torch.combining import push_pull
from hpcps.torch.compatibility import refuses_absent_arguments
from hpcps.torch.compression import Compressing, Compression, conversion
from hpcps.torch.exchange import begin, named, reduction_of
from hpcps.torch.gradients import Gradients
from hpcps.torch.horovod import operation
from hpcps.torch.state import is_asynchronous

_optimizers = count()


class _Exchanging(torch.optim.Optimizer):
    """What `DistributedOptimizer` adds to the class of every optimizer: copies are of the class that it had before."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the optimizer without what belongs to the session of this process."""
        return object.__new__, (type(self).__bases__[1],), self.__getstate__()


class GradientExchanger(_Exchanging):
    """What `DistributedOptimizer` adds to the class of an optimizer."""

    _gradients: Gradients
    _known: Mapping[Tensor, str]
    _loss: str

    def synchronize(self) -> None:
        """Wait until the gradients of all processes are combined, such as to clip them before `step`.

        Each call combines the gradients as they are then: with `op=Sum`, a second one adds up the sums.
        """
        self._gradients.synchronize()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes that add up before the gradients are exchanged.

        Raises:
            RunError: a step has begun.
            SpecError: it is no whole number from 1.
        """
        self._gradients.set_passes(_checked_passes(passes))

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` use the gradients as they are, after `synchronize`."""
        self._gradients.synchronizes = False
        try:
            yield
        finally:
            self._gradients.synchronizes = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Combine the gradients of all processes, unless `synchronize` has, and take a step.

        With a closure, the optimizer gets the mean of the losses of all processes, and so does the caller. All
        processes must then give a closure, and each closure a loss.
        """
        gradients = self._gradients
        if closure is None:
            gradients.combine()
        check_exchanged(self, gradients.names, self._known)
        if is_initialized():  # else nobody is left who could take other steps
            session().updated()
        if closure is None:
            return super().step()  # without an argument: a class of a script may take none

        def synchronized() -> Any:
            loss = closure()
            gradients.combine()
            if loss is None:
                return None
            # The mean: an optimizer that decides by the loss, such as LBFGS, must decide alike in all processes.
            mean = push_pull(torch.as_tensor(loss, dtype=torch.float64).detach(), name=self._loss)
            return mean.to(loss) if isinstance(loss, Tensor) else mean.item()

        return super().step(synchronized)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What `GradScaler.step` reads before it unscales gradients, which does not count in their versions.

        Raises:
            RunError: the gradients are being exchanged.
        """
        if self._gradients.begun:
            raise RunError(
                "a GradScaler would unscale gradients while they are exchanged: call optimizer.synchronize() before "
                "scaler.unscale_(optimizer), and scaler.step(optimizer) in `with optimizer.skip_synchronize():`"
            )
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; forget the backward passes of a step of several that have begun.

        Raises:
            RunError: gradients have had all backward passes of a step, which is not taken.
        """
        if self._gradients.begun:
            raise RunError(
                "zero_grad() between backward() and step() would lose gradients that are being exchanged: call step() "
                "or synchronize() before; a GradScaler needs synchronize() before its unscale_() or step(); if the "
                "backward pass was for another optimizer, as that of a generator through its discriminator, call "
                "requires_grad_(False) for these parameters before it, and requires_grad_(True) after it"
            )
        self._gradients.forget()
        super().zero_grad(set_to_none)


class WeightExchanger(_Exchanging):
    """What `DistributedOptimizer` adds to the class of an optimizer in asynchronous training."""

    _weights: dict[Tensor, str]
    _known: Mapping[Tensor, str]

    def synchronize(self) -> None:
        """Do nothing: gradients are not exchanged."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: a step uses the gradients that there are.

        Raises:
            SpecError: it is no whole number from 1.
        """
        _checked_passes(passes)

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Return a context without effect: `step` waits for no gradients."""
        return nullcontext()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, push the difference of the weights, and pull the newest weights."""
        check_exchanged(self, self._weights, self._known)
        before = [parameter.detach().clone() for parameter in self._weights]
        result = super().step() if closure is None else super().step(closure)
        changes = [p.detach() - old for p, old in zip(self._weights, before, strict=True)]
        self._exchange(changes)
        session().step(together=False)
        return result

    def _exchange(self, changes: Sequence[Tensor], *, given: bool = True) -> None:
        pairs = zip(self._weights.items(), changes, strict=True)
        pending = [begin(change, p.detach(), name, ACCUMULATE, given=given) for (p, name), change in pairs]
        for each in pending:
            each.finish()


def check_exchanged(
    optimizer: torch.optim.Optimizer, exchanged: Mapping[Tensor, str], known: Mapping[Tensor, str]
) -> None:
    """Check that a step changes only parameters that are exchanged.

    Args:
        optimizer: the optimizer.
        exchanged: the parameters that are exchanged.
        known: the names of parameters, for the message.

    Raises:
        RunError: there is another one.
    """
    for group, parameters in enumerate(each["params"] for each in optimizer.param_groups):
        for k, parameter in enumerate(parameters):
            if parameter.requires_grad and parameter not in exchanged:
                name = known.get(parameter, f"{k} of group {group}")
                raise RunError(
                    f"parameter {name} was frozen, or not in the optimizer, when DistributedOptimizer was called: it "
                    "is not exchanged: unfreeze or add parameters before, or then create another optimizer and call "
                    "DistributedOptimizer for it"
                )


@refuses_absent_arguments
def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressing = Compression.none,
    backward_passes_per_step: int = 1,
    op: str | None = None,
    gradient_predivide_factor: float = 1.0,
    *,
    sparse_as_dense: bool = False,
    average: bool | None = None,
    rule: object = None,
    attack: object = None,
    seed: int = 0,
) -> Any:
    """Make an optimizer combine the gradients of all processes before each step, and return it.

    The exchange of a gradient begins as soon as the backward pass has computed it. The optimizer keeps its class and
    state, and gets two methods: `synchronize()` waits for the gradients, and `skip_synchronize()` is a context in which
    `step` does not exchange them again. The gradient of a parameter that no backward pass has reached counts as zero.
    It stays None if it is None in all processes.

    After `init(asynchronous=True)`, a step uses the gradients of this process only. It pushes the difference of the
    weights, which the aggregators add to theirs, and pulls the newest weights.

    Args:
        optimizer: the optimizer; create schedulers of its learning rate afterwards.
        named_parameters: `model.named_parameters()`; without it, parameters are numbered.
        compression: `Compression.fp16` exchanges gradients as float16; see `Compressing` for compressors of hpcps.
        backward_passes_per_step: backward passes that add up before the gradients are exchanged; scale the loss.
        op: whether steps use the mean of the gradients, `Average`, or their sum, `Sum`; the default is the mean.
        gradient_predivide_factor: what gradients are divided by before their exchange, and the mean is multiplied by
            after it, such as to keep them in the range of float16 with `Compression.fp16`. Sums are float64: without
            such a conversion it changes only the rounding.
        sparse_as_dense: whether sparse gradients, such as those of `nn.Embedding(sparse=True)`, become dense. By
            default the rows travel that the processes have, and steps use sparse gradients. Rules and compressors get
            dense ones.
        average: another way to say so.
        rule: the rule that combines the gradients instead, see `push_pull`; each gradient is one block. A rule that
            sees whole vectors gets all gradients of the step.
        attack: an attack of hpcps, by its name, its table or an object: the attackers of an experiment with this
            `seed` are simulated.
        seed: the seed of the attack's random numbers.

    Raises:
        SpecError: names are missing or occur twice, or the rule cannot be used.
    """
    _checked_passes(backward_passes_per_step)
    if isinstance(optimizer, GradientExchanger | WeightExchanger):
        raise SpecError("DistributedOptimizer has this optimizer already: call it once for each optimizer")
    if "step" in vars(optimizer):
        raise SpecError("a scheduler uses this optimizer already: create it after DistributedOptimizer")
    used = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    pairs = (
        named("DistributedOptimizer", named_parameters)
        if named_parameters is not None
        else [(str(k), p) for k, p in enumerate(used)]
    )
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(f"named_parameters has names twice: {', '.join(twice)}")
    known = {parameter: name for name, parameter in pairs}
    if missing := sum(parameter not in known for parameter in used):
        raise SpecError(f"named_parameters lacks {missing} of the {len(used)} parameters of the optimizer")
    if not isinstance(sparse_as_dense, bool):
        raise SpecError(f"sparse_as_dense is {sparse_as_dense!r}: give True or False")
    found = operation(average, op)
    if found not in ("mean", "sum"):
        raise SpecError(f"op is {found}: steps use the mean or the sum of gradients: use Average or Sum, or rule=")
    reduction = reduction_of(found, rule, attack, seed, compression)
    factor = _checked_factor(gradient_predivide_factor, reduction)
    if is_asynchronous() and compression not in (None, Compression.none):
        raise SpecError("asynchronous training adds the differences of weights: compression= is not for it")
    what = "weights" if is_asynchronous() else "gradient"
    # Several models of a script may have parameters of the same names.
    number = next(_optimizers)
    prefix = f"optimizer {number}/{what}" if number else what
    own = {parameter: f"{prefix}/{known[parameter]}" for parameter in used}
    if is_asynchronous():
        return _asynchronously(optimizer, own, known, reduction)
    gradients = Gradients(own, reduction, backward_passes_per_step, conversion(compression), factor, sparse_as_dense)
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (GradientExchanger, kind), {})
    optimizer._gradients, optimizer._known = gradients, known  # type: ignore[attr-defined]
    optimizer._loss = f"loss of optimizer {number}"  # type: ignore[attr-defined]
    return optimizer


def _checked_passes(passes: int) -> int:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise SpecError(f"backward_passes_per_step must be a whole number from 1, not {passes!r}")
    return passes


def _checked_factor(factor: float, reduction: Reduction) -> float:
    """Return what gradients are divided by before their exchange.

    Raises:
        SpecError: it is no positive number, or there is no mean to multiply.
    """
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not (factor > 0 and isfinite(factor)):
        raise SpecError(f"gradient_predivide_factor is {factor!r}: give a positive number")
    if factor != 1.0 and (reduction != "mean" or is_asynchronous()):
        raise SpecError(
            f"gradient_predivide_factor is {factor!r}, which is for the mean of gradients: leave it out, or leave out "
            "op=Sum, rule=, attack=, a compressor and asynchronous training"
        )
    return factor


def _asynchronously(
    optimizer: Any, names: Mapping[Tensor, str], known: Mapping[Tensor, str], reduction: Reduction
) -> Any:
    """Make an optimizer exchange weights; all processes begin with those of process 0."""
    if reduction not in ("mean", "sum"):
        raise SpecError("asynchronous training adds the differences of weights: rule= and attack= are not for it")
    optimizer.__class__ = type(type(optimizer).__name__, (WeightExchanger, type(optimizer)), {})
    optimizer._weights, optimizer._known = names, known
    optimizer._exchange([parameter.detach() for parameter in names], given=rank() == 0)
    return optimizer

"""CrossBarrier: a step returns at once, and each layer waits for its own parameters in its next forward pass.

BytePS's scripts take its other names from this module, too: those of `hpcps.torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from hpcps.errors import SpecError
from hpcps.session.current import session
from hpcps.torch.gradient_buckets import GradientBucket, SparseGradient
from hpcps.torch.optimizer import GradientExchanger, WeightExchanger, check_exchanged

_OPTIMIZERS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)
"""The optimizers whose step changes each parameter by its own gradient and state."""
_INSTEAD = "use DistributedOptimizer without CrossBarrier"


def __getattr__(name: str) -> Any:
    """Return a name of `hpcps.torch`."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hpcps.torch"), name)


class _Hook:
    """What a module calls before its forward pass, and before its parameters are saved or loaded.

    A copy of it, as of a copied or a pickled model, does nothing: no optimizer waits for the parameters of a copy.
    """

    def __init__(self, finish: Callable[[torch.nn.Module], None] | None = None) -> None:
        self._finish = finish

    def __call__(self, module: torch.nn.Module, *_: object) -> None:
        if self._finish is not None:
            self._finish(module)

    def __reduce__(self) -> tuple[object, ...]:
        return _Hook, ()


_VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")
"""The properties of a tensor that read its values."""


class _Reads(TorchFunctionMode):
    """Waits in forward passes for the parameters that a function of torch reads, whichever module calls it.

    Some modules read parameters of others, such as MultiheadAttention those of its `out_proj`. While a mode is active,
    torch takes no fast paths; they have other bits, and are for passes without gradients, which wait for all before.
    """

    def __init__(self, barrier: _CrossBarrier) -> None:
        """Take the optimizer whose updates are awaited."""
        super().__init__()
        self._barrier = barrier
        self._depth = 0

    @property
    def _active(self) -> bool:
        return any(mode is self for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]

    def begin(self, _: torch.nn.Module) -> None:
        """Begin with the outermost module; end when nothing is to be awaited."""
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        needed = bool(self._barrier._updates) and torch.is_grad_enabled()
        if not needed:
            self._leave()
        elif self._depth == 1 and not self._active:
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self, _: torch.nn.Module) -> None:
        """End with the outermost module."""
        if self._depth and not torch.compiler.is_compiling():
            self._depth -= 1
            if not self._depth:
                self._leave()

    def _leave(self) -> None:
        """Leave the mode, unless the script has entered one meanwhile: modes end in the reverse order."""
        stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if stack and stack[-1] is self:
            self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ != "__get__" or getattr(getattr(func, "__self__", None), "__name__", "") in _VALUES:
            given = [*args, *kwargs.values()]
            each = [part for value in given for part in (value if isinstance(value, (tuple, list)) else (value,))]
            self._barrier._await_parameters([value for value in each if isinstance(value, Tensor)])
        return func(*args, **kwargs)


@dataclass(frozen=True)
class _Update:
    """The update of the parameters of a bucket, which waits for their gradients.

    Attributes:
        gradients: the gradients that are exchanged, by parameter. The script may clear them meanwhile.
        groups: the settings of the optimizer at its step, such as the learning rate.
    """

    gradients: Mapping[Tensor, Tensor | None]
    groups: list[dict[str, Any]]


class _CrossBarrier(GradientExchanger):
    """What `CrossBarrier` adds to the class of an optimizer that exchanges gradients."""

    _updates: dict[GradientBucket | SparseGradient, _Update]
    _read_by: dict[torch.nn.Module, list[Tensor]]
    _steps_left: int | None

    def synchronize(self) -> None:
        """Wait until all parameters have had their updates, such as before the script reads them itself.

        Raises:
            RunError: gradients of a step that is not taken are being exchanged; the session ends.
        """
        if self._gradients.begun:
            raise self._gradients.failed(
                "synchronize() between backward() and step(), as to clip gradients by their global norm, needs all "
                f"gradients before the first parameter changes, and CrossBarrier does not wait: {_INSTEAD}"
            )
        self._finish(list(self._updates))

    def skip_synchronize(self) -> NoReturn:
        """Refuse what clips gradients.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"skip_synchronize() is for steps that clip gradients, which need all of them: {_INSTEAD}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step when the gradients have come; return at once, or after the last of `num_steps` steps at its end.

        The learning rate and the other settings are those of now.

        Raises:
            SpecError: there is a closure or a hook, which need all gradients.
            RunError: a gradient of the last step was changed after its backward pass.
        """
        if closure is not None:
            raise SpecError(f"a closure needs the loss after all parameters have changed: {_INSTEAD}")
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            raise SpecError(f"the hooks of a step see all gradients and parameters at once: {_INSTEAD}")
        self._finish(list(self._updates))  # of parameters that the script has not used since
        check_exchanged(self, self._gradients.names, self._known)
        for bucket in self._gradients.begin():
            bucket.taken = True
            gradients = {parameter: parameter.grad for parameter in bucket.parameters}
            self._updates[bucket] = _Update(gradients, self._settings(bucket.parameters))
        session().step()
        session().updated()
        if self._steps_left is not None:
            self._steps_left -= 1
        if self._steps_left is not None and self._steps_left <= 0:
            self._finish(list(self._updates))
        else:  # a sparse gradient is put together here, which needs all of its rows
            self._finish([bucket for bucket in self._updates if isinstance(bucket, SparseGradient)])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; those that are exchanged for the last step are used nevertheless."""
        if not set_to_none:
            self._finish(list(self._updates))
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after all steps; see `torch.optim.Optimizer.state_dict`."""
        self._finish(list(self._updates))
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; see `torch.optim.Optimizer.load_state_dict`."""
        self._finish(list(self._updates))
        super().load_state_dict(state_dict)

    def __getstate__(self) -> Any:
        self._finish(list(self._updates))
        return super().__getstate__()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What `GradScaler.step` reads.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"a GradScaler needs all gradients before a step, and CrossBarrier does not wait: {_INSTEAD}")

    def _settings(self, parameters: Iterable[Tensor]) -> list[dict[str, Any]]:
        """Return the groups of the optimizer as they are now, with only some of their parameters."""
        wanted, groups = set(parameters), []
        for group in self.param_groups:
            if chosen := [parameter for parameter in group["params"] if parameter in wanted]:
                settings = {k: v.clone() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
                groups.append({**settings, "params": chosen})
        return groups

    def _watch(self, module: torch.nn.Module) -> None:
        """Wait for the parameters of a module, before its forward pass.

        Without gradients, as in an evaluation, fast paths of torch read the parameters of other modules, too.
        """
        if torch.is_grad_enabled():
            self._await_parameters(self._read_by[module])
        else:
            self._finish(list(self._updates))

    def _await(self, module: torch.nn.Module) -> None:
        """Wait for the parameters of a module, before they are saved or loaded."""
        self._await_parameters(self._read_by[module])

    def _await_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Wait for parameters."""
        self._finish(self._buckets_of(parameters) if self._updates else [])

    def _buckets_of(self, parameters: Iterable[Tensor]) -> list[GradientBucket | SparseGradient]:
        buckets = dict.fromkeys(self._gradients.bucket_of(p) for p in parameters if p in self._gradients.names)
        return [bucket for bucket in buckets if bucket in self._updates]

    def _finish(self, buckets: Iterable[GradientBucket | SparseGradient]) -> None:
        """Wait for gradients, and update their parameters.

        Raises:
            RunError: the script has changed a gradient; the session ends.
        """
        for bucket in buckets:
            update = self._updates.pop(bucket)
            now = {parameter: parameter.grad for parameter in bucket.parameters}
            for parameter, gradient in update.gradients.items():
                parameter.grad = gradient
            self._gradients.finish([bucket])
            self._apply(update.groups)
            for parameter, gradient in update.gradients.items():
                if now[parameter] is not gradient:  # the script has cleared it
                    parameter.grad = now[parameter]

    def _apply(self, groups: list[dict[str, Any]]) -> None:
        """Let the optimizer change some parameters, without the hooks of a step."""
        kind: Any = type(self).__bases__[1]
        own = self.param_groups
        self.param_groups = groups
        try:
            kind.step.__wrapped__(self)
        finally:
            self.param_groups = own


def CrossBarrier(  # noqa: N802
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, num_steps: int | None = None
) -> Any:
    """Make the steps of an optimizer return at once, and return it.

    Each parameter is updated when its gradient has come, before the next forward pass of the module that has it: the
    first layers, whose gradients have the highest priority, compute while those of the last ones travel. What a forward
    pass, `state_dict()` or `synchronize()` sees has the same bits as with `DistributedOptimizer` alone. A script that
    reads parameters itself, or copies the model, calls `synchronize()` before.

    Args:
        model: the model. A parameter that other modules read than its own, as the `out_proj` of MultiheadAttention, is
            awaited where a function of torch reads it. Modules must be called, not their `forward`.
        optimizer: what `DistributedOptimizer` returns, of SGD, Adam, AdamW, RMSprop or Adagrad; create schedulers of
            its learning rate afterwards.
        num_steps: the steps of the script; the last one, and those after it, wait for their end.

    Raises:
        SpecError: the optimizer needs all gradients at once, or has parameters that the model does not have.
    """
    if not isinstance(model, torch.nn.Module):
        raise SpecError(
            f"CrossBarrier expects a model, not {type(model).__name__}: give CrossBarrier(model, optimizer)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise SpecError(f"CrossBarrier waits in the hooks of modules, which a scripted model does not call: {_INSTEAD}")
    kind = _checked_kind(optimizer)
    if num_steps is not None and (isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1):
        raise SpecError(f"num_steps is {num_steps!r}: give the number of steps of the script, or leave it out")
    gradients = optimizer._gradients  # type: ignore[attr-defined]
    modules = {module: list(module.parameters(recurse=False)) for module in model.modules()}
    there = {parameter for own in modules.values() for parameter in own}
    if missing := [name for parameter, name in gradients.names.items() if parameter not in there]:
        raise SpecError(
            f"CrossBarrier waits in the modules of a model, and this one lacks {missing[0]}, a parameter of the "
            "optimizer: give the model that has all of them"
        )
    optimizer.__class__ = type(kind.__name__, (_CrossBarrier, kind), {})
    gradients.prioritize()
    barrier: Any = optimizer
    barrier._updates, barrier._steps_left = {}, num_steps
    barrier._read_by = {module: own for module, own in modules.items() if own or module is model}
    watch, wait, reads = _Hook(barrier._watch), _Hook(barrier._await), _Reads(barrier)
    for module in barrier._read_by:
        # Before hooks of others, as those with which weight_norm computes a weight from its parameters.
        module.register_forward_pre_hook(watch, prepend=True)
        module.register_state_dict_pre_hook(wait)
        module._register_load_state_dict_pre_hook(wait, with_module=True)
    begin, end = _Hook(reads.begin), _Hook(reads.end)
    for module in modules:
        module.register_forward_pre_hook(begin, prepend=True)
        module.register_forward_hook(end, always_call=True)
    session().expect(_finished(ref(barrier)))
    return barrier


def _checked_kind(optimizer: object) -> type[Any]:
    """Return the class that an optimizer had before `DistributedOptimizer`.

    Raises:
        SpecError: its steps need all gradients at once.
    """
    if isinstance(optimizer, WeightExchanger):
        raise SpecError("asynchronous training waits for no gradients: leave out CrossBarrier")
    if not isinstance(optimizer, GradientExchanger):
        raise SpecError("CrossBarrier expects an optimizer of DistributedOptimizer: call that before")
    if isinstance(optimizer, _CrossBarrier):
        raise SpecError("CrossBarrier has this optimizer already: call it once for each optimizer")
    if "step" in vars(optimizer):
        raise SpecError("a scheduler uses this optimizer already: create it after CrossBarrier")
    kind: type[Any] = type(optimizer).__bases__[1]
    if kind not in _OPTIMIZERS:
        known = ", ".join(each.__name__ for each in _OPTIMIZERS)
        raise SpecError(
            f"CrossBarrier updates each parameter when its gradient has come, which {kind.__name__} may not allow: use "
            f"one of {known}, or DistributedOptimizer without CrossBarrier"
        )
    if optimizer._gradients.whole:
        raise SpecError(
            "CrossBarrier updates each parameter when its gradient has come, and this rule or attack needs all "
            f"gradients at once: use a rule that sees coordinates or blocks, or {_INSTEAD}"
        )
    return kind


def _finished(known: ref[Any]) -> Callable[[], str]:
    """Return what updates all parameters before the session ends."""

    def finish() -> str:
        if (barrier := known()) is not None and not barrier._gradients.begun:
            barrier.synchronize()
        return ""

    return finish

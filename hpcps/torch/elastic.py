"""Horovod's module of elastic training: `run` lets a script go on after the loss of a process, and `TorchState`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from hpcps.errors import SpecError
from hpcps.session.current import exchanging, note_over, renew, session
from hpcps.session.join import LaunchedSession
from hpcps.session.pending import forget_exchanges
from hpcps.session.tensors import Declaration
from hpcps.torch.collectives import barrier
from hpcps.torch.gradients import renew_all
from hpcps.torch.resuming import TorchState

__all__ = ["TorchState", "run"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_run = False
_declared: Sequence[Declaration] = ()
"""The tensors that the script has declared before the function; a process that is started later does so, too."""


def run(
    function: Callable[Concatenate[TorchState, Arguments], Result],
) -> Callable[Concatenate[TorchState, Arguments], Result]:
    """Let a function, which trains, be repeated from the last commit of its state when a process is lost.

        @bps.elastic.run
        def train(state):
            while state.step < 1000:
                ...
                state.step += 1
                state.commit()

        train(bps.elastic.TorchState(model=model, optimizer=optimizer, step=0))

    The function begins with the models, optimizers and tensors of process 0 in all processes. Under `hpcps launch
    --survive` it is called again in all of them when one of them was lost: they have the state of the last commit then,
    and the replacement of the lost one has got it from another. It returns when it returns in all processes.

    Args:
        function: its first argument is the state.

    Returns:
        The function to call, once in a script.
    """

    @wraps(function)
    def wrapper(state: TorchState, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        global _run, _declared
        current = session()
        if not (isinstance(current, LaunchedSession) and current.generation.survives):
            state.sync()
            return function(state, *args, **kwargs)
        if _run:
            raise SpecError(
                "a script of `hpcps launch --survive` calls one function of elastic.run, once: a replacement of a "
                "lost process begins with the first one: put all training into one function"
            )
        _run, lost = True, False
        _declared = [tensor.declaration for _, tensor in current.declared.values()]
        while True:
            try:
                if lost:
                    forget_exchanges()
                    declare_anew()
                with exchanging():
                    state.sync()
                    result = function(state, *args, **kwargs)
                    barrier()
                note_over()
                return result
            except Exception:
                if not renew():
                    raise
                lost = True

    return wrapper


def declare_anew() -> None:
    """Declare the tensors of the script in the session of another generation, and begin its optimizers anew."""
    for declaration in _declared:
        session().declare(declaration)
    renew_all()

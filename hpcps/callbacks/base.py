"""Callbacks: what is told of a run's rounds and evaluations while it runs, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcps.numerics.layout import Vector
from hpcps.registry.config import Config


@dataclass(frozen=True)
class RoundReport:
    """A round that is over: of all roles in a synchronous run, of the coordinator in an asynchronous one.

    The coordinator is validator 0, or worker 0 without validators. A pair is a block of an update.

    Attributes:
        run_id: the id of the run.
        label: its label.
        round: the round, from 0.
        version: the version of the model: how many rounds it holds, or how many updates in an asynchronous run.
        epoch: the epochs of the coordinator so far, as a fraction.
        loss: the mean training loss of the coordinator in this round; None if it took no step.
        train_accuracy: likewise the share of its training samples classified rightly, 0 to 1.
        sent: pairs that reached a rule since the last report, in all validators or servers; None if they are in other
            processes.
        accepted: those of them that the rule accepted; None if it does not state them, or is in other processes.
        model: the global model after the round, `[d]` float32, a copy that cannot be written to.
    """

    run_id: str
    label: str
    round: int
    version: int
    epoch: float
    loss: float | None
    train_accuracy: float | None
    sent: int | None
    accepted: int | None
    model: Vector


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation of a model on the test set.

    Attributes:
        run_id: the id of the run.
        label: its label.
        round: the round that began with the model, or in which it was made.
        epoch: the epoch that the evaluation ends.
        accuracy: the share of the test samples classified rightly, 0 to 1.
        loss: their mean loss.
        acceptance_rate: accepted pairs over sent pairs since the last evaluation, 0 to 1; None if it is not known.
        model: the evaluated model, `[d]` float32, a copy that cannot be written to.
    """

    run_id: str
    label: str
    round: int
    epoch: int
    accuracy: float
    loss: float
    acceptance_rate: float | None
    model: Vector


class Callback(Config):
    """What an experiment names under `callbacks`; the process of the coordinator calls it.

    A method may return a dictionary of numbers by name: they are recorded, and `hpcps plot` draws them by epoch. An
    exception ends the run. Callbacks do not affect results, and run ids do not include them.
    """

    def on_round(self, report: RoundReport) -> Mapping[str, Any] | None:
        """Follow a round that is over."""
        return None

    def on_evaluation(self, report: EvaluationReport) -> Mapping[str, Any] | None:
        """Follow an evaluation."""
        return None


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called during a run in this process; an exception of one ends the run.

    For runs of several processes, and for those of `hpcps run`, see `Callback`.

    A function may return a dictionary of numbers by name: they are recorded, and `hpcps plot` draws them by epoch.

    Attributes:
        on_round: called after each round.
        on_evaluation: called after each evaluation.
    """

    on_round: Callable[[RoundReport], object] | None = None
    on_evaluation: Callable[[EvaluationReport], object] | None = None

    def __post_init__(self) -> None:
        """Check the functions.

        Raises:
            TypeError: one is no function.
        """
        for name, call in vars(self).items():
            if call is not None and not callable(call):
                raise TypeError(f"{name}: expects a function, got {call!r}")

    @staticmethod
    def listed(given: Callbacks | Sequence[Callbacks]) -> tuple[Callbacks, ...]:
        """Return one or several as a tuple.

        Raises:
            TypeError: something else was given, such as a function.
        """
        several = (given,) if isinstance(given, Callbacks) else given
        if not isinstance(several, Sequence) or not all(isinstance(each, Callbacks) for each in several):
            raise TypeError("callbacks: expects hpcps.Callbacks(on_round=…), or a list of them")
        return tuple(several)

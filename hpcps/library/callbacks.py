"""Callbacks: functions of a script or notebook that follow the rounds and evaluations of a run in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from hpcps.errors import CallbackError, text_of
from hpcps.execution.observer import Observations
from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.combiner_state import Tally
from hpcps.roles.model_inbox import ModelInbox
from hpcps.spec.load import Point


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
        sent: pairs that reached a rule since the last report, in all validators or servers.
        accepted: those of them that the rule accepted; None if it does not state them.
        model: the global model after the round, `[d]` float32, a copy that cannot be written to.
    """

    run_id: str
    label: str
    round: int
    version: int
    epoch: float
    loss: float | None
    train_accuracy: float | None
    sent: int
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


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called during a run in this process; an exception of one ends the run.

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


class Reporter:
    """Observes the roles of one run, and makes the reports for callbacks; see `hpcps.execution.observer.Observer`."""

    def __init__(self, point: Point, callbacks: Iterable[Callbacks], progress: Callable[[float, float | None], None]):
        """Begin to observe.

        Args:
            point: the run.
            callbacks: what to call.
            progress: gets the epochs of the coordinator so far, and the test accuracy if it has just been measured.
        """
        self._point = point
        self._coordinator = Roster.of(point.run).coordinator
        self._on_round = [each.on_round for each in callbacks if each.on_round]
        self._on_evaluation = [each.on_evaluation for each in callbacks if each.on_evaluation]
        self._progress = progress
        self._pairs = Tally()
        self._ended: Mapping[str, Any] | None = None

    def resume(self, directory: RunDirectory) -> None:
        """Take the last round of an attempt that stopped at a checkpoint: its model comes in the next attempt."""
        run = self._point.run
        if run.train.mode == "async" or run.topology.alone:  # they report a round in the attempt that records it
            return
        for file in directory.records:
            lines = read_lines(file).lines
            rounds = [line for line in lines if line.get("event") == "round"]
            if rounds and lines[-1].get("reason") == "suspended":
                self.recorded(Peer.parse(file.stem), "round", rounds[-1], None)

    def recorded(
        self, peer: Peer, event: str, fields: Mapping[str, Any], model: Callable[[], Vector] | None
    ) -> Observations:
        """Count pairs; report an evaluation, or keep the fields of the coordinator's round until its model is there."""
        if event in ("round", "applied") and "accepted_sent_pairs" in fields:
            self._pairs.add(Tally(sent=fields["sent_pairs"], accepted_sent=fields["accepted_sent_pairs"]))
        if peer != self._coordinator:
            return {}
        if event == "evaluation":
            self._progress(float(fields["epoch"]), fields["accuracy"])
            if self._on_evaluation and model is not None:
                return self._report_evaluation(fields, model())
        elif event == "round":
            self._progress(fields["epoch"], None)
            self._ended = fields
            if model is not None:  # the baseline, which gets no model from servers
                return self._end_round(model, None)
        return {}

    def adopted(self, peer: Peer, inbox: ModelInbox) -> Observations:
        """Report the round that made the model which the coordinator has adopted."""
        return self._end_round(lambda: inbox.model, inbox.version) if peer == self._coordinator else {}

    def _end_round(self, model: Callable[[], Vector], version: int | None) -> Observations:
        fields, self._ended = self._ended, None
        if fields is None or not self._on_round:  # the first model of an attempt was not made by a round in it
            return {}
        asynchronous = self._point.run.train.mode == "async" and version is not None
        report = RoundReport(
            run_id=self._point.run_id,
            label=self._point.label,
            round=fields["round"],
            version=version if asynchronous and version is not None else fields["round"] + 1,
            epoch=fields["epoch"],
            loss=fields["loss"],
            train_accuracy=fields["train_accuracy"],
            sent=self._pairs.sent,
            accepted=self._pairs.accepted_sent,
            model=_frozen(model()),
        )
        self._pairs = Tally()
        return self._call_all(self._on_round, report, "on_round")

    def _report_evaluation(self, fields: Mapping[str, Any], model: Vector) -> Observations:
        report = EvaluationReport(
            run_id=self._point.run_id,
            label=self._point.label,
            round=fields["round"],
            epoch=fields["epoch"],
            accuracy=fields["accuracy"],
            loss=fields["loss"],
            acceptance_rate=fields.get("acceptance_rate_sent_epoch"),
            model=_frozen(model.copy()),
        )
        return self._call_all(self._on_evaluation, report, "on_evaluation")

    def _call_all(
        self, calls: Iterable[Callable[[Any], object]], report: RoundReport | EvaluationReport, name: str
    ) -> Observations:
        """Call the functions; return the numbers that they returned, with the round and the epoch of the report."""
        values: dict[str, float] = {}
        for call in calls:
            returned = self._call(call, report, name)
            for key, value in returned.items() if isinstance(returned, Mapping) else ():
                values[str(key)] = self._number(name, report, key, value)
        return {"round": report.round, "epoch": report.epoch, "values": values} if values else {}

    @staticmethod
    def _number(name: str, report: RoundReport | EvaluationReport, key: object, value: object) -> float:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError) as error:
            raise CallbackError(
                f"{name} returned {key!r}: {value!r} in round {report.round} of run {report.run_id} ({report.label}): "
                "the values of a dictionary that it returns must be numbers, which are recorded"
            ) from error

    def _generators_kept(self) -> AbstractContextManager[None]:
        if self._point.run.model.backend != "torch":
            return nullcontext()
        from hpcps.training.pytorch.device import generators_kept

        return generators_kept()

    def _call(self, call: Callable[[Any], object], report: RoundReport | EvaluationReport, name: str) -> object:
        with self._generators_kept():
            try:
                return call(report)
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                raise CallbackError(
                    f"{name} failed in round {report.round} of run {report.run_id} ({report.label}), line "
                    f"{frame.lineno} of {frame.filename}: {text_of(error)}"
                ) from error


def _frozen(model: Vector) -> Vector:
    model.flags.writeable = False
    return model

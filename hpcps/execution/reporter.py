"""Tells callbacks what the roles of a run record."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hpcps.aggregation.outcomes import Tally
from hpcps.callbacks import Callback, Callbacks, EvaluationReport, RoundReport
from hpcps.errors import CallbackError, text_of
from hpcps.execution.observer import Observations
from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.model_inbox import ModelInbox
from hpcps.spec.schema import Run


class Reporter:
    """Observes the roles of one run, and makes the reports for callbacks; see `hpcps.execution.observer.Observer`."""

    def __init__(
        self,
        run: Run,
        label: str,
        callbacks: Iterable[Callbacks] = (),
        progress: Callable[[float, float | None], None] | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """Begin to observe.

        Args:
            run: the run, with its id.
            label: its label.
            callbacks: what to call after the callbacks of the run.
            progress: gets the epochs of the coordinator so far, and the test accuracy if it has just been measured.
            alone: whether all roles are in this process.
        """
        self._run, self._label = run, label
        self._coordinator = Roster.of(run).coordinator
        every: tuple[Callback | Callbacks, ...] = (*run.callbacks, *callbacks)
        self._calls = {
            name: [getattr(each, name) for each in every if _follows(each, name)]
            for name in ("on_round", "on_evaluation")
        }
        self._progress = progress or (lambda epoch, accuracy: None)
        self._sees_rules = alone or run.topology.validators == 1
        self._pairs = Tally()
        self._ended: Mapping[str, Any] | None = None

    def resume(self, directory: RunDirectory) -> None:
        """Take the last round of an attempt that stopped at a checkpoint: its model comes in the next attempt."""
        run = self._run
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
            if self._calls["on_evaluation"] and model is not None:
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
        if fields is None or not self._calls["on_round"]:  # the first model of an attempt was not made by a round in it
            return {}
        asynchronous = self._run.train.mode == "async" and version is not None
        report = RoundReport(
            run_id=self._run.id,
            label=self._label,
            round=fields["round"],
            version=version if asynchronous and version is not None else fields["round"] + 1,
            epoch=fields["epoch"],
            loss=fields["loss"],
            train_accuracy=fields["train_accuracy"],
            sent=self._pairs.sent if self._sees_rules else None,
            accepted=self._pairs.accepted_sent if self._sees_rules else None,
            model=_frozen(model()),
        )
        self._pairs = Tally()
        return self._call_all("on_round", report)

    def _report_evaluation(self, fields: Mapping[str, Any], model: Vector) -> Observations:
        report = EvaluationReport(
            run_id=self._run.id,
            label=self._label,
            round=fields["round"],
            epoch=fields["epoch"],
            accuracy=fields["accuracy"],
            loss=fields["loss"],
            acceptance_rate=fields.get("acceptance_rate_sent_epoch"),
            model=_frozen(model.copy()),
        )
        return self._call_all("on_evaluation", report)

    def _call_all(self, name: str, report: RoundReport | EvaluationReport) -> Observations:
        """Call the functions; return the numbers that they returned, with the round and the epoch of the report."""
        values: dict[str, float] = {}
        for call in self._calls[name]:
            returned = self._call(call, report, name)
            for key, value in returned.items() if isinstance(returned, Mapping) else ():
                if str(key) in values:
                    raise CallbackError(f"two callbacks return {str(key)!r} in {_place(report)}: give them other names")
                values[str(key)] = self._number(name, report, key, value)
        return {"round": report.round, "epoch": report.epoch, "values": values} if values else {}

    @staticmethod
    def _number(name: str, report: RoundReport | EvaluationReport, key: object, value: object) -> float:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError) as error:
            raise CallbackError(
                f"{name} returned {key!r}: {value!r} in {_place(report)}: "
                "the values of a dictionary that it returns must be numbers, which are recorded"
            ) from error

    def _generators_kept(self) -> AbstractContextManager[None]:
        if self._run.model.backend != "torch":
            return nullcontext()
        from hpcps.training.pytorch.device import generators_kept

        return generators_kept()

    def _call(self, call: Callable[[Any], object], report: RoundReport | EvaluationReport, name: str) -> object:
        with self._generators_kept():
            try:
                return call(report)
            except (Exception, SystemExit) as error:  # it must not end the process without a message
                frame = traceback.extract_tb(error.__traceback__)[-1]
                raise CallbackError(
                    f"{name} failed in {_place(report)}, line {frame.lineno} of {frame.filename}: {text_of(error)}"
                ) from error


def _place(report: RoundReport | EvaluationReport) -> str:
    return f"round {report.round} of run {report.run_id} ({report.label})"


def _frozen(model: Vector) -> Vector:
    model.flags.writeable = False
    return model


def _follows(callback: Callback | Callbacks, name: str) -> bool:
    """Tell whether a callback has this function; for others no model is copied."""
    if isinstance(callback, Callbacks):
        return getattr(callback, name) is not None
    return getattr(type(callback), name) is not getattr(Callback, name)

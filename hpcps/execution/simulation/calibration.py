"""Calibrate the costs of a simulation: fit them to the records of an MPI run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import trim_mean

from hpcps.errors import RunError, text_of
from hpcps.inputs import regular
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import ADVERSARY, EVALUATOR, Roster
from hpcps.records.files import read_lines
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.registry import using
from hpcps.registry.plugins import registry_of
from hpcps.spec.heterogeneity import ConstantDelay
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Adopt, Apply, Combine, Costs, Messages, Pack, Waiting
from hpcps.transport.backoff import Backoff

Matrix = NDArray[np.float64]

_WARM_UP = 3
"""Lines of each process that are left out, because the first calls load and compile code."""

_FEWEST = 10
"""Minimum number of lines of each worker."""

_OUTLIERS = 0.05
"""Fraction of values left out at each end of a mean, because other work of the machine causes outliers."""


@dataclass(frozen=True)
class Calibration:
    """The fitted costs of a run.

    Attributes:
        costs: the costs of tasks, messages and waiting.
        cores: the number of cores of the machine, if known.
    """

    costs: Costs
    cores: int | None


_BYTES = tuple(f"{role}bytes_{way}" for role in ("", "adversary_", "evaluator_") for way in ("sent", "received"))


class RunRecords:
    """The record lines of a finished run.

    Attributes:
        run: the run.
        cores: the number of cores of its machine, if known.
        size: the number of elements of the model.
    """

    def __init__(self, path: Path) -> None:
        """Read the records.

        Raises:
            RunError: the folder holds no finished run, or the records lack necessary values.
        """
        directory = RunDirectory(path)
        if (damage := directory.damage()) and damage.done:
            raise RunError(f"the run in {path} cannot be used: {damage}; run it again")
        if not directory.done:
            example = "results/quickstart/runs/1a2b3c4d5e"
            raise RunError(f"{path} is no folder of a finished run: name one, such as {example}")
        try:
            with using(registry_of(directory.plugins, path / PLUGINS)):
                self.run = Run.model_validate(directory.spec.get("run"))
            files = {Peer.parse(file.stem): file for file in directory.records}
            # The adversary is not predicted: what it does takes no time.
            self._lines = {peer: read_lines(file).lines for peer, file in files.items() if peer != ADVERSARY}
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error
        machine = directory.provenance.get("machine") or {}
        self.cores: int | None = machine.get("usable_cores")
        self.size = sum(np.load(regular(file)).size for file in path.glob("final/*.npy"))
        few = [str(peer) for peer in self.peers("worker") if len(self.rounds(peer)) < _FEWEST]
        if few or not any("polls" in line for lines in self._lines.values() for line in lines):
            what = f"too few rounds ({', '.join(few)})" if few else "no CPU seconds by task (an older version)"
            raise RunError(f"the records in {path} have {what}: execute a run of at least {_FEWEST + _WARM_UP} rounds")

    def peers(self, *roles: str) -> list[Peer]:
        """Return the processes of these roles; without arguments, all processes."""
        return [peer for peer in self._lines if not roles or peer.role in roles]

    def rounds(self, peer: Peer) -> list[dict[str, Any]]:
        """Return the lines of the rounds of a process (a server: of its entries) in its last attempt, after warm-up."""
        return [line for line in self._attempt(peer) if line["event"] in ("round", "applied")][_WARM_UP:]

    def evaluations(self, peer: Peer) -> int:
        """Return the number of evaluations whose CPU seconds are in the lines of the rounds of a process.

        An evaluation runs in the background of the rounds after its model, and counts in the line after its own.
        """
        rounds, found, counted = 0, set(), 0
        for line in self._attempt(peer):
            if line["event"] == "evaluation" and rounds >= _WARM_UP:
                # A round longer than an epoch ends several epochs, which share one evaluation.
                found.add((line["round"], line["step"]))
            elif line["event"] == "round":
                rounds += 1
                counted = len(found)
        return counted

    @property
    def evaluator_seconds(self) -> float:
        """The mean CPU seconds of an evaluation of the evaluator; 0 in a run without one."""
        spent = [
            line.get("cpu_evaluate", 0.0) for line in self._lines.get(EVALUATOR, ()) if line["event"] == "evaluated"
        ]
        return float(sum(spent)) / max(1, len(spent))

    def _attempt(self, peer: Peer) -> list[dict[str, Any]]:
        """Return the lines of the last attempt."""
        lines = self._lines[peer]
        return lines[max(number for number, line in enumerate(lines) if line["event"] == "start") :]

    @property
    def seconds_per_round(self) -> float:
        """The mean time between two rounds of the coordinator."""
        coordinator = Roster.of(self.run).coordinator
        times = [line["time"] for line in self.rounds(coordinator)]
        return float((times[-1] - times[0]) / (len(times) - 1))

    def seconds(self, task: str, *roles: str) -> list[float]:
        """Return the CPU seconds of a task in every round of every process of these roles."""
        return [line.get(f"cpu_{task}", 0.0) for peer in self.peers(*roles) for line in self.rounds(peer)]


def fit(path: str | Path, run: Run | None = None) -> Calibration:
    """Fit the costs to the records of a run.

    Args:
        path: the folder of the run.
        run: the run to predict; its local steps must be of the same kind.

    Raises:
        RunError: the records cannot be used; the message says why.
    """
    try:
        return _fitted(path, run)
    except (ArithmeticError, AttributeError, EOFError, LookupError, OSError, TypeError, ValueError) as error:
        raise RunError(f"the records in {path} are damaged: {text_of(error)}") from error


def _fitted(path: str | Path, run: Run | None) -> Calibration:
    records = RunRecords(Path(path))
    if "mpi" not in records.run.transport.offers:
        how = f"over transport.kind = {records.run.transport.kind}"
        raise RunError(f"{path} is a run {how}, whose records do not show the costs of MPI: name a run over MPI")
    if records.run.collective:
        raise RunError(f"{path} is a run without servers, whose records do not show their costs: name one with servers")
    if run is not None:
        _check_alike(records.run, run, path)
    if "," in (sizes := _batch_sizes(records.run)):
        raise RunError(f"the records in {path} are of train.batch_size = {sizes}: measure a run with one batch size")
    combiners = "validator" if records.run.topology.validators else "server"
    costs = Costs(
        step=ConstantDelay(seconds=_mean(list(_step_seconds(records)))),
        evaluate=_evaluation(records),
        pack=Pack(call=_mean(records.seconds("pack", "worker"))),
        adopt=Adopt(call=_mean(records.seconds("adopt", "worker"))),
        combine=_combining(records, combiners),
        apply=Apply(call=_mean(records.seconds("combine", "server")) if records.run.topology.validators else 0.0),
        messages=_messages(records),
        waiting=_waiting(records),
    )
    return Calibration(costs, records.cores)


def _check_alike(measured: Run, run: Run, path: str | Path) -> None:
    facts = [(run.model.name, run.data.name, _batch_sizes(run)) for run in (measured, run)]
    for key, there, here in zip(("model.name", "data.name", "train.batch_size"), *facts, strict=True):
        if there != here:
            raise RunError(
                f"the records in {path} are of {key} = {there}, this run has {here}: "
                "measure a run that differs in its topology only"
            )


def _batch_sizes(run: Run) -> str:
    """Return the batch sizes of the workers: usually one."""
    return ", ".join(map(str, sorted({run.batch_size("worker", index) for index in range(run.topology.workers)})))


def _step_seconds(records: RunRecords) -> Iterator[float]:
    """Yield the CPU seconds per local step of every worker's rounds."""
    for peer in records.peers("worker"):
        for before, line in pairwise(records.rounds(peer)):
            if steps := line["step"] - before["step"]:
                yield line.get("cpu_train", 0.0) / steps


def _evaluation(records: RunRecords) -> float:
    if spent := records.evaluator_seconds:
        return spent
    for peer in records.peers():
        if count := records.evaluations(peer):
            return sum(float(line.get("cpu_evaluate", 0.0)) for line in records.rounds(peer)) / count
    return 0.0


def _combining(records: RunRecords, role: str) -> Combine:
    """Fit the costs of the rule; rounds with few participants determine the cost of an additional update."""
    elements, seconds = [], []
    topology = records.run.topology
    for peer in records.peers(role):
        size = records.size // (1 if role == "validator" else topology.servers)
        for line in records.rounds(peer):
            elements.append(len(line["participants"]) * size)
            seconds.append(line.get("cpu_combine", 0.0))
    if records.run.train.mode == "async":
        return Combine(element=sum(seconds) / max(1, sum(elements)))
    call, element = _least_squares(np.column_stack([np.ones(len(elements)), elements]), np.array(seconds))
    return Combine(call=call, element=element)


def _messages(records: RunRecords) -> Messages:
    """Fit the costs of messages and record lines to the CPU seconds of processes outside their tasks."""
    rows, seconds = [], []
    for peer in records.peers():
        lines = records.rounds(peer)
        for line in lines:
            traffic = sum(line.get(name, 0) for name in _BYTES)
            rows.append((line["messages_sent"], line["messages_received"], traffic, 1.0))
            seconds.append(line.get("cpu_exchange", 0.0))
    send, receive, byte, record = _least_squares(np.array(rows), np.array(seconds))
    return Messages(send=send, receive=receive, byte=byte, record=record)


def _waiting(records: RunRecords) -> Waiting:
    lines = [line for peer in records.peers() for line in records.rounds(peer)]
    polls = sum(line["polls"] for line in lines)
    poll = sum(line.get("cpu_wait", 0.0) for line in lines) / max(1, polls)
    backoff = Backoff()
    return Waiting(spin=poll * backoff.quick_polls, poll=poll, interval=backoff.longest)


def _mean(values: Sequence[float]) -> float:
    """Return the mean without the largest and smallest values."""
    return float(trim_mean(values, _OUTLIERS)) if values else 0.0


def _least_squares(columns: Matrix, values: Matrix) -> tuple[float, ...]:
    """Return the non-negative least-squares coefficients of `values` `[n]` on `columns` `[n, k]`."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    return tuple(float(value) for value in nnls(columns / scale, values)[0] / scale)

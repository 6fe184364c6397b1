"""The logs of ps_pytorch and PyTorch-parameter-server: the steps of each worker and the results of the evaluator."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import InputError, RunError
from hpcps.inputs import read_bytes, read_text
from hpcps.records.imported_logs import LARGEST, MOST, ImportedRun, files_in, table_of_runs
from hpcps.records.inventory import enumerated

_PARTS = {
    "FetchWeight": "exchange",
    "Forward": "compute",
    "Backward": "compute",
    "Comm Cost": "exchange",
    "Computation": "compute",
    "GatherTime": "exchange",
    "Comp": "compute",
    "Encode": "compute",
    "Comm": "exchange",
    "Msg(MB)": "bytes_sent",
    "Acc": "train_accuracy",
    "Prec@1": "train_accuracy",
    "Prec@5": "",
}
"""What follows `Time Cost` in the line of a step, in some version, and the field of records to which it is added."""

_FIXED = r"(?:-?\d{1,15}\.\d{4}|nan|-?inf)"
"""A number as their logs format it: one with fewer decimals is cut."""
_COUNT = r"\d{1,9}"
_SHARE = r"\d{1,3}(?:\.\d+)?(?:e-\d+)?"

_NAMES = "|".join(map(re.escape, _PARTS))
_STEP = re.compile(
    rf"Worker: (?P<rank>{_COUNT}), (?:Cur )?Step: (?P<step>{_COUNT}), (?:Train )?Epoch: (?P<epoch>{_COUNT}) "
    rf"\[(?P<done>{_COUNT})/(?P<total>{_COUNT}) \({_COUNT}%\)\], (?:Train )?Loss: (?P<loss>{_FIXED}), "
    rf"Time Cost: (?P<cost>{_FIXED})(?P<parts>(?:, (?:{_NAMES}): +{_FIXED})*)"
)
_PART = re.compile(rf", ({_NAMES}): +({_FIXED})")
_EVALUATING = re.compile(rf"Evaluator evaluating results on step ({_COUNT})")
_EVALUATION = re.compile(
    rf"Test set: (?:Step: (?P<step>{_COUNT}), )?Average loss: (?P<loss>{_FIXED}), "
    rf"Prec@1: (?P<top1>{_SHARE}) Prec@5: (?P<top5>{_SHARE})"
)
_LINES = (_STEP, _EVALUATION, _EVALUATING)
_FRAGMENT = re.compile(r"Worker: |Time Cost:|FetchWeight:|Test set:|Prec@[15]:|Evaluator evaluating")
"""What a damaged line has outside of the whole ones in it."""
_CONTINUES = re.compile(r"[\d.,]")
"""How the text after a whole line begins if that is not its end."""
_WORLD = re.compile(rf"the world size is ({_COUNT})|in all ({_COUNT}) workers")

_MOST_WORKERS = 100_000
"""More are a damaged rank."""

_ENDINGS = (".log", ".txt", ".out", ".stdout")


@dataclass(frozen=True)
class LoggedStep:
    """A step of one worker; times are seconds.

    Attributes:
        step: its number, from 1.
        epoch: the passes over the data before this one.
        done: the samples of this pass before the step.
        total: the samples of a pass.
        loss: the mean loss of its batch.
        cost: the time from the moment when the worker learned the number of the step to its line.
        parts: what the line states further, by its name there.
    """

    step: int
    epoch: int
    done: int
    total: int
    loss: float
    cost: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class LoggedEvaluation:
    """A line of the evaluator, or of a worker that evaluates; shares are from 0 to 1.

    Attributes:
        loss: as logged: not the cross-entropy in versions whose evaluator does not normalize the outputs.
    """

    accuracy: float
    top5: float
    loss: float


@dataclass(frozen=True)
class LogFile:
    """The lines of one file.

    Attributes:
        path: the file.
        steps: the steps of each worker, by its rank, which begins with 1.
        evaluations: the evaluations by step.
        workers: the number of workers that it states.
    """

    path: Path
    steps: dict[int, list[LoggedStep]] = field(default_factory=dict)
    evaluations: dict[int, LoggedEvaluation] = field(default_factory=dict)
    workers: int | None = None


@dataclass(frozen=True)
class LoggedTraining:
    """A run of ps_pytorch.

    Attributes:
        name: the name of its file or folder.
        series: the folder of several runs that it is in; empty for files that were named.
        steps: the steps of each worker, by its rank.
        evaluations: the evaluations by step.
        batch: the samples of a step of one worker; None if the lines do not show them.
    """

    name: str
    series: str
    steps: Mapping[int, list[LoggedStep]]
    evaluations: Mapping[int, LoggedEvaluation]
    batch: int | None

    @property
    def last(self) -> int:
        """The last step of any worker."""
        return max(steps[-1].step for steps in self.steps.values())

    def loss_at(self, step: int) -> float:
        """Return the mean loss of the workers in a step; NaN if no worker has a line of it."""
        losses = [each.loss for steps in self.steps.values() for each in steps if each.step == step]
        return float(np.mean(losses)) if losses else math.nan


def read_logs(paths: Sequence[Path]) -> list[LoggedTraining]:
    """Read the runs in some files and folders.

    The files that are named together, and those of one folder, are one run if no worker is in two of them; otherwise
    each is a run. A folder may have further folders. Files of a folder without any part of a line are ignored.

    Raises:
        RunError: there are no logs, or a run lacks the lines of a worker.
        InputError: a file cannot be read, is damaged, or has lines of several runs.
    """
    lacking = [str(path) for path in paths if not path.exists()]
    if lacking:
        raise RunError(f"no file or folder {enumerated(lacking)}: give the logs, or the folders that have them")
    files = [path for path in paths if not path.is_dir()]
    groups: list[tuple[Path | None, list[Path]]] = [(None, files)] if files else []
    for top in (path for path in paths if path.is_dir()):
        within = sorted(files_in(top))
        folders = dict.fromkeys(path.parent for path in within)
        groups += [(folder, [path for path in within if path.parent == folder]) for folder in folders]
    times = Counter(path.resolve() for _, members in groups for path in members)
    if twice := [str(path) for path, count in times.items() if count > 1]:
        raise RunError(f"{enumerated(twice)} would be read twice: give each log once, by itself or by its folder")
    found: list[LoggedTraining] = []
    problems: list[str] = []
    for folder, members in groups:
        try:
            found += _runs(folder, members)
        except (InputError, RunError) as error:
            problems.append(str(error))
    if problems:
        raise RunError("\n".join(problems))
    if not found:
        raise RunError(
            f"no line of a worker of ps_pytorch in {enumerated(list(map(str, paths)))}: give the output of mpirun"
        )
    return found


def _runs(folder: Path | None, files: Sequence[Path]) -> Iterator[LoggedTraining]:
    """Yield the runs in files of a folder; or in files that are named, all of which must be logs."""
    named = folder is None
    logs: list[LogFile] = []
    problems: list[str] = []
    for path in files:
        try:
            if named or not _is_other(path):
                logs += [log for log in [read_log(path)] if named or _has_lines(log)]
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise RunError("\n".join(problems))
    if not logs:
        return
    several = max(Counter(rank for log in logs for rank in log.steps).values(), default=0) > 1
    if several or (named and len(logs) == 1):
        for log in logs:
            yield _run(_name(log.path), "" if folder is None else folder.resolve().name, [log])
    elif folder is None:
        yield _run(files[0].resolve().parent.name, "", logs)
    else:
        yield _run(folder.resolve().name, folder.resolve().parent.name, logs)


def _name(path: Path) -> str:
    return path.stem if path.suffix in _ENDINGS else path.name


def _is_other(path: Path) -> bool:
    """Return whether a file is no log, not even a damaged one."""
    content = read_bytes(path, LARGEST)
    try:
        content.decode()
    except UnicodeDecodeError:
        return not _FRAGMENT.search(content.decode("latin-1"))
    return b"\0" in content[:4096]


def _has_lines(log: LogFile) -> bool:
    return bool(log.steps or log.evaluations or log.workers)


def _run(name: str, series: str, logs: Sequence[LogFile]) -> LoggedTraining:
    steps = {rank: own for log in logs for rank, own in log.steps.items()}
    where = str(logs[0].path if len(logs) == 1 else logs[0].path.parent)
    if not steps:
        raise RunError(
            f"{where} has no line of a worker of ps_pytorch: put the logs of all processes of its run into one folder, "
            "and give that"
        )
    stated = {log.workers for log in logs if log.workers}
    if len(stated) > 1:
        raise RunError(
            f"{where} has lines of runs of {enumerated(list(map(str, sorted(stated))))} workers: separate them"
        )
    count = max([*steps, *stated])
    missing = [str(rank) for rank in range(1, count + 1) if rank not in steps]
    if missing:
        raise RunError(
            f"{where} has no line of worker {enumerated(missing)} of {count}: put the logs of all processes of the run "
            "into one folder, and give that"
        )
    evaluations: dict[int, LoggedEvaluation] = {}
    for log in logs:
        evaluations |= log.evaluations
    return LoggedTraining(
        name, series, dict(sorted(steps.items())), dict(sorted(evaluations.items())), _batch(where, steps)
    )


def _batch(where: str, workers: Mapping[int, list[LoggedStep]]) -> int | None:
    """Return the samples of a step: the difference between the progress of two of them, or of the first one."""
    pairs = [pair for steps in workers.values() for pair in pairwise(steps)]
    sizes = {b.done - a.done for a, b in pairs if (b.step, b.epoch) == (a.step + 1, a.epoch)} - {0}
    if not sizes:
        first = [each for steps in workers.values() for each in steps if each.epoch == 0 and each.step > 1]
        sizes = {each.done // (each.step - 1) for each in first}
    if len(sizes) > 1:
        raise RunError(
            f"{where} has steps of {enumerated(list(map(str, sorted(sizes))))} samples: they are of several runs; put "
            "the log of each run into a file of its own"
        )
    size = next(iter(sizes), 0)
    return size if size > 0 else None


def read_log(path: Path) -> LogFile:
    """Read the lines of one file; others are ignored.

    Raises:
        InputError: it cannot be read, lines are damaged, or it has lines of several runs.
    """
    text = read_text(path, LARGEST)
    steps: dict[int, list[LoggedStep]] = {}
    evaluations: dict[int, LoggedEvaluation] = {}
    workers, at = None, None
    fields: dict[int, tuple[str, ...]] = {}
    damaged: list[tuple[int, str]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if world := _WORLD.search(line):
            workers = int(world[1]) - 1 if world[1] else int(world[2])
        whole = sorted((match for form in _LINES for match in form.finditer(line)), key=lambda match: match.start())
        before, *after = _outside(line, whole)
        if any(map(_FRAGMENT.search, (before, *after))) or any(map(_CONTINUES.match, after)):
            damaged.append((number, "is cut, or mixed with another line"))
            continue
        for match in whole:
            if match.re is _EVALUATING:
                at = int(match[1])
            elif match.re is _STEP:
                rank, step = int(match["rank"]), _step(match)
                own = steps.setdefault(rank, [])
                at = step.step
                fields[number] = tuple(step.parts)
                times = (step.cost, *step.parts.values())
                if not 1 <= rank <= _MOST_WORKERS or step.total == 0 or not all(0 <= each <= MOST for each in times):
                    damaged.append((number, "has a rank, a time or a number of samples that cannot be"))
                elif own and step.step <= own[-1].step:
                    raise InputError(
                        f"{path}:{number}",
                        f"worker {rank} is at step {step.step} after step {own[-1].step}: the file has lines of "
                        "several runs; put those of each run into a file of its own",
                    )
                else:
                    own.append(step)
            elif number == len(lines) and match.end() == len(line):
                damaged.append((number, "is the last one, and has no end"))
            elif max(float(match["top1"]), float(match["top5"])) > 100:
                damaged.append((number, "has an accuracy above 100 %"))
            elif match["step"] is None and at is None:
                damaged.append((number, "is of no step: no line before it names one"))
            else:
                evaluations.setdefault(int(match["step"] or at or 0), _evaluation(match))
    usual = Counter(fields.values()).most_common(1)
    damaged += [(number, "lacks fields that other lines have") for number, own in fields.items() if own != usual[0][0]]
    damaged.sort()
    if damaged:
        rest = damaged[1:]
        more = f" (and {len(rest)} further line{'s' * (len(rest) > 1)}: {_listed(rest)})" if rest else ""
        raise InputError(
            f"{path}:{damaged[0][0]}", f"{damaged[0][1]}{more}: delete such lines from a copy, and import the copy"
        )
    return LogFile(path, steps, evaluations, workers)


def _listed(damaged: Sequence[tuple[int, str]]) -> str:
    numbers = [str(number) for number, _ in damaged[:20]]
    return ", ".join([*numbers, *(["…"] if len(damaged) > 20 else [])])


def _outside(line: str, whole: Sequence[re.Match[str]]) -> list[str]:
    """Return the parts of a line before, between and after its matches."""
    starts, ends = [match.start() for match in whole], [match.end() for match in whole]
    return [line[start:end] for start, end in zip([0, *ends], [*starts, len(line)], strict=True)]


def _step(match: re.Match[str]) -> LoggedStep:
    step, epoch, done, total = (int(match[name]) for name in ("step", "epoch", "done", "total"))
    parts = {name: float(value) for name, value in _PART.findall(match["parts"])}
    return LoggedStep(step, epoch, done, total, float(match["loss"]), float(match["cost"]), parts)


def _evaluation(match: re.Match[str]) -> LoggedEvaluation:
    return LoggedEvaluation(float(match["top1"]) / 100, float(match["top5"]) / 100, float(match["loss"]))


def table_of_logs(name: str, runs: Sequence[LoggedTraining]) -> pd.DataFrame:
    """Return the rows of some runs: `round`, `evaluation` and `totals` as in `hpcps collect`.

    A round is a step. The logs have no clock: the time of a step is the sum of the costs of the slowest worker in each
    step up to it.

    Args:
        name: the name of the experiment in the table.
        runs: the runs.

    Raises:
        RunError: an evaluation is of a step whose epoch is not known.
    """
    several = [key for key in ("series", "workers") if len({_setting(run, key) for run in runs}) > 1]
    if len({tuple(_setting(run, key) for key in several) for run in runs}) < len(runs):
        several.append("log")
    imported = [_imported(run, label) for run, label in zip(runs, labels_of(runs), strict=True)]
    return table_of_runs(name, "ps_pytorch", imported, several)


def labels_of(runs: Sequence[LoggedTraining]) -> list[str]:
    """Return a name for each run that no other one has: its own one, or that with its series or a number."""
    names = Counter(run.name for run in runs)
    labels = [f"{run.series}/{run.name}" if names[run.name] > 1 and run.series else run.name for run in runs]
    return [f"{label} ({labels[:place].count(label) + 1})" if label in labels[:place] else label
            for place, label in enumerate(labels)]  # fmt: skip


def _setting(run: LoggedTraining, key: str) -> object:
    return run.series if key == "series" else len(run.steps)


def _imported(run: LoggedTraining, label: str) -> ImportedRun:
    settings = {
        "servers": 1,
        "workers": len(run.steps),
        "mode": "sync",
        "train.local_steps": 1,
        "rule": "average",
        **({"train.batch_size": run.batch} if run.batch else {}),
        "epochs": round(max(_epoch(run, steps[-1]) for steps in run.steps.values()), 4),
        "series": run.series,
        "log": label,
    }
    return ImportedRun(label, settings, list(_rows(run)), {rank - 1: f"worker {rank}" for rank in run.steps})


def _epoch(run: LoggedTraining, step: LoggedStep) -> float:
    """Return the passes over the data after a step."""
    return step.epoch + min(1.0, (step.done + (run.batch or 0)) / max(1, step.total))


def _rows(run: LoggedTraining) -> Iterator[dict[str, Any]]:
    costs: dict[int, float] = {}
    epochs: dict[int, float] = {}
    broken = math.inf
    for steps in run.steps.values():
        for step in steps:
            costs[step.step] = max(step.cost, costs.get(step.step, 0.0))
            epochs.setdefault(step.step, _epoch(run, step))
            if not math.isfinite(step.loss):
                broken = min(broken, step.step)
    numbers = np.array(sorted(costs))
    ends = np.cumsum([costs[number] for number in numbers])
    times = dict(zip(numbers.tolist(), ends.tolist(), strict=True))
    for rank, steps in run.steps.items():
        for step in steps:
            samples = {} if run.batch is None else {"samples": min(run.batch, max(0, step.total - step.done))}
            yield {
                "event": "round", "role": "worker", "index": rank - 1, "source": f"worker {rank}",
                "round": step.step - 1, "step": step.step, "time": times[step.step], "epoch": _epoch(run, step),
                "loss": step.loss, **_parts(step), **samples,
            }  # fmt: skip
    for number, found in run.evaluations.items():
        if number not in epochs and run.batch is None:
            raise RunError(
                f"{run.name} has an evaluation of step {number}, but no line of a worker in this step, from which its "
                "epoch follows: import the whole log"
            )
        total = max(step.total for steps in run.steps.values() for step in steps)
        before = int(np.searchsorted(numbers, number, side="right"))
        wall = float(ends[before - 1]) if before else 0.0
        yield {
            "event": "evaluation", "role": "evaluator", "index": 0, "round": number - 1, "step": number,
            "time": wall, "wall": wall, "accuracy": found.accuracy, "top5": found.top5,
            "epoch": epochs[number] if number in epochs else number / math.ceil(total / (run.batch or 1)),
            "loss": found.loss if found.loss >= 0 else math.nan,
            "diverged": int(number >= broken), "stalled": 0, "bytes_sent_total": math.nan,
        }  # fmt: skip


def _parts(step: LoggedStep) -> dict[str, float]:
    """Return the fields of a record that follow from the parts of a step; `wait` is what no part accounts for."""
    spent = {"compute": 0.0, "exchange": 0.0}
    others: dict[str, float] = {}
    for name, value in step.parts.items():
        where = _PARTS[name]
        if where in spent:
            spent[where] += value
        elif where == "bytes_sent":
            others[where] = round(value * 2**20)
        elif where:
            others[where] = value / 100
    return {**spent, "wait": max(0.0, step.cost - sum(spent.values())), **others}

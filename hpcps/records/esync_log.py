"""The log of one device: its rounds, from the reports of each round or from a summary of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError
from hpcps.inputs import MiB, read_json, whole_number

_LARGEST = 64 * MiB
_MOST = 1e15

COMPUTING = ("get_batch", "forward and backward", "local update")
QUERY, EVALUATION = "check ready", "evaluation"
AGGREGATING = ("global update", "global aggregate")
PHASES = (QUERY, *COMPUTING, *AGGREGATING, EVALUATION)
"""The phases of a local step in the reports."""

_LISTS = ("accuracy_list", "num_samples_list", "self_iters_list", "elapsed_time_list", "aggregate_time_list")


@dataclass(frozen=True)
class LoggedRound:
    """A round of one device; times are seconds.

    Attributes:
        samples: the samples of its local steps.
        time: the time since the start of the device's log, at the end of the round.
        compute: the time of its local steps; from a summary, all but the time of the aggregation.
        evaluate: the time of an evaluation; a summary counts it as computing.
        query: the time of the queries whether to aggregate; a summary counts it as computing.
        aggregate: the time of the aggregation: it sends, waits and receives.
        accuracy: the accuracy on the test set, if the device has evaluated the model.
    """

    samples: int
    time: float
    compute: float
    evaluate: float
    query: float
    aggregate: float
    accuracy: float | None


def read_reports(folder: Path) -> list[LoggedRound]:
    """Read `iter-1.txt`, `iter-2.txt`, … of a device.

    Raises:
        InputError: a report is missing or damaged, or its values cannot be those of one device.
    """
    numbers = {number: path for path in folder.glob("iter-*.txt") if (number := _number(path)) is not None}
    rounds: list[LoggedRound] = []
    for number in range(1, max(numbers, default=0) + 1):
        if number not in numbers:
            raise InputError(folder / f"iter-{number}.txt", f"is missing, but there is iter-{max(numbers)}.txt")
        rounds.append(_read_report(numbers[number]))
        _check_order(numbers[number], rounds)
    return rounds


def parse_summary(where: str, content: object) -> list[LoggedRound]:
    """Read the lists of one device in a summary.

    A summary drops accuracies of zero: then the accuracies belong to the last rounds.

    Raises:
        InputError: lists are missing, differ in length or have values that cannot be.
    """
    if not isinstance(content, Mapping):
        raise InputError(where, "expects an object with lists of rounds")
    lists: dict[str, list[float]] = {}
    for name in _LISTS:
        values = content.get(name)
        if not isinstance(values, list):
            raise InputError(f"{where}.{name}", "expects a list of numbers, one for each round")
        lists[name] = [_value(f"{where}.{name}[{place}]", value) for place, value in enumerate(values)]
    accuracies, *others = lists.values()
    count = len(others[0])
    for name, values in list(lists.items())[1:]:
        if len(values) != count:
            raise InputError(f"{where}.{name}", f"has {len(values)} rounds, but num_samples_list has {count}")
    if len(accuracies) > count:
        raise InputError(f"{where}.accuracy_list", f"has {len(accuracies)} rounds, but num_samples_list has {count}")
    known = [None] * (count - len(accuracies)) + [_share(f"{where}.accuracy_list", value) for value in accuracies]
    rounds: list[LoggedRound] = []
    before = 0.0
    for place, accuracy in enumerate(known):
        samples, _, time, aggregate = (values[place] for values in others)
        # Times of a summary are rounded to seconds, those of aggregations are not.
        computing = max(0.0, time - before - aggregate)
        rounds.append(LoggedRound(int(samples), time, computing, 0.0, 0.0, aggregate, accuracy))
        _check_order(f"{where}.elapsed_time_list[{place}]", rounds)
        before = time
    return rounds


def _number(path: Path) -> int | None:
    return whole_number(path.stem.removeprefix("iter-"), 1, 10**7)


def _read_report(path: Path) -> LoggedRound:
    content = read_json(path, _LARGEST)
    if not isinstance(content, dict):
        raise InputError(path, "expects an object with num_iters, time, num_samples and total_time")
    steps = content.get("time")
    if not isinstance(steps, dict) or not steps:
        raise InputError(f"{path}: time", "expects the seconds of each phase, by local step")
    spent = dict.fromkeys(PHASES, 0.0)
    for step, phases in steps.items():
        if not isinstance(phases, dict):
            raise InputError(f"{path}: time.{step[:40]}", "expects the seconds of each phase")
        for phase, seconds in phases.items():
            place = f"{path}: time.{step[:40]}.{phase[:40]}"
            if phase not in spent:
                raise InputError(place, f"no such phase; the phases are {', '.join(PHASES)}")
            spent[phase] += _value(place, seconds)
    accuracy = content.get("accuracy")
    if accuracy is None and spent[EVALUATION]:
        accuracy = 0.0  # the original leaves it out
    samples = _value(f"{path}: num_samples", content.get("num_samples"))
    return LoggedRound(
        samples=int(samples),
        time=_value(f"{path}: total_time", content.get("total_time")),
        compute=sum(spent[phase] for phase in COMPUTING),
        evaluate=spent[EVALUATION],
        query=spent[QUERY],
        aggregate=sum(spent[phase] for phase in AGGREGATING),
        accuracy=None if accuracy is None else _share(f"{path}: accuracy", accuracy),
    )


def _check_order(where: object, rounds: list[LoggedRound]) -> None:
    if len(rounds) > 1 and rounds[-1].time < rounds[-2].time:
        raise InputError(
            where,
            f"the time goes back from {rounds[-2].time:g} to {rounds[-1].time:g} s: processes with the same folder "
            "overwrite each other's logs",
        )
    if rounds[-1].time <= 0:
        raise InputError(where, "the time since the start is 0: there is no rate")


def _value(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise InputError(where, f"expects a number from 0, got {str(value)[:40]}")
    return float(value)


def _share(where: str, value: Any) -> float:
    if _value(where, value) > 1:
        raise InputError(where, f"expects an accuracy from 0 to 1, got {str(value)[:40]}")
    return float(value)

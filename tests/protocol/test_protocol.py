"""The real system, all roles in one process, follows the plain transcription in `reference.py` round by round."""

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import Made, record, same
from opened import Opened
from plain_rules import Array
from protocol_cases import CASES, TRAINING, Tree, resolve
from reference import History, simulate

from hpcps.data.sets import Digits
from hpcps.execution.inprocess import run_in_process
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run

open_once = functools.cache(Digits.open)


# Every second case; `make soak` plays all.
EACH = [pytest.param(case, marks=pytest.mark.soak) if place % 2 else case for place, case in enumerate(CASES)]


@pytest.mark.sample(5, 24)
@pytest.mark.parametrize("case", EACH)
def test_follows_the_plain_transcription(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every role opens the data set, which here takes longer than all its training.
    monkeypatch.setattr(Digits, "open", open_once)
    follow(resolve(CASES[case]), RunDirectory(tmp_path / "run"), record(monkeypatch))


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_two_updates_are_too_few_to_trim(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digits, "open", open_once)
    directory = RunDirectory(tmp_path / "run")
    follow(resolve(CASES["trimmed_mean-validators-2-servers-3"] | {"seed": seed}), directory, record(monkeypatch))
    rounds = [line for v in (0, 1) for line in records(directory, f"validator-{v}", "round")]
    few = [line["accepted_pairs"] for line in rounds if len(line["participants"]) == 2]
    assert few
    assert not any(few)


@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("case", [*TRAINING, "label_flip-average", "batchnorm-validator"])
def test_each_step_is_that_of_plain_training(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step, from the same model."""
    monkeypatch.setattr(Digits, "open", open_once)
    run = resolve(CASES[case] | {"train.local_steps": 1})
    follow(run, RunDirectory(tmp_path / "run"), record(monkeypatch, trains=True))


def follow(run: Run, directory: RunDirectory, made: Made) -> None:
    directory.create({})
    run_in_process(run.identified("run"), directory)
    expected = simulate(run, Opened(run.data), made)

    for k in range(run.topology.workers):
        compare_worker(f"worker-{k}", records(directory, f"worker-{k}", "round"), expected, k)
    for v in range(run.topology.validators):
        compare_validator(f"validator-{v}", records(directory, f"validator-{v}", "round"), expected, v)
    evaluator = "validator-0" if run.topology.validators else "worker-0"
    compare_tests(list(records(directory, evaluator, "evaluation")), expected)
    if run.topology.validators:
        compare_acceptance_rates(list(records(directory, evaluator, "evaluation")), expected)
    assert same(final_model(directory, run.topology.servers), expected.models[-1])


def records(directory: RunDirectory, process: str, event: str) -> Iterator[Tree]:
    with (directory.path / "records" / f"{process}.jsonl").open() as file:
        yield from (line for line in map(json.loads, file) if line["event"] == event)


def final_model(directory: RunDirectory, servers: int) -> Array:
    return np.concatenate([np.load(directory.path / "final" / f"server-{s}.npy") for s in range(servers)])


def close(value: float) -> Any:
    """Sums of float32 in another order; a loss that is no number is recorded as infinite."""
    return pytest.approx(value if math.isfinite(value) else math.inf, rel=2e-5, abs=1e-6)


def compare_worker(name: str, lines: Iterator[Tree], expected: History, k: int) -> None:
    for number, (line, wanted) in enumerate(zip(lines, expected.workers[k], strict=True)):
        got = [line[key] for key in ("round", "participated", "blocks_sent", "blocks_attacked")]
        assert got == [number, wanted.participated, wanted.sent, wanted.attacked], f"{name}, round {number}"
        assert float(line["loss"]) == close(wanted.loss), f"{name}, round {number}"
        assert line["train_accuracy"] == pytest.approx(wanted.accuracy), f"{name}, round {number}"


def compare_validator(name: str, lines: Iterator[Tree], expected: History, v: int) -> None:
    for number, (line, wanted) in enumerate(zip(lines, expected.validators[v], strict=True)):
        where = f"{name}, round {number}"
        assert [line["round"], line["participants"]] == [number, wanted.participants], where
        pairs = [line[f"{kind}_pairs"] for kind in ("received", "accepted", "accepted_sent")]
        assert pairs == [wanted.received, wanted.accepted, wanted.accepted_sent], where
        assert line["rejected_blocks"] == wanted.unusable, where
        # A block that is not finite counts as skipped.
        assert line["sent_pairs"] == wanted.sent - wanted.unusable, where
        assert line["sent_pairs"] + line["skipped_pairs"] == wanted.received, where
        assert float(line["loss"]) == close(wanted.loss), where
        assert line["train_accuracy"] == pytest.approx(wanted.accuracy), where


def compare_tests(lines: list[Tree], expected: History) -> None:
    got = [[line[key] for key in ("epoch", "round", "step", "accuracy")] for line in lines]
    assert got == [[test.epoch, test.round, test.step, test.accuracy] for test in expected.tests]
    for line, wanted in zip(lines, expected.tests, strict=True):
        assert float(line["loss"]) == close(wanted.loss), f"epoch {wanted.epoch}"


def compare_acceptance_rates(lines: list[Tree], expected: History) -> None:
    """Compare validator 0's rates over the rounds it has combined, since the start and since the test before."""
    before = 0
    for line, test in zip(lines, expected.tests, strict=True):
        for key, first in (("acceptance_rate_cumulative", 0), ("acceptance_rate_epoch", before)):
            rounds = expected.validators[0][first : test.round]
            received, accepted = sum(r.received for r in rounds), sum(r.accepted for r in rounds)
            assert line[key] == (pytest.approx(accepted / received) if received else None), f"{key}, epoch {test.epoch}"
        before = test.round

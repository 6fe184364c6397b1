"""The real system in asynchronous mode, all roles in one process, follows the plain transcription event by event."""

from pathlib import Path

import pytest
from asynchronous_reference import Cycle, History, Refresh, simulate
from made import Made, record, same
from opened import Opened
from protocol_cases import Tree, resolve
from test_protocol import close, compare_tests, final_model, open_once, records

from hpcps.data.sets import Digits
from hpcps.execution.inprocess import run_in_process
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run

BASE = {
    "train.mode": "async",
    "train.epochs": 9,
    "heterogeneity.delay": {"kind": "uniform", "low": 0.0, "high": 6.0},
    "validation.rule": {"kind": "zeno++"},
    "attack": {"kind": "negative", "scale": 2.0, "rate": 0.3},
}
SHARE = {**BASE, "train.epochs": 4, "asynchronous.updates_per_refresh": "share"}
CORRECTED = {
    **BASE,
    "train.lr_decay": {"factor": 0.2, "epochs": [2, 4]},
    "asynchronous.alpha_decay": {"epochs": [2, 4]},
}
# What `fidelity = "artifact"` stands for; the validator's learning rate and alpha decay once, the workers' rate twice.
ARTIFACT = {
    **BASE,
    "train.epochs": 4,
    "train.first_step": "overwritten",
    "train.lr_scale": "sqrt_workers",
    "train.lr_decay": {"factor": 0.2, "epochs": [1, 2], "validator_epochs": [1]},
    "validation.evaluate": "validator_model",
    "validation.batchnorm": "validator",
    "asynchronous": {
        "alpha": 0.4,
        "alpha_decay": {"epochs": [1]},
        "proximal": {"worker": 0.2, "validator": 0.2},
        "updates_per_refresh": "share",
        "epochs": "own",
    },
}
CASES: dict[str, Tree] = {
    "corrected": CORRECTED,
    "artifact": ARTIFACT,
    "artifact-cnn": {**ARTIFACT, "model.name": "cnn", "train.epochs": 2},
    "artifact-rounds-as-epochs": {**ARTIFACT, "train.local_steps": 5},
    "artifact-two-validators": {**ARTIFACT, "topology": {"validators": 2, "servers": 2, "workers": 6}},
    "corrected-two-validators": {**CORRECTED, "topology": {"validators": 2, "servers": 2, "workers": 6}},
    "reset": {**ARTIFACT, "asynchronous.absent": "reset", "communication": {"participation": 0.4, "skip_rate": 0.5}},
    "all-is-sent": {**ARTIFACT, "communication": {"participation": 1.0, "skip_rate": 0.0}},
    "artifact-naive": {**ARTIFACT, "validation.rule": {"kind": "naive_async"}},
    "naive": {**SHARE, "validation.rule": {"kind": "naive_async"}},
    "fed-async": {**SHARE, "validation.rule": {"kind": "fed_async"}},
}


# Every second case; `make soak` plays all.
EACH = [pytest.param(case, marks=pytest.mark.soak) if place % 2 else case for place, case in enumerate(CASES)]


@pytest.mark.parametrize("case", EACH)
def test_follows_the_plain_transcription(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every role opens the data set, which here takes longer than all its training.
    monkeypatch.setattr(Digits, "open", open_once)
    follow(resolve(CASES[case]), RunDirectory(tmp_path / "run"), record(monkeypatch))


@pytest.mark.parametrize("case", ["corrected", "artifact"])
def test_each_step_is_that_of_plain_training(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step, from the same model, with the learning rate of its role and the proximal step."""
    monkeypatch.setattr(Digits, "open", open_once)
    run = resolve(CASES[case] | {"train.local_steps": 1, "train.epochs": 3})
    follow(run, RunDirectory(tmp_path / "run"), record(monkeypatch, trains=True))


def follow(run: Run, directory: RunDirectory, made: Made) -> None:
    directory.create({})
    run_in_process(run.identified("run"), directory)
    expected = simulate(run, Opened(run.data), made)

    compare_order(list(records(directory, "server-0", "applied")), expected)
    for k, cycles in enumerate(expected.cycles):
        compare_worker(f"worker-{k}", list(records(directory, f"worker-{k}", "round")), cycles)
    for v, refreshes in enumerate(expected.refreshes):
        compare_validator(f"validator-{v}", list(records(directory, f"validator-{v}", "round")), refreshes)
    tests = list(records(directory, "validator-0", "evaluation"))
    compare_tests(tests, expected)  # type: ignore[arg-type]
    assert same(final_model(directory, run.topology.servers), expected.models[-1])


def compare_order(lines: list[Tree], expected: History) -> None:
    """Compare whose updates changed the model, in which order, and how stale they were."""
    got = [
        (line["submitter"], line["reader"], line["staleness"], line["version"])
        for line in lines
        if line["kind"] == "apply"
    ]
    assert got == [
        (f"validator-{update.validator}", f"worker-{update.worker}", update.staleness, version)
        for version, update in enumerate(expected.applied, 1)
    ]


def compare_worker(name: str, lines: list[Tree], expected: list[Cycle]) -> None:
    got = [
        [line[key] for key in ("participated", "blocks_sent", "blocks_attacked", "version", "delay")] for line in lines
    ]
    assert got == [[c.participated, c.sent, c.attacked, c.version, c.delay] for c in expected], name
    assert [float(line["loss"]) for line in lines] == [close(cycle.loss) for cycle in expected], name


def compare_validator(name: str, lines: list[Tree], expected: list[Refresh]) -> None:
    keys = ("participants", "absent", "sent_pairs", "accepted_pairs", "turned_pairs", "version")
    got = [[line[key] for key in keys] for line in lines]
    assert got == [[r.participants, r.absent, r.sent, r.accepted, r.negated, r.version] for r in expected], name
    assert [float(line["loss"]) for line in lines] == [close(refresh.loss) for refresh in expected], name

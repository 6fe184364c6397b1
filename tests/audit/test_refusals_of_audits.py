"""Where audits are not possible, and what is said of it."""

import re
from dataclasses import replace
from functools import partial

import pytest
from audited import audited
from executed import run_here

from hpcps.errors import RunError
from hpcps.execution import role_factory
from hpcps.roles.resources import Replicas
from hpcps.roles.sync.worker import SyncWorker
from hpcps.spec.checks.needs import unmet
from hpcps.training.build import build_trainer

CASES = {
    "asynchronous": ({"train": {"mode": "async"}, "validation": {"rule": {"kind": "naive_async"}}}, "asynchronous"),
    "no-validator": ({"topology": {"validators": 0}}, "only a validator can do"),
    "gpu": ({"train": {"device": "cuda"}}, "GPUs do not repeat the bits"),
    "auto": ({"train": {"device": "auto"}}, 'use train.device = "cpu"'),
    "alone": (
        {"topology": {"workers": 0, "servers": 0}, "data": {"shards": 2}},
        "baseline has none",
    ),
    "quorum": ({"train": {"quorum": 3}}, "leave out train.quorum"),
    "replacements": ({"survive": {"workers": True}}, "a replacement does not begin in the state"),
    "skipped steps": ({"train": {"stop_when_diverged": True}}, "a worker may skip them"),
    "mxnet": ({"model": {"backend": "mxnet"}}, 'model.backend = "torch" only'),
}


def with_audits(tables):
    """Return a run of small tables whose audits other tables may make impossible."""
    given = {
        "topology": {"workers": 4},
        "train": {"epochs": 1, "batch_size": 16, "device": "cpu"},
        "validation": {"audit": {"share": 0.1}},
    }
    for table, values in tables.items():
        given[table] = {**given.get(table, {}), **values}
    return audited(**{"validation": given.pop("validation"), **given})


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_cannot_be_audited_is_refused(case):
    tables, reason = CASES[case]
    run = with_audits({**tables, "validation": {"audit": {"share": 0.1}, **tables.get("validation", {})}})
    problems = [problem for problem in unmet(run) if problem.path == ("validation", "audit", "share")]
    assert len(problems) == 1
    assert reason in problems[0].message


def test_a_run_without_audits_is_not():
    assert not list(unmet(with_audits({"validation": {"audit": {"share": 0.0}}, "train": {"quorum": 3}})))
    assert not [problem for problem in unmet(with_audits({})) if problem.path[:2] == ("validation", "audit")]


def test_a_worker_that_computes_other_bits_is_refused_at_the_start(monkeypatch, tmp_path):
    """Its processor rounds differently: it trains from a weight that is larger by its last bit."""

    def rounded(role, index):
        trainer = build_trainer(run, role, index)
        state = trainer.state()
        state.arrays["parameters"][:] *= 1 + 2.0**-23
        trainer.restore(state)
        return trainer

    def other(peer, run, trainer, resources):
        return SyncWorker(peer, run, trainer, replace(resources, replicas=Replicas(rounded)))

    run = audited(0.1)
    monkeypatch.setattr(role_factory, "SyncWorker", other)
    with pytest.raises(RunError, match="worker-0 and validator-0 get different bits from the same local step") as error:
        run_here(run, tmp_path)
    assert re.search("leave out validation.audit", str(error.value))


def test_the_probe_depends_on_the_run_only():
    runs = [audited(0.1), audited(0.1), audited(0.1, seed=2)]
    first, again, other = (Replicas(partial(build_trainer, run)).probe for run in runs)
    assert first == again != other
    assert len(first) == 64

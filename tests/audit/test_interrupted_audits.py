"""Runs with audits that are interrupted, also between a round and its audits, end as if nothing had happened."""

import random
from functools import partial

import numpy as np
import pytest
from audited import audited
from interrupted import model, play, play_through, records

from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.records.status import SweepProgress
from hpcps.roles.sync.audit import Auditor

CASES = {
    "honest": {"communication": {"participation": 0.7, "skip_rate": 0.3}},
    "attackers": {"attack": {"kind": "sign_flip", "rate": 0.5, "scope": "worker"}},
    "adversary": {"attack": {"kind": "ipm", "rate": 0.5}, "communication": {"skip_rate": 0.3}},
    "ef21": {"communication": {"compression": {"kind": "topk", "memory": "ef21"}}, "topology": {"workers": 4}},
    "two-validators": {"topology": {"workers": 4, "validators": 2}, "attack": {"kind": "silent", "rate": 0.5}},
}


def found(folder, validators):
    """Return what the records say of audits: the lines of an interrupted attempt count only up to its checkpoint."""
    lines = [line for v in range(validators) for line in records(folder, f"validator-{v}")]
    audits = {(line["of"], tuple(line["workers"])) for line in lines if line["event"] == "audits"}
    excluded = {(line["worker"], line["of"], line["proof"]) for line in lines if line["event"] == "excluded"}
    return audits, excluded


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES)
def test_ends_as_if_nothing_had_happened(case, tmp_path):
    validation = {"rule": {"kind": "trimmed_mean", "f": 1}, "audit": {"share": 0.4}}
    checkpoint = {"every": 0, "rounds": 1}
    run = audited(validation=validation, checkpoint=checkpoint, **CASES[case])
    assert play(run, tmp_path / "whole")
    chance = random.Random(case)
    play_through(run, tmp_path / "cut", [chance.randrange(60, 200) for _ in range(4)])
    starts = [line for line in records(tmp_path / "cut", "validator-0") if line["event"] == "start"]
    assert sum("continues" in line for line in starts) > 1
    whole, cut = (found(tmp_path / name, run.topology.validators) for name in ("whole", "cut"))
    assert whole == cut
    assert whole[0]
    assert bool(whole[1]) == ("attack" in CASES[case])
    assert np.array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))
    (status,) = SweepProgress([tmp_path / "cut"]).poll()
    assert sorted(line["worker"] for line in status.excluded) == sorted(worker for worker, _, _ in whole[1])


def is_over(folder, round):
    """Return whether a round of a run is over."""
    return any(line.get("round") == round and line["event"] == "round" for line in records(folder, "server-0"))


@pytest.mark.parametrize("case", ["honest", "two-validators"])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_run_that_is_stopped_at_checkpoints_ends_as_if_nothing_had_happened(case, share, tmp_path):
    """In the round of the stop, too, workers are audited; they end after it."""
    run = audited(validation={"audit": {"share": share}}, checkpoint={"every": 0}, **CASES[case])
    assert play(run, tmp_path / "whole")
    for round in (1, 3):
        assert not play(run, tmp_path / "cut", stop=partial(is_over, tmp_path / "cut", round))
    assert play(run, tmp_path / "cut")
    starts = [line for line in records(tmp_path / "cut", "validator-0") if line["event"] == "start"]
    assert [line.get("continues") is not None for line in starts] == [False, True, True]
    whole, cut = (found(tmp_path / name, run.topology.validators) for name in ("whole", "cut"))
    assert whole == cut
    assert whole[0]
    assert np.array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))


def test_due_audits_of_an_earlier_version_are_left_out():
    """The states to which its workers have committed have another form."""
    run, workers = audited(), tuple(Peer("worker", k) for k in range(4))
    facts = {
        "form": 1,
        "commitments": {},
        "excluded": [],
        "epoch": None,
        "audits": [[2, 7, 2, "a", "b", "c", None, None]],
    }
    for due, given in ((True, facts), (False, {name: fact for name, fact in facts.items() if name != "form"})):
        auditor = Auditor(Peer("validator", 0), run, workers, None)
        auditor.restore(State({"model": np.zeros(3, np.float32)}, given))
        assert (auditor.due is not None) == due

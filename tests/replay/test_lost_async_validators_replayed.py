"""Asynchronous runs in virtual time that lose validators, and workers beside them, are replayed to the same bits."""

import json

import pytest
from executed import lines, run_here
from recorded import replayed
from survive.test_lost_async_validators import assert_consistent, random_run, run_of

from hpcps.spec.checks import contradictions


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize(
    "seed",
    [
        *range(3),
        *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 8)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 100)),
    ],
)
def test_a_run_is_replayed(seed, tmp_path):
    directory = run_here(random_run(seed, train={"epochs": 2}), tmp_path / "run")
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference
    assert result.models == len(list(directory.path.glob("final/*.npy")))
    assert not result.left


RULES = {
    "an update at a time": {"validation": {"rule": {"kind": "naive_async"}}},
    "reference and loss": {"validation": {"rule": {"kind": "zeno++"}}},
    "differences of models": {"communication": {"compression": {"kind": "int8", "direction": "both"}}},
    "a buffer": {"asynchronous": {"buffer": 3}, "validation": {"rule": {"kind": "median"}}},
    "growing updates": {"asynchronous": {"absent": "accumulate"}, "communication": {"participation": 0.6}},
    "residuals": {"communication": {"skip_rate": 0.4, "compression": {"kind": "topk", "k": 0.2}}},
}


def served_by_others(rule, **more):
    """Return a run in which validator 1, and then validator 0, serves all workers for a while."""
    failures = [{"process": f"validator-{v}", "at": [at], "repair": 0.8} for v, at in ((0, 0.95), (1, 2.45))]
    run = run_of(*failures, {"process": "worker-1", "at": [1.2]}, servers=2, **RULES[rule], **more)
    assert not list(contradictions(run))
    return run


@pytest.mark.parametrize("rule", RULES)
def test_a_run_whose_workers_others_have_served_is_replayed(rule, tmp_path):
    run = served_by_others(rule)
    directory = run_here(run, tmp_path / "run")
    assert [line["validators"] for line in lines(directory.path, "server-0", "applied") if "validators" in line] == [
        [1], [0, 1], [0], [0, 1],
    ]  # fmt: skip
    assert_consistent(run, directory.path)
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference
    assert result.models == 2


@pytest.mark.parametrize(
    ("process", "event", "field", "value"),
    [
        ("server-0", "applied", "validators", [0]),
        ("worker-0", "served_by", "validator", 0),
        ("validator-1", "serves", "workers", [1, 3]),
    ],
)
def test_the_replay_names_a_line_that_says_something_else_of_who_serves(process, event, field, value, tmp_path):
    directory = run_here(served_by_others("an update at a time"), tmp_path / "run")
    file = directory.path / "records" / f"{process}.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()]
    number = next(n for n, line in enumerate(found) if line["event"] == event and field in line)
    assert found[number][field] != value
    found[number][field] = value
    file.write_text("".join(json.dumps(line) + "\n" for line in found))
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is not None
    assert result.difference.where == f"records/{process}.jsonl, line {number + 1}"
    assert f"`{field}`" in result.difference.what


@pytest.mark.parametrize("at", [0.95, 1.05, 1.3])
@pytest.mark.parametrize("validators", [1, 2])
def test_each_loss_has_one_line(validators, at, tmp_path):
    """The worker is lost before its validator, with it, or while another one, or none, serves it."""
    validator = f"validator-{validators - 1}"
    failures = [{"process": validator, "at": [1.05], "repair": 1.2}, {"process": "worker-3", "at": [at]}]
    run = run_of(*failures, servers=2, validators=validators)
    directory = run_here(run, tmp_path / "run")
    lost = [line["process"] for file in directory.records for line in lines(directory.path, file.stem, "lost")]
    assert sorted(lost) == [validator, "worker-3"]
    assert_consistent(run, directory.path)
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference

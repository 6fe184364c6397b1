"""Asynchronous runs that lose validators: their workers wait for the replacements, and servers agree."""

import pytest
from executed import lines, run_here
from interrupted import play, play_through
from small_experiment import small_experiment
from survive.test_crashes_with_losses import of_checkpoint
from survive.test_lost_async_workers import asynchronous
from survive.test_lost_validators import assert_evaluated
from survive.test_lost_workers import STEP, drawn_costs, drawn_failures

from hpcps.cli.main import main
from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions

BOTH = {"workers": True, "validators": True}


def run_of(*failures, validators=2, **tables):
    """Return an asynchronous run that survives the loss of validators, too."""
    return asynchronous(*failures, validators=validators, **{"survive": BOTH, **tables})


def applied_steps(folder, worker):
    """Return the steps that a worker had taken at each of its requests that the servers have executed.

    Its first process has the requests from 1 on, and a replacement those after the entry at which it begins.
    """
    rounds = []
    for line in lines(folder, worker):
        if line["event"] == "start":
            rounds.append([])
        elif line["event"] == "round":
            rounds[-1].append(line["step"])
    started = {line.get("incarnation", 0): n for n, line in enumerate(lines(folder, worker, "start"))}
    mine = [line for line in lines(folder, "server-0", "applied") if line["reader"] == worker]
    begins = {0: 0, **{line["request"]: line["incarnation"] for line in mine if "incarnation" in line}}
    steps = []
    for request in sorted(line["request"] for line in mine if "incarnation" not in line):
        first = max(each for each in begins if each < request)
        if begins[first] in started:
            steps += rounds[started[begins[first]]][request - first - 1 :][:1]
    return steps


def assert_consistent(run, folder):
    """Servers agree, each request has one entry, no step is applied twice, and each epoch is evaluated."""
    assert_evaluated(run, lines(folder, "validator-0", "evaluation"))
    keys = ("entry", "version", "kind", "submitter", "number", "reader", "request")
    orders = [
        [tuple(line[key] for key in keys) for line in lines(folder, f"server-{server}", "applied")]
        for server in range(run.topology.servers)
    ]
    assert all(order == orders[0] for order in orders)
    for peer in [f"worker-{k}" for k in range(run.topology.workers)]:
        requests = [line["request"] for line in lines(folder, "server-0", "applied") if line["reader"] == peer]
        assert len(requests) == len(set(requests)), peer
        # A worker that accumulates has further cycles, which are no requests.
        steps = applied_steps(folder, peer) if run.asynchronous.absent == "reset" else []
        assert steps == sorted(set(steps)), (peer, steps)
        if not lines(folder, peer, "start")[1:]:  # only what a dead worker has sent may be lost with its validator
            assert steps == [*range(2, 2 * len(steps) + 1, 2)], (peer, steps)
        assert not lines(folder, peer, "rejected")
    for validator in range(run.topology.validators):
        assert not lines(folder, f"validator-{validator}", "rejected")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("validators", "servers"), [(1, 1), (2, 2), (2, 3)])
def test_its_workers_wait_for_the_replacement(validators, servers, tmp_path):
    last = validators - 1
    run = run_of({"process": f"validator-{last}", "at": [1.05], "repair": 0.5}, validators=validators, servers=servers)
    run_here(run, tmp_path)
    (lost,), (replaced,) = lines(tmp_path, "server-0", "lost"), lines(tmp_path, "server-0", "replaced")
    assert (lost["process"], lost["cause"]) == (f"validator-{last}", "a failure of the simulation")
    meanwhile = [
        line["reader"]
        for line in lines(tmp_path, "server-0", "applied")
        if lost["time"] < line["time"] < replaced["time"]
    ]
    served = {f"worker-{k}" for k in range(4) if k % validators != last} | {f"validator-{v}" for v in range(last)}
    assert {*meanwhile} == served
    after = [line["reader"] for line in lines(tmp_path, "server-0", "applied") if line["time"] > replaced["time"]]
    assert {f"worker-{k}" for k in range(4)} < {*after}
    assert_consistent(run, tmp_path)
    assert RunDirectory(tmp_path).done


@pytest.mark.parametrize("noticed", [0.0, 0.2])
def test_an_update_enters_the_model_only_if_all_servers_have_it(noticed, tmp_path):
    """Sending takes 0.1 s, so the validator fails after it has sent an update to server 0, and before server 1."""
    tables = {"servers": 2, "validators": 1, "simulation": {"messages": {"send": 0.1}}, "train": {"epochs": 1}}
    run_here(run_of(**tables), tmp_path / "whole")
    submitted = lines(tmp_path / "whole", "validator-0", "submitted")[2]
    failure = {"process": "validator-0", "at": [submitted["time"] + 0.15], "noticed": noticed, "repair": 0.1}
    run = run_of(failure, **tables)
    run_here(run, tmp_path / "lost")
    (lost,) = lines(tmp_path / "lost", "server-0", "lost")
    assert "validator-0" in lost["order"], "server 0 has the update, without a place for it"
    assert_consistent(run, tmp_path / "lost")


def test_an_entry_that_arrives_after_the_loss_does_not_count(tmp_path):
    """Messages travel for 0.3 s, and the loss of the validator is noticed at once."""
    slow = {"latency": 0.3}
    tables = {"validators": 1, "simulation": {"local": slow, "remote": slow}, "train": {"epochs": 1}}
    run_here(run_of(**tables), tmp_path / "whole")
    submitted = lines(tmp_path / "whole", "validator-0", "submitted")[5]
    run = run_of({"process": "validator-0", "at": [submitted["time"] + 0.1], "repair": 1.0}, **tables)
    run_here(run, tmp_path / "lost")
    numbers = [line["number"] for line in lines(tmp_path / "lost", "server-0", "applied")]
    assert submitted["number"] not in numbers[: numbers.index(0)]
    assert_consistent(run, tmp_path / "lost")


def test_a_replacement_that_its_validator_has_admitted_in_vain_begins_where_the_next_one_says(tmp_path):
    """The update of the lost worker waits at the validator, which fails after it has told the replacement."""
    slow = {"combine": {"call": 0.5}, "messages": {"send": 0.1}}
    tables = {"validators": 1, "simulation": slow, "train": {"epochs": 1}}
    lost = {"process": "worker-2", "at": [3.3], "repair": 0.01}
    run_here(run_of(lost, **tables), tmp_path / "worker")
    (replaced,) = lines(tmp_path / "worker", "validator-0", "replaced")
    run = run_of(lost, {"process": "validator-0", "at": [replaced["time"] + 0.15]}, **tables)
    run_here(run, tmp_path / "both")
    in_vain, first = (line["first"] for line in lines(tmp_path / "both", "validator-0", "replaced"))
    applied = lines(tmp_path / "both", "server-0", "applied")
    assert [line["request"] for line in applied if line["reader"] == "worker-2" and "incarnation" in line] == [first]
    assert first < in_vain
    assert max(line["request"] for line in applied if line["reader"] == "worker-2") > first, "it takes part"
    assert_consistent(run, tmp_path / "both")


@pytest.mark.parametrize("at", [0.0, 0.03, 0.06, 0.09, 0.12, 0.2])
def test_a_coordinator_that_is_lost_at_the_start_is_replaced(at, tmp_path):
    """It gives the initial model to server 0 only, or to all, or to none."""
    failure = {"process": "validator-0", "at": [at], "noticed": 0.01, "repair": 0.01}
    run = run_of(failure, servers=2, simulation={"messages": {"send": 0.04}}, train={"epochs": 1})
    run_here(run, tmp_path)
    assert_consistent(run, tmp_path)


def test_a_coordinator_that_evaluates_the_last_model_is_replaced(tmp_path):
    slow = {"validators": 1, "servers": 2, "simulation": {"evaluate": 1.0}}
    run_here(run_of(**slow), tmp_path / "whole")
    (stop,) = (line for line in lines(tmp_path / "whole", "server-0", "applied") if line["kind"] == "stop")
    run = run_of({"process": "validator-0", "at": [stop["time"] + 0.3]}, **slow)
    run_here(run, tmp_path / "lost")
    assert [line.get("incarnation") for line in lines(tmp_path / "lost", "validator-0", "start")] == [None, 1]
    assert_consistent(run, tmp_path / "lost")
    for server in ("server-0", "server-1"):
        whole, lost = ((tmp_path / name / "final" / f"{server}.npy").read_bytes() for name in ("whole", "lost"))
        assert whole == lost


def random_run(seed, **more):
    """Return a random run whose workers and validators fail."""
    draw = generator(seed, "validator", 0, "survive")
    validators, servers = ((1, 1), (2, 2), (2, 1), (3, 2), (1, 3))[seed % 5]
    # A validator that lives for a shorter time than a cycle gets nowhere.
    often = {"process": "validator", "every": float(draw.uniform(1.5, 5.0))}
    failures = [drawn_failures(draw), {**drawn_failures(draw), **often}]
    workers = int(draw.integers(3, 6))
    tables = {
        "simulation": drawn_costs(draw, 2 * STEP),
        "communication": {"participation": float(draw.choice([1.0, 0.7])), "skip_rate": 0.2},
        "asynchronous": {
            "absent": str(draw.choice(["reset", "accumulate"])),
            "updates_per_refresh": str(draw.choice(["share", "queued"])),
        },
        "checkpoint": {"every": int(draw.integers(0, 3))},
        **more,
    }
    if draw.random() < 0.4:
        tables["communication"]["compression"] = {"kind": "int8", "direction": "both"}
    if draw.random() < 0.3:
        tables["asynchronous"] |= {"buffer": 3, "staleness": {"kind": "polynomial"}}
        tables["validation"] = {"rule": {"kind": "median"}, "weights": [1.0 + k for k in range(workers)]}
    run = run_of(*failures, servers=servers, validators=validators, workers=workers, **tables)
    run = run.model_copy(update={"seed": seed})
    assert not list(contradictions(run))
    return run


SEEDS = [
    *range(5),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(5, 15)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(15, 200)),
]


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures(seed, tmp_path):
    """Whatever fails when, the run ends; the same run gives the same bits; servers agree."""
    run = random_run(seed)
    for name in ("one", "two"):
        run_here(run, tmp_path / name)
        assert RunDirectory(tmp_path / name).done
    for server in range(run.topology.servers):
        one, two = ((tmp_path / name / "final" / f"server-{server}.npy").read_bytes() for name in ("one", "two"))
        assert one == two
    assert_consistent(run, tmp_path / "one")


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_crashes_and_losses(seed, tmp_path):
    """A run that crashes goes on without repeating a step that was applied; checkpoints need no lost validator."""
    draw = generator(seed, "validator", 1, "crashes")
    validators, servers = ((1, 1), (2, 2), (1, 2), (2, 1))[seed % 4]
    failures = {"process": "validator", "every": 1.0, "repair": float(draw.choice([0.1, 3600.0]))}
    run = run_of(failures, validators=validators, servers=servers, checkpoint={"every": 1})
    run = run.model_copy(update={"seed": seed})
    play_through(run, tmp_path, [int(draw.integers(300, 900)) for _ in range(3)])
    assert RunDirectory(tmp_path).done


def test_a_checkpoint_has_no_part_of_a_lost_validator(tmp_path):
    run = run_of({"process": "validator-1", "at": [0.5], "repair": 3600}, servers=2)
    record = tmp_path / "records" / "server-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"event": "lost"' in record.read_text())
    (position,) = (tmp_path / "checkpoints").iterdir()
    assert "validator-1" not in of_checkpoint(tmp_path, int(position.name))
    assert play(run, tmp_path)
    assert RunDirectory(tmp_path).done


def test_check_says_what_becomes_of_lost_validators(tmp_path, capsys):
    file = tmp_path / "file.toml"
    keys = {"topology.validators": 2, "train.mode": "async", "validation.rule.kind": "naive_async"}
    survives = {"survive.workers": True, "survive.validators": True, "transport.kind": "inproc"}
    file.write_text(small_experiment("file", {**keys, **survives}))
    assert main(["check", str(file)]) == 0
    assert "; the workers of a lost validator wait for its replacement; any other lost" in capsys.readouterr().out

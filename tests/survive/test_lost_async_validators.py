"""Asynchronous runs that lose validators: others serve their workers, replacements take part, and servers agree."""

import pytest
from executed import lines, run_here
from interrupted import play, play_through
from small_experiment import small_experiment
from survive.test_crashes_with_losses import of_checkpoint
from survive.test_lost_async_workers import asynchronous
from survive.test_lost_validators import assert_evaluated
from survive.test_lost_workers import STEP, drawn_costs, drawn_failures

from hpcps.cli.main import main
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.asynchronous.log import EntryKind, Log, LogEntry, LogPosition
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


def assert_served(run, folder):
    """Each entry of a worker is that of the validator that serves it there, as the entries of the log say."""
    roster, there = Roster.of(run), tuple(range(run.topology.validators))
    for line in lines(folder, "server-0", "applied"):
        there = line.get("validators", there)
        if line["reader"].startswith("worker"):
            index = roster.validator_of(int(line["reader"].removeprefix("worker-")), there)
            assert line["submitter"] == f"validator-{index}", line


def assert_consistent(run, folder):
    """Servers agree, each request has one entry, no step is applied twice, and each epoch is evaluated."""
    assert_served(run, folder)
    assert_evaluated(run, lines(folder, "validator-0", "evaluation"))
    keys = ("entry", "version", "kind", "submitter", "number", "reader", "request")
    orders = [
        [
            (line.get("validators"), *(line[key] for key in keys))
            for line in lines(folder, f"server-{server}", "applied")
        ]
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


def entries(folder):
    """Return the entries of workers, each with the validators that are there."""
    found, there = [], None
    for line in lines(folder, "server-0", "applied"):
        there = line.get("validators", there)
        if line["reader"].startswith("worker"):
            found.append((there, line["reader"], line["submitter"]))
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("servers", [1, 2])
def test_the_workers_of_the_only_validator_wait_for_its_replacement(servers, tmp_path):
    run = run_of({"process": "validator-0", "at": [1.05], "repair": 0.5}, validators=1, servers=servers)
    run_here(run, tmp_path)
    (lost,), (replaced,) = lines(tmp_path, "server-0", "lost"), lines(tmp_path, "server-0", "replaced")
    assert (lost["process"], lost["cause"]) == ("validator-0", "a failure of the simulation")
    assert replaced["time"] - lost["time"] >= 0.5
    assert {reader for there, reader, _ in entries(tmp_path) if there == []} == set()
    assert {reader for there, reader, _ in entries(tmp_path) if there == [0]} == {f"worker-{k}" for k in range(4)}
    assert_consistent(run, tmp_path)
    assert RunDirectory(tmp_path).done


@pytest.mark.sample(1)
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("servers", [1, 3])
def test_another_validator_serves_its_workers_until_the_replacement_does(lost, servers, tmp_path):
    run = run_of({"process": f"validator-{lost}", "at": [1.05], "repair": 1.5}, validators=2, servers=servers)
    run_here(run, tmp_path)
    other, everyone = 1 - lost, {f"worker-{k}" for k in range(4)}
    meanwhile = [(reader, submitter) for there, reader, submitter in entries(tmp_path) if there == [other]]
    assert {reader for reader, _ in meanwhile} == everyone
    assert {submitter for _, submitter in meanwhile} == {f"validator-{other}"}
    assert len(meanwhile) > 8, "they go on"
    after = {submitter for there, reader, submitter in entries(tmp_path) if there == [0, 1]}
    assert after == {"validator-0", "validator-1"}
    serves = {v: [line["workers"] for line in lines(tmp_path, f"validator-{v}", "serves")] for v in (0, 1)}
    assert serves == {other: [[0, 1, 2, 3], [other, other + 2]], lost: [[lost, lost + 2]]}
    for worker in (lost, lost + 2):
        served = lines(tmp_path, f"worker-{worker}", "served_by")
        assert [line["validator"] for line in served] == [other, lost]
        assert served[0]["since"] < served[1]["since"]
    for worker in (other, other + 2):
        assert not lines(tmp_path, f"worker-{worker}", "served_by")
    assert_consistent(run, tmp_path)
    assert RunDirectory(tmp_path).done


def test_a_third_validator_serves_if_the_second_is_lost_too(tmp_path):
    """With nobody left the workers wait."""
    failures = [{"process": f"validator-{v}", "at": [1.05 + 0.5 * v], "repair": 2.5 - 0.5 * v} for v in (0, 1, 2)]
    run = run_of(*failures, validators=3, workers=6)
    run_here(run, tmp_path)
    found = entries(tmp_path)
    groups = {tuple(there): {(r, s) for t, r, s in found if t == there} for there in ([1, 2], [2], [])}
    assert {submitter for reader, submitter in groups[1, 2] if reader == "worker-0"} == {"validator-1"}
    assert {submitter for reader, submitter in groups[1, 2] if reader == "worker-3"} == {"validator-2"}
    assert {reader for reader, _ in groups[2,]} == {f"worker-{k}" for k in range(6)}
    assert {submitter for _, submitter in groups[2,]} == {"validator-2"}
    assert groups[()] == set()
    assert {s for t, _, s in found if t == [0, 1, 2]} == {f"validator-{v}" for v in range(3)}
    assert_consistent(run, tmp_path)


@pytest.mark.parametrize("servers", [1, 2])
def test_an_entry_of_one_that_does_not_serve_any_more_does_not_count(servers, tmp_path):
    """The validator that serves all filters for long, and messages travel for long: some come after the return."""
    slow = {"combine": {"call": 0.1}, "local": {"latency": 0.15}, "remote": {"latency": 0.15}}
    failure = {"process": "validator-1", "at": [1.05], "repair": 1.0}
    run = run_of(failure, servers=servers, validators=2, simulation=slow)
    run_here(run, tmp_path)
    dropped = lines(tmp_path, "server-0", "not_served")
    assert dropped
    assert {line["submitter"] for line in dropped} == {"validator-0"}
    applied = {(line["reader"], line["request"]): line["submitter"] for line in lines(tmp_path, "server-0", "applied")}
    assert {applied[line["reader"], line["request"]] for line in dropped} == {"validator-1"}, "it was sent again"
    assert_consistent(run, tmp_path)


def test_an_entry_from_before_the_return_does_not_count_after_a_second_loss(tmp_path):
    """The replacement is lost at once, so the other validator serves again while its entries are on their way."""
    slow = {"local": {"latency": 0.3}, "remote": {"latency": 0.3}}
    failures = [{"process": "validator-1", "at": [at], "repair": repair} for at, repair in ((1.65, 1.0), (2.66, 3.0))]
    run = run_of(*failures, servers=2, validators=2, simulation=slow, train={"epochs": 2})
    run_here(run, tmp_path)
    there = [line["validators"] for line in lines(tmp_path, "server-0", "applied") if "validators" in line]
    assert there[:3] == [[0], [0, 1], [0]]
    assert lines(tmp_path, "server-0", "not_served")
    assert_consistent(run, tmp_path)


def test_a_server_that_is_behind_keeps_what_has_a_place(tmp_path):
    """Server 0 has given entries 1 and 3 of a lost validator places, and none to the second and the fourth."""
    submitter = Peer("validator", 1)
    log = Log((submitter,))
    for number in range(1, 5):
        log.put(LogEntry(EntryKind.READ, submitter, number, Peer("worker", 0), number))
    log.order(LogPosition(1, 0, 0, submitter, 1))
    log.order(LogPosition(2, 0, 0, submitter, 3))
    log.drop(submitter)
    assert log.next_number(submitter) == 1
    log.put(LogEntry(EntryKind.READ, submitter, 1, Peer("worker", 0), 5))
    log.order(LogPosition(3, 0, 0, submitter, 1))
    taken = [log.take() for _ in range(4)]
    assert [ready and (ready[0].request, ready[1].index) for ready in taken] == [(1, 1), (3, 2), (5, 3), None]


def test_the_other_validator_admits_the_replacement_of_a_worker(tmp_path):
    failures = [{"process": "validator-1", "at": [1.05], "repair": 1.2}, {"process": "worker-3", "at": [1.25]}]
    run = run_of(*failures, servers=2, validators=2)
    run_here(run, tmp_path)
    (replaced,) = lines(tmp_path, "validator-0", "replaced")
    assert replaced["process"] == "worker-3"
    assert not lines(tmp_path, "validator-1", "replaced")
    served = [submitter for _, reader, submitter in entries(tmp_path) if reader == "worker-3"]
    assert [*dict.fromkeys(served)] == ["validator-1", "validator-0"]
    assert served[-1] == "validator-1"
    assert_consistent(run, tmp_path)


def test_a_worker_that_is_lost_with_its_validator_is_admitted_by_the_other_one(tmp_path):
    """The validator has an entry for the replacement, which has not come to the servers."""
    slow = {"messages": {"send": 0.04}, "local": {"latency": 0.3}, "remote": {"latency": 0.3}}
    lost = {"process": "worker-1", "at": [1.0], "repair": 0.01}
    tables = {"validators": 2, "servers": 2, "simulation": slow, "train": {"epochs": 1}}
    run_here(run_of(lost, **tables), tmp_path / "worker")
    (replaced,) = lines(tmp_path / "worker", "validator-1", "replaced")
    both = [lost, {"process": "validator-1", "at": [replaced["time"] + 0.05], "repair": 3.0}]
    run = run_of(*both, **tables)
    run_here(run, tmp_path / "both")
    assert [line["process"] for line in lines(tmp_path / "both", "validator-0", "replaced")] == ["worker-1"]
    applied = [line for line in lines(tmp_path / "both", "server-0", "applied") if line["reader"] == "worker-1"]
    assert [line["submitter"] for line in applied if "incarnation" in line] == ["validator-0"]
    assert_consistent(run, tmp_path / "both")


def test_a_worker_that_was_replaced_before_goes_on_when_its_validator_returns(tmp_path):
    """The validator's replacement hears of the worker's, and gets what that sends again, before the first model."""
    slow = {"local": {"latency": 0.05}, "remote": {"latency": 0.05}}
    lost = (
        {"process": "worker-1", "at": [0.35], "repair": 0.05},
        {"process": "validator-1", "at": [1.05], "repair": 1.0},
    )
    run_here(run_of(*lost, servers=2, simulation=slow, train={"epochs": 3}), tmp_path)
    applied = lines(tmp_path, "server-0", "applied")
    last = max(number for number, line in enumerate(applied) if "validators" in line)
    assert {line["reader"] for line in applied[last + 1 :]} >= {f"worker-{w}" for w in range(4)}


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
    """The update of the lost worker waits at the validator, which fails before the servers have its entry."""
    slow = {"combine": {"call": 0.5}, "messages": {"send": 0.1}}
    tables = {"validators": 1, "simulation": slow, "train": {"epochs": 1}}
    lost = {"process": "worker-2", "at": [3.3], "repair": 0.01}
    run_here(run_of(lost, **tables), tmp_path / "worker")
    (replaced,) = lines(tmp_path / "worker", "validator-0", "replaced")
    run = run_of(lost, {"process": "validator-0", "at": [replaced["time"] + 0.05]}, **tables)
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
    elif draw.random() < 0.4:  # it judges by the validator's own steps and data
        tables["validation"] = {"rule": {"kind": "zeno++"}}
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


@pytest.mark.parametrize("there", [[0], [0, 1]])
def test_a_checkpoint_comes_next_if_such_an_entry_has_its_position(there, tmp_path):
    """The entry at which other validators serve the workers, and the one that admits the replacement."""
    failure = {"process": "validator-1", "at": [1.05], "repair": 0.5}
    run_here(run_of(failure, servers=2), tmp_path / "without")
    applied = lines(tmp_path / "without", "server-0", "applied")
    (entry,) = (line["entry"] for line in applied if line.get("validators") == there)
    run_here(run_of(failure, servers=2, checkpoint={"rounds": entry}), tmp_path / "with")
    made = [line["moment"] for line in lines(tmp_path / "with", "server-0", "checkpoint")]
    assert made[:1] == [entry + 1]


def test_check_says_what_becomes_of_lost_validators(tmp_path, capsys):
    file = tmp_path / "file.toml"
    keys = {"topology.validators": 2, "train.mode": "async", "validation.rule.kind": "naive_async"}
    survives = {"survive.workers": True, "survive.validators": True, "transport.kind": "inproc"}
    file.write_text(small_experiment("file", {**keys, **survives}))
    assert main(["check", str(file)]) == 0
    assert "; others serve the workers of a lost validator; any other lost" in capsys.readouterr().out
    assert main(["check", str(file), "--set", "topology.validators=1"]) == 0
    assert "; all wait for the replacement of a lost validator; any other lost" in capsys.readouterr().out

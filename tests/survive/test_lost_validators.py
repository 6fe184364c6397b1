"""Runs in virtual time that lose validators: others serve their workers, replacements take part, and servers agree."""

import pytest
from executed import lines, run_here
from interrupted import play, play_through
from small_experiment import small_experiment
from survive.test_crashes_with_losses import of_checkpoint, speeds, valid
from survive.test_lost_workers import STEP, drawn_costs, drawn_failures, played, survivors

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.evaluation import Evaluations
from hpcps.roles.local_training import LocalTraining
from hpcps.roles.sync.quorum import QuorumCollector
from hpcps.roles.sync.worker import SyncWorker
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions
from hpcps.spec.problems import dotted

BOTH = {"workers": True, "validators": True}


def run_of(*failures, validators=2, **tables):
    """Return a run that survives the loss of validators, too."""
    return survivors(*failures, validators=validators, **{"survive": BOTH, **tables})


def participants(folder, validator):
    return {line["round"]: line["participants"] for line in lines(folder, f"validator-{validator}", "round")}


def assert_evaluated(run, evaluations):
    """Each epoch is evaluated; a replacement repeats at most the last evaluation, of which server 0 did not know."""
    found = {}
    for line in evaluations:
        found.setdefault(line["round"], set()).add(line["epoch"])
    first, after = 1, 1
    for epochs in found.values():
        assert min(epochs) in (first, after)
        first, after = min(epochs), max(epochs) + 1
        assert epochs == {*range(first, after)}
    assert after == run.train.epochs + 1


def assert_consistent(run, folder, read=lines):
    """Each epoch is evaluated, rounds follow each other, and no step of a worker is in two combined updates.

    `read` reads the lines of a process and an event.
    """
    assert_evaluated(run, read(folder, "validator-0", "evaluation"))
    servers = range(run.topology.servers)
    rounds = [[line["round"] for line in read(folder, f"server-{s}", "round")] for s in servers]
    assert all(each == list(range(len(each))) for each in rounds)
    combined_of = [[line["validators"] for line in read(folder, f"server-{s}", "round")] for s in servers]
    assert all(each == combined_of[0] for each in combined_of)
    if not run.has_quorum:  # what reaches a combiner is expected there
        assert not any(read(folder, f"validator-{v}", "rejected") for v in range(run.topology.validators))
    for worker in range(run.topology.workers):
        steps = {line["round"]: line["step"] for line in read(folder, f"worker-{worker}", "round")}
        applied = []
        for line in sorted(combined(run, folder, read), key=lambda line: line["round"]):
            answered = line["round"] - dict(map(tuple, line["late"])).get(worker, 0)
            applied += [steps[answered]] if worker in line["arrived"] and answered in steps else []
        assert applied == sorted(set(applied)), worker


def combined(run, folder, read):
    """Yield the lines of the rounds of validators whose combined updates are in the model."""
    there = {line["round"]: line["validators"] for line in read(folder, "server-0", "round")}
    for v in range(run.topology.validators):
        yield from (line for line in read(folder, f"validator-{v}", "round") if v in there[line["round"]])


@pytest.mark.sample(1)
@pytest.mark.parametrize("servers", [1, 2])
def test_another_validator_serves_its_workers_until_it_is_replaced(servers, tmp_path):
    """Validator 1 fails in round 2; its workers are served from the model of round 4 on, by the other one."""
    run = run_of({"process": "validator-1", "at": [0.5], "repair": 1.0}, servers=servers)
    run_here(run, tmp_path)
    (lost,), (replaced,) = lines(tmp_path, "server-0", "lost"), lines(tmp_path, "server-0", "replaced")
    assert (lost["process"], lost["cause"], lost["counted"]) == ("validator-1", "a failure of the simulation", False)
    other, own, first = participants(tmp_path, 0), participants(tmp_path, 1), replaced["first"]
    assert [other[round] for round in range(5)] == [[0, 2], [0, 2], [0, 2], [0, 2], [0, 1, 2, 3]]
    assert [other[round] for round in range(first - 1, first + 2)] == [[0, 1, 2, 3], [0, 2], [0, 2]]
    assert [own[round] for round in (0, 1, first, first + 1)] == [[1, 3], [1, 3], [], [1, 3]]
    assert sorted(own) == [0, 1, *range(first, max(other) + 1)]
    assert_consistent(run, tmp_path)
    assert RunDirectory(tmp_path).done


@pytest.mark.sample(1)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("moment", [0.0, 0.5])
def test_the_only_validator_is_replaced(moment, servers, tmp_path):
    """It gives the initial model, and evaluates; all wait for it."""
    run = run_of({"process": "validator-0", "at": [moment], "repair": 1.0}, validators=1, servers=servers)
    run_here(run, tmp_path)
    assert_consistent(run, tmp_path)
    taken = [each for each in participants(tmp_path, 0).values() if each]
    assert all(each == [0, 1, 2, 3] for each in taken)
    assert RunDirectory(tmp_path).done


def test_a_combined_update_counts_only_if_all_servers_have_it(tmp_path):
    """Validator 1 fails after it has sent its update to server 0, and before it sends it to server 1."""
    failure = {"process": "validator-1", "at": [1.15], "repair": 0.3}
    run = run_of(failure, servers=2, simulation={"messages": {"send": 0.1}}, train={"epochs": 1})
    run_here(run, tmp_path)
    (lost,) = lines(tmp_path, "server-0", "lost")
    assert lost["order"][-2:] == ["validator-1", "lost validator-1"]
    assert not lost["counted"]
    assert_consistent(run, tmp_path)


@pytest.mark.parametrize("after", [0.06, 0.12, 0.2])
def test_a_server_that_gets_no_initial_model_of_several_validators_gets_it(after, tmp_path):
    """The first one gives it to server 0 only, and the next one fails before it gives it to server 1."""
    failure = {"process": "validator-0", "at": [0.07, 0.07 + after], "noticed": 0.01, "repair": 0.01}
    run = run_of(failure, validators=1, servers=2, simulation={"messages": {"send": 0.04}})
    run_here(run, tmp_path)
    assert_consistent(run, tmp_path)
    assert [line["process"] for line in lines(tmp_path, "server-0", "lost")] == ["validator-0"] * 2


@pytest.mark.parametrize("slow", [False, True])
def test_the_workers_of_a_validator_that_is_lost_in_the_last_round_get_the_last_model(slow, tmp_path):
    """The slow one trains until 9 s, and the others until 8.6 s."""
    tables = {"simulation": {"step": {"kind": "none"}}, "heterogeneity": speeds(w0=0.1, w1=0.3, w2=0.1, w3=0.1)}
    run = run_of({"process": "validator-1", "at": [8.5 if slow else 2.9]}, servers=2, **(tables if slow else {}))
    run_here(run, tmp_path)
    assert_consistent(run, tmp_path)
    (lost,) = lines(tmp_path, "server-0", "lost")
    assert lost["round"] == len(lines(tmp_path, "server-0", "round")) - 1
    assert RunDirectory(tmp_path).done


def test_a_validator_that_evaluates_the_last_model_is_replaced(tmp_path):
    slow = {"evaluate": 1.0}
    whole = run_of(validators=1, simulation=slow)
    run_here(whole, tmp_path / "whole")
    end = lines(tmp_path / "whole", "server-0", "round")[-1]["time"]
    run = run_of({"process": "validator-0", "at": [end + 0.3]}, validators=1, simulation=slow)
    run_here(run, tmp_path / "lost")
    starts = [line.get("incarnation") for line in lines(tmp_path / "lost", "validator-0", "start")]
    assert starts == [None, 1]
    assert_consistent(run, tmp_path / "lost")
    names = [folder / "final" / "server-0.npy" for folder in (tmp_path / "whole", tmp_path / "lost")]
    assert names[0].read_bytes() == names[1].read_bytes()


def random_run(seed, workers=None, **tables):
    """Return a random run whose workers and validators fail."""
    draw = generator(seed, "validator", 0, "survive")
    validators, servers = ((1, 1), (2, 2), (2, 1), (3, 2), (1, 3))[seed % 5]
    failures = [drawn_failures(draw), {**drawn_failures(draw), "process": "validator"}]
    simulation = drawn_costs(draw, 2 * STEP)
    tables = {
        "communication": {"participation": float(draw.choice([1.0, 0.7]))},
        "checkpoint": {"every": int(draw.integers(0, 3))},
        "validation": {"rule": {"kind": str(draw.choice(["average", "median", "zeno"]))}},
        "simulation": simulation,
        **tables,
    }
    if draw.random() < 0.4:
        tables["communication"]["compression"] = {"kind": "int8", "direction": "both"}
    run = run_of(
        *failures, servers=servers, validators=validators, workers=workers or int(draw.integers(3, 7)), **tables
    )
    run = run.model_copy(update={"seed": seed})
    assert not list(contradictions(run))
    return run


SEEDS = [
    *range(5),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(5, 20)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(20, 200)),
]


@pytest.mark.sample(1, 5)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures(seed, tmp_path):
    """Whatever fails when, the run ends; the same run gives the same bits."""
    run = random_run(seed)
    model, _ = played(run, tmp_path / "one")
    assert played(run, tmp_path / "two")[0].tobytes() == model.tobytes()
    assert_consistent(run, tmp_path / "one")
    assert RunDirectory(tmp_path / "one").done


@pytest.mark.sample(1, 5)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures_with_a_quorum(seed, tmp_path):
    quorum = {"quorum": 0.5, "late": ("next", "drop")[seed % 2], "abandon": seed % 3 == 0}
    run = random_run(seed, workers=6, train=quorum)
    run_here(run, tmp_path)
    assert_consistent(run, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_crashes_and_losses(seed, tmp_path):
    """A run that crashes goes on from a checkpoint without the parts of lost validators."""
    draw = generator(seed, "validator", 1, "crashes")
    run = run_of({"every": 1.5, "repair": 0.1}, {"process": "validator", "every": 1.0}, servers=1 + seed % 2,
                 checkpoint={"every": 1})  # fmt: skip
    run = run.model_copy(update={"seed": seed})
    play_through(run, tmp_path, [int(draw.integers(200, 900)) for _ in range(3)])
    assert_consistent(run, tmp_path, valid)


def test_a_checkpoint_has_no_part_of_a_lost_validator(tmp_path):
    run = run_of({"process": "validator-1", "at": [0.5], "repair": 3600})
    record = tmp_path / "records" / "server-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"event": "lost"' in record.read_text())
    (position,) = (tmp_path / "checkpoints").iterdir()
    assert "validator-1" not in of_checkpoint(tmp_path, int(position.name))
    assert play(run, tmp_path)
    assert participants(tmp_path, 1)[int(position.name)] == [1, 3]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"survive": {"workers": False}}, "survive.validators: needs workers = true, too"),
        ({"topology": {"validators": 0}}, "survive.validators: there are none: use a validator"),
        ({"survive": {"validators": False}}, "failures[0].process: a lost validator ends the run"),
        ({"topology": {"validators": 0}}, "failures[0].process: there is no validator: use one, or leave it out"),
        (
            {"topology": {"validators": 1}},
            "failures[0].process: there is no validator-1: use validator-0 to validator-0",
        ),
    ],
)
def test_what_a_run_does_not_survive_is_refused(tables, expected):
    tables = {**tables, "survive": {**BOTH, **tables.get("survive", {})}}
    problems = list(contradictions(run_of({"process": "validator-1", "at": [1.0]}, **tables)))
    assert any(expected in f"{dotted(problem.path)}: {problem.message}" for problem in problems), problems


def test_check_says_what_a_file_survives(tmp_path, capsys):
    file = tmp_path / "file.toml"
    keys = {"topology.validators": 2, "survive.workers": True, "survive.validators": True, "transport.kind": "inproc"}
    file.write_text(small_experiment("file", keys))
    assert main(["check", str(file)]) == 0
    assert "; others serve the workers of a lost validator; any other lost process ends" in capsys.readouterr().out
    assert main(["check", str(file), "--set", "topology.validators=1"]) == 0
    assert "; all wait for the replacement of a lost validator; any" in capsys.readouterr().out
    assert main(["check", str(file), "--set", "transport.kind=pslite"]) == 0
    assert "; others serve the workers of a lost validator; any" in capsys.readouterr().out
    assert main(["check", str(file), "--set", "transport.kind=mpi"]) == 2
    assert "over it a run does not survive the loss of a worker: use one of" in capsys.readouterr().err


def test_workers_of_lost_validators_are_spread():
    roster = Roster(1, 3, 9)
    assert [roster.validator_of(k, (0, 1, 2)) for k in range(9)] == [0, 1, 2] * 3
    assert [roster.validator_of(k, (0, 2)) for k in range(9)] == [0, 0, 2, 0, 2, 2, 0, 0, 2]
    assert {roster.validator_of(k, (1,)) for k in range(9)} == {1}
    assert roster.validator_of(0, ()) is None


def keep_serving(self, workers, round, *, over):
    """Serve the workers of the lost validator, and never give them back."""
    yield from SERVE(self, self._serves | set(workers), round, over=over)


def forget_evaluations(self, round, evaluated):
    RESUME(self, round, 0)


def evaluate_of_round(self, round):
    return self._schedule.epochs_before(round)


SERVE, RESUME = QuorumCollector.serve, LocalTraining.resume
FAULTS = {
    "a worker always answers its own validator": (SyncWorker, "_to", lambda self, receiver: receiver),
    "workers are not given back": (QuorumCollector, "serve", keep_serving),
    "a replacement does not know what is evaluated": (LocalTraining, "resume", forget_evaluations),
    "a replacement does not evaluate what is missing": (Evaluations, "due", evaluate_of_round),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, tmp_path, monkeypatch):
    """The run ends without progress, servers disagree, or an update or an evaluation is missing or there twice."""
    monkeypatch.setattr(*FAULTS[fault])
    for seed in range(6):
        draw = generator(seed, "validator", 0, "faults")
        failures = [
            {"process": process, "at": sorted(map(float, draw.uniform(0.1, last, times))), "repair": 0.4}
            for process, times, last in (("validator-0", 3, 9.0), ("validator-1", 3, 6.0), ("worker", 1, 3.0))
        ]
        run = run_of(*failures, servers=2, simulation=drawn_costs(draw, 2 * STEP))
        try:
            run_here(run, tmp_path / str(seed))
            assert_consistent(run, tmp_path / str(seed))
        except (RunError, AssertionError):
            return
    pytest.fail("the runs are as without the fault")


@pytest.mark.thorough
def test_without_a_fault_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(FAULTS, "none", (QuorumCollector, "serve", SERVE))
    with pytest.raises(pytest.fail.Exception):
        test_a_planted_fault_is_found("none", tmp_path, monkeypatch)


@pytest.mark.parametrize("validators", [1, 2])
def test_a_worker_is_replaced_while_there_is_no_coordinator(validators, tmp_path):
    """Validator 0 is lost before its initial model is sent. Its successor hears of no loss of worker 2."""
    failures = (
        {"process": "validator-0", "at": [0.001], "repair": 1.0},
        {"process": "worker-2", "at": [0.5], "repair": 0.01},
    )
    costs = {"messages": {"send": 0.01}, "remote": {"latency": 0.3}, "local": {"latency": 0.3}}
    run = survivors(*failures, validators=validators, survive={"validators": True}, simulation=costs)
    played(run, tmp_path)
    (lost,), (replaced,) = lines(tmp_path, "validator-0", "lost"), lines(tmp_path, "validator-0", "replaced")
    assert (lost["process"], replaced["process"]) == ("worker-2", "worker-2")
    arrived = [line["arrived"] for line in lines(tmp_path, "validator-0", "round")]
    assert 2 not in arrived[0]
    assert 2 in arrived[1]

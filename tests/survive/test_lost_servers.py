"""Runs in virtual time that lose servers: the standby takes the place of its server, and nothing is lost."""

import numpy as np
import pytest
from executed import lines, run_here
from interrupted import play, play_through
from small_experiment import small_experiment
from survive import test_lost_async_validators, test_lost_validators
from survive.test_lost_workers import STEP, survivors

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.execution.replay.replayed_run import replay
from hpcps.execution.standby.primary import PrimaryDriver
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions
from hpcps.spec.problems import dotted

ALL = {"workers": True, "validators": True, "servers": True}
MODES = {
    "synchronous": (test_lost_validators, {}),
    "quorum": (test_lost_validators, {"quorum": 0.5, "late": "next"}),
    "asynchronous": (test_lost_async_validators, {}),
}


def model(folder, servers):
    return np.concatenate([np.load(folder / "final" / f"server-{s}.npy") for s in range(servers)])


def assert_replayed(run, folder, copy):
    found = replay(RunDirectory(folder), run, copy, lambda difference: None)
    assert found.difference is None, str(found.difference)
    assert found.models == run.topology.servers


def seats(folder, server):
    """Return what the record of a server says of its processes."""
    return [line["event"] for line in lines(folder, server) if line["event"].startswith(("took", "standby"))]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("validators", "servers"), [(0, 1), (0, 3), (1, 1), (2, 2)])
def test_a_run_that_loses_servers_gives_the_same_bits(validators, servers, tmp_path):
    sizes = {"validators": validators, "servers": servers}
    survive = {"workers": True, "servers": True}
    last = f"server-{servers - 1}"
    run_here(survivors(**sizes), tmp_path / "whole")
    # The process that is the server is lost, then the one that took its place; another one is lost at the end.
    failures = [{"process": "server-0", "at": [0.75, 1.65], "noticed": 0.02}, {"process": last, "at": [2.75]}]
    run = survivors(*failures, **sizes, survive=survive)
    run_here(run, tmp_path / "lost")
    assert model(tmp_path / "lost", servers).tobytes() == model(tmp_path / "whole", servers).tobytes()
    rounds = [line["round"] for line in lines(tmp_path / "lost", "server-0", "round")]
    assert rounds == [*range(15)]
    lost = ["took_over", "standby_began"]
    assert seats(tmp_path / "lost", "server-0") == [*lost, *lost, *(["took_over"] if servers == 1 else [])]
    assert RunDirectory(tmp_path / "lost").done
    assert not (tmp_path / "lost" / "standbys").exists()
    assert_replayed(run, tmp_path / "lost", tmp_path / "replay")


def test_a_standby_changes_nothing(tmp_path):
    """All that a run without standbys records is in the records of one with them."""
    for name, servers in (("with", True), ("without", False)):
        run = survivors(validators=2, servers=2, survive={**ALL, "servers": servers}, checkpoint={"rounds": 4})
        run_here(run, tmp_path / name)
    # Counts since the line before depend on what came meanwhile, which depends on time.
    times = {"time", "wait", "exchange", "combine", "cpu", "polls", "cpu_wait", "cpu_exchange", "cpu_combine"}
    times |= {"cpu_apply", "compute", "run", "order", "cpu_pack", "host"}
    times |= {f"{what}_{way}" for what in ("bytes", "messages") for way in ("sent", "received")}
    for record in sorted((tmp_path / "with" / "records").iterdir()):
        both = [
            [{key: value for key, value in line.items() if key not in times} for line in lines(folder, record.stem)]
            for folder in (tmp_path / "with", tmp_path / "without")
        ]
        assert both[0] == both[1], record.stem
    assert model(tmp_path / "with", 2).tobytes() == model(tmp_path / "without", 2).tobytes()


def test_a_lost_standby_is_replaced(tmp_path):
    run = survivors({"process": "standby-0", "at": [0.75, 1.9]}, survive={"workers": True, "servers": True})
    run_here(run, tmp_path)
    assert seats(tmp_path, "server-0") == ["standby_lost", "standby_began"] * 2
    assert not (tmp_path / "standbys").exists()
    assert_replayed(run, tmp_path, tmp_path / "replay")


def test_without_a_standby_a_lost_server_ends_the_run(tmp_path):
    failures = [{"process": "standby-0", "at": [0.7], "repair": 60}, {"process": "server-0", "at": [1.1]}]
    with pytest.raises(RunError, match="server-0 is lost, and so is its standby: start the run again"):
        run_here(survivors(*failures, survive={"workers": True, "servers": True}), tmp_path)


def random_run(seed, mode):
    """Return a random run all of whose processes fail."""
    module, train = MODES[mode]
    draw = generator(seed, "server", 0, f"survive {mode}")
    validators, servers = ((1, 1), (2, 2), (2, 1), (3, 2), (1, 3))[seed % 5]
    failures = [
        {"process": kind, "every": float(draw.uniform(*every)), "noticed": float(draw.choice([0.0, 0.05])),
         "repair": float(draw.choice([0.0, 0.02] if kind.startswith("s") else [0.0, 0.1, 0.5]))}
        for kind, every in (("worker", (1, 4)), ("validator", (1, 4)), ("server", (2, 6)), ("standby", (3, 9)))
    ]  # fmt: skip
    tables = {
        "checkpoint": {"every": 0, **({"rounds": int(draw.integers(2, 6))} if draw.random() < 0.6 else {})},
        "simulation": {
            "step": {"kind": "uniform", "low": 0.5 * STEP, "high": 1.5 * STEP},
            **{task: {"call": float(draw.uniform(0, 0.05))} for task in ("combine", "adopt", "apply")},
            "local": {"latency": float(draw.uniform(0, 0.02))},
            "messages": {"send": float(draw.uniform(0, 0.005))},
        },
        "survive": ALL,
    }
    if train:
        tables["train"] = train
    workers = int(draw.integers(4, 7))
    run = module.run_of(*failures, servers=servers, validators=validators, workers=workers, **tables)
    run = run.model_copy(update={"seed": seed})
    assert not list(contradictions(run))
    return run


def survived(run, folder):
    """Execute a run; return whether it went on to its end: a server may be lost while no standby has its state."""
    try:
        run_here(run, folder)
    except RunError as error:
        if "standby" not in str(error):
            raise
        return False
    return True


SEEDS = [
    *range(4),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 16)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(16, 150)),
]


@pytest.mark.sample(1, 4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures_of_all_processes(seed, mode, tmp_path):
    run = random_run(seed, mode)
    if not survived(run, tmp_path / "run"):
        return
    assert RunDirectory(tmp_path / "run").done
    MODES[mode][0].assert_consistent(run, tmp_path / "run")
    assert_replayed(run, tmp_path / "run", tmp_path / "replay")


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_is_whole_whoever_writes_it(mode, tmp_path):
    """The server is lost between any two of its events around a checkpoint; what it has sealed stays valid."""
    module, train = MODES[mode]
    failures = [{"process": "server-0", "at": [0.4], "repair": 0.05}, {"process": "server-1", "at": [0.9]}]
    tables = {"checkpoint": {"every": 0, "rounds": 3}, "survive": ALL, **({"train": train} if train else {})}
    run = module.run_of(*failures, servers=2, workers=4, **tables)
    found = []

    def stop():
        found.extend(RunDirectory(tmp_path).checkpoints.positions())
        return len(lines(tmp_path, "server-0", "took_over")) > 0 and len(set(found)) > 1

    assert not play(run, tmp_path, stop=stop)
    checkpoints, roster = RunDirectory(tmp_path).checkpoints, Roster.of(run)
    everyone, lossable = ({*map(str, peers)} for peers in (roster.with_state(), roster.replaceable(run)))
    for position in checkpoints.positions():
        checkpoints.check(position, RunDirectory(tmp_path).spec["run_id"], frozenset(everyone), frozenset(lossable))
    assert play(run, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(3))
def test_crashes_and_lost_servers(seed, tmp_path):
    """A run that crashes goes on from a checkpoint, with the standbys of the new attempt."""
    draw = generator(seed, "server", 1, "crashes")
    run = test_lost_validators.run_of(
        {"every": 1.5, "repair": 0.1}, {"process": "server", "every": 1.0, "repair": 0.05},
        servers=1 + seed % 2, checkpoint={"every": 1}, survive=ALL,
    )  # fmt: skip
    run = run.model_copy(update={"seed": seed})
    play_through(run, tmp_path, [int(draw.integers(200, 900)) for _ in range(3)])
    assert RunDirectory(tmp_path).done


FAULTS = {
    "messages leave at once": ("_release", lambda driver, action, is_line=False: action()),
    "the standby is not told": ("_note", lambda driver, name: None),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, tmp_path, monkeypatch):
    """What the protocol is for: without it some run differs, or ends."""
    monkeypatch.setattr(PrimaryDriver, *FAULTS[fault])
    wrong = 0
    for seed in range(6):
        run, folder = random_run(seed, "asynchronous"), tmp_path / str(seed)
        try:
            run_here(run, folder)
            test_lost_async_validators.assert_consistent(run, folder)
            assert_replayed(run, folder, tmp_path / f"replay-{seed}")
        except (RunError, AssertionError):
            wrong += 1
    assert wrong


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"survive": {"workers": False}}, "survive.servers: needs workers = true, too"),
        ({"transport": {"kind": "mpi"}}, "survive.workers: over it a run does not survive the loss of a worker"),
    ],
)
def test_what_lost_servers_exclude(tables, expected):
    run = survivors(**{**tables, "survive": {"servers": True, "workers": True, **tables.get("survive", {})}})
    found = [f"{dotted(problem.path)}: {problem.message}" for problem in contradictions(run)]
    assert any(expected in text for text in found), found


def test_failures_of_servers_need_standbys():
    run = survivors({"process": "server-3", "at": [1.0]})
    found = {dotted(problem.path): problem.message for problem in contradictions(run)}
    assert found["simulation.failures[0].process"] == (
        "a lost server ends the run: set survive.servers = true, or leave it out"
    )


def test_check_says_what_becomes_of_a_lost_server(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(
        small_experiment(
            "small",
            {
                **{"topology.workers": 2, "topology.validators": 1, "transport.kind": "pslite"},
                **{"survive.workers": True, "survive.servers": True},
            },
        )
    )
    assert main(["check", str(tmp_path / "small.toml")]) == 0
    said = capsys.readouterr().out
    assert "the standby of a lost server takes its place; any other lost process ends the run" in said
    assert "5 processes over pslite" in said

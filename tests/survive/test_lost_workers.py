"""Runs in virtual time that lose workers: rounds go on, replacements take part, and every update enters once."""

import numpy as np
import pytest
from executed import lines, run_here
from installed import BACKEND
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions
from hpcps.spec.problems import dotted
from hpcps.spec.schema import Run

STEP = 0.1
LAST = 15  # rounds of two steps


def survivors(*failures, servers=1, validators=0, workers=4, **tables):
    """Return a run whose processes fail as these tables say; a round takes 0.2 s."""
    run = {
        "name": "survive",
        "topology": {"servers": servers, "validators": validators, "workers": workers},
        "transport": {"kind": "inproc"},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 80 * (workers + 1), "test_limit": 40},
        "train": {"epochs": 3, "batch_size": 8, "local_steps": 2, "optimizer": {"lr": 0.05}},
        "simulation": {
            "kind": "modelled",
            "step": {"kind": "constant", "seconds": STEP},
            "failures": [{"repair": 0.3, **failure} for failure in failures],
        },
        "survive": {"workers": True},
        "checkpoint": {"every": 0},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return Run.model_validate(run)


def played(run, folder):
    """Execute a run; return the model, and the rounds of each combiner."""
    run_here(run, folder)
    combiners = [f"validator-{v}" for v in range(run.topology.validators)] or ["server-0"]
    model = np.concatenate([np.load(folder / "final" / f"server-{s}.npy") for s in range(run.topology.servers)])
    return model, {combiner: lines(folder, combiner, "round") for combiner in combiners}


TOPOLOGIES = pytest.mark.parametrize(("validators", "servers"), [(0, 1), (0, 3), (1, 1), (2, 2)])


STEPS = {
    "constant": {},
    "decayed inside a round": {"local_steps": 3, "lr_decay": {"epochs": [1, 2], "factor": 0.5}},
    "cosine": {"local_steps": 1, "lr_decay": {"schedule": "cosine"}},
    "overwritten": {"first_step": "overwritten"},
}
"""Local steps and learning rates."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    ("key", "validators", "servers"),
    [
        *(("workers", 0, 1), ("workers", 0, 3), ("workers", 1, 1), ("workers", 2, 2)),
        *(("validators", 1, 1), ("validators", 2, 2)),
    ],
)
def test_without_a_loss_the_model_is_that_of_a_run_without_the_key(key, validators, servers, steps, tmp_path):
    survive, tables = (
        {"workers": True, key: True},
        {"servers": servers, "validators": validators, "train": STEPS[steps]},
    )
    kept, _ = played(survivors(**tables, survive=survive), tmp_path / "kept")
    plain = survivors(**tables, survive={"workers": False})
    model, _ = played(plain, tmp_path / "plain")
    assert kept.tobytes() == model.tobytes()


@pytest.mark.sample(2)
@TOPOLOGIES
def test_rounds_go_on_and_the_replacement_takes_part(validators, servers, tmp_path):
    """It goes on with the batches after its predecessor's last update, and nobody waits for it."""
    run = survivors({"process": "worker-2", "at": [1.05]}, validators=validators, servers=servers)
    _, rounds = played(run, tmp_path)
    decider = "server-0" if not validators else f"validator-{2 % validators}"
    there = [2 in line["participants"] for line in rounds[decider]]
    # It fails in round 5; its replacement starts in round 6, after 0.3 s, and gets the model of round 7.
    assert there == [True] * 5 + [False] * 2 + [True] * (LAST - 7)
    (lost,) = lines(tmp_path, decider, "lost")
    (replaced,) = lines(tmp_path, decider, "replaced")
    assert (lost["process"], lost["round"], lost["counted"]) == ("worker-2", 5, False)
    assert (replaced["process"], replaced["first"]) == ("worker-2", 7)
    record = lines(tmp_path, "worker-2")
    assert [line["round"] for line in record if line["event"] == "round"] == [*range(5), *range(7, LAST)]
    starts = [line for line in record if line["event"] == "start"]
    assert [line.get("incarnation") for line in starts] == [None, 1]
    assert starts[1]["continues"] == record.index(starts[1])
    assert all(line["time"] == pytest.approx(STEP * 2 * LAST) for line in lines(tmp_path, "server-0", "end"))
    assert RunDirectory(tmp_path).done
    again, _ = played(run, tmp_path / "again")
    assert again.tobytes() == played(run, tmp_path / "third")[0].tobytes()


def test_an_update_that_is_complete_counts(tmp_path):
    """The worker fails after its update has come, and before others have sent theirs."""
    seconds = [{"name": f"w{k}", "workers": [k], "seconds": STEP * (1 + (k == 1))} for k in range(4)]
    slow = {"heterogeneity": {"classes": seconds}, "simulation": {"step": {"kind": "none"}}}
    run = survivors({"process": "worker-2", "at": [0.3], "repair": 0.15}, **slow)
    _, rounds = played(run, tmp_path)
    assert [line["participants"] for line in rounds["server-0"][:3]] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]]
    (lost,) = lines(tmp_path, "server-0", "lost")
    assert (lost["round"], lost["counted"]) == (0, True)


@pytest.mark.parametrize("validators", [0, 1])
def test_a_replacement_that_starts_in_the_last_round_ends(validators, tmp_path):
    """It gets no model, as there is none to train on."""
    slow = {"combine": {"call": 1.0}}
    run = survivors(
        {"process": "worker-2", "at": [1.2 * LAST - 0.9], "repair": 0.1}, validators=validators, simulation=slow
    )
    _, rounds = played(run, tmp_path)
    decider = "validator-0" if validators else "server-0"
    assert rounds[decider][-1]["participants"] == [0, 1, 2, 3]
    assert not lines(tmp_path, decider, "replaced")
    assert [line["event"] for line in lines(tmp_path, "worker-2")][-2:] == ["round", "start"]
    assert RunDirectory(tmp_path).done


@pytest.mark.parametrize("validators", [0, 1])
def test_all_workers_but_the_coordinator_are_lost_for_good(validators, tmp_path):
    """The run goes on with what is left, also without a replacement."""
    failures = [{"process": f"worker-{k}", "at": [0.5 + 0.01 * k], "repair": 3600} for k in (1, 2, 3)]
    _, rounds = played(survivors(*failures, validators=validators), tmp_path)
    (each,) = rounds.values()
    assert [line["participants"] for line in each] == [[0, 1, 2, 3]] * 2 + [[0]] * (LAST - 2)


@pytest.mark.parametrize(("survive", "rule"), [({"min_workers": 3}, "average"), ({}, "krum")])
def test_with_too_few_workers_rounds_wait(survive, rule, tmp_path):
    """Two of four are lost at 0.5 s, and three are needed, by the key or by krum with f = 0. One returns after 2 s."""
    failures = [{"process": f"worker-{k}", "at": [0.5], "repair": 2.0 * (k - 1)} for k in (2, 3)]
    rules = {"validation": {"rule": {"kind": rule, **({"f": 0} if rule == "krum" else {})}}}
    _, rounds = played(survivors(*failures, validators=1, survive=survive, **rules), tmp_path)
    (each,) = rounds.values()
    assert [line["arrived"] for line in each[:4]] == [[0, 1, 2, 3]] * 2 + [[0, 1], [0, 1, 2]]
    assert each[2]["time"] == pytest.approx(2.5)
    (paused,) = lines(tmp_path, "validator-0", "paused")
    assert (paused["round"], paused["workers"], paused["needed"]) == (2, 2, 3)


def test_a_run_without_any_worker_waits_for_the_first_replacement(tmp_path):
    failures = [{"process": f"worker-{k}", "at": [0.5], "repair": 10 + k} for k in range(4)]
    _, rounds = played(survivors(*failures, validators=1), tmp_path)
    (each,) = rounds.values()
    assert [line["participants"] for line in each[:4]] == [[0, 1, 2, 3]] * 2 + [[], [0]]
    assert each[2]["time"] == pytest.approx(10.5)


def test_a_checkpoint_waits_for_no_lost_worker(tmp_path):
    """Worker 2 is lost in round 4, after which a checkpoint is due."""
    run = survivors({"process": "worker-2", "at": [0.9], "repair": 0.6}, checkpoint={"every": 1})
    played(run, tmp_path)
    assert [line["moment"] for line in lines(tmp_path, "server-0", "checkpoint")] == [5, 10]


def drawn_failures(draw):
    """Return random failures of all workers."""
    return {
        "every": float(draw.uniform(0.3, 3.0)),
        "noticed": float(draw.choice([0.0, 0.03, 0.4])),
        "repair": float(draw.choice([0.0, 0.1, 0.5, 5.0])),
    }


def drawn_costs(draw, slowest):
    """Return a simulation in which computations and messages take random times, a step at most so many seconds."""
    return {
        "step": {"kind": "uniform", "low": 0.01, "high": slowest},
        "combine": {"call": float(draw.choice([0.0, 0.05]))},
        "adopt": {"call": float(draw.choice([0.0, 0.05]))},
        "apply": {"call": float(draw.choice([0.0, 0.05]))},
        "remote": {"latency": float(draw.choice([0.0, 0.02]))},
        "local": {"latency": float(draw.choice([0.0, 0.02]))},
        "messages": {"send": float(draw.choice([0.0, 0.03]))},
        "hosts": int(draw.integers(1, 4)),
    }


SEEDS = [
    *range(6),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(6, 12)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 100)),
]


@pytest.mark.sample(2, 4)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures(seed, tmp_path):
    """Whatever fails when, the run ends; the same run gives the same bits; no step is applied twice."""
    draw = generator(seed, "worker", 0, "survive")
    validators, servers = ((0, 1), (0, 2), (1, 1), (2, 2), (0, 3), (3, 1))[seed % 6]
    workers = int(draw.integers(2, 6))
    failures = drawn_failures(draw)
    tables = {
        "simulation": drawn_costs(draw, 2 * STEP),
        "communication": {"participation": float(draw.choice([1.0, 0.7]))},
        "checkpoint": {"every": int(draw.integers(0, 3))},
        "seed": seed,
    }
    rule = draw.choice(["average", "median", "zeno"] if validators else ["average", "median"])
    tables["validation"] = {"rule": {"kind": str(rule)}}
    if seed % 2 and rule != "zeno":
        tables["validation"]["weights"] = [1.0 + k for k in range(workers)]
    if draw.random() < 0.4:
        tables["communication"]["compression"] = {"kind": "int8", "direction": "both"}
    seed_of = tables.pop("seed")
    run = survivors(failures, servers=servers, validators=validators, workers=workers, **tables)
    run = run.model_copy(update={"seed": seed_of})
    model, rounds = played(run, tmp_path / "one")
    assert played(run, tmp_path / "two")[0].tobytes() == model.tobytes()
    for each in rounds.values():
        assert [line["round"] for line in each] == list(range(len(each)))
    for server in range(0 if validators else servers):  # an update enters all shards or none
        own = [line["participants"] for line in lines(tmp_path / "one", f"server-{server}", "round")]
        assert own == [line["participants"] for line in rounds["server-0"]]
    # Each worker's updates that were combined, or its absences, continue each other: two steps each, none twice.
    for worker in range(workers):
        combiner = f"validator-{worker % validators}" if validators else "server-0"
        arrived = [line["round"] for line in rounds[combiner] if worker in line["arrived"]]
        steps = {line["round"]: line["step"] for line in lines(tmp_path / "one", f"worker-{worker}", "round")}
        wrong = [r for n, r in enumerate(arrived) if r in steps and steps[r] != 2 * (n + 1)]
        assert not wrong, (worker, arrived, steps)


QUORUM_SEEDS = [
    *range(3),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 6)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 9)),
]


@pytest.mark.sample(1, 2)
@pytest.mark.parametrize("seed", QUORUM_SEEDS)
def test_random_failures_with_a_quorum(seed, tmp_path):
    """Late workers fail, too: the run ends, all servers agree, and no step of a worker is applied twice."""
    draw = generator(seed, "worker", 0, "survive with a quorum")
    validators, servers = ((0, 1), (0, 2), (1, 1), (2, 2), (0, 3), (2, 1))[seed % 6]
    failures = drawn_failures(draw)
    tables = {
        "simulation": drawn_costs(draw, 6 * STEP),
        "communication": {"participation": float(draw.choice([1.0, 0.7]))},
        "checkpoint": {"every": int(draw.integers(0, 3))},
        "train": {
            "quorum": 0.5,
            "grace": float(draw.choice([0.0, 0.05])),
            "late": str(draw.choice(["next", "drop"])),
            "abandon": bool(draw.random() < 0.3),
        },
    }
    run = survivors(failures, servers=servers, validators=validators, workers=int(draw.integers(6, 9)), **tables)
    run = run.model_copy(update={"seed": seed})
    assert not list(contradictions(run))
    model, rounds = played(run, tmp_path / "one")
    assert played(run, tmp_path / "two")[0].tobytes() == model.tobytes()
    for each in rounds.values():
        assert [line["round"] for line in each] == list(range(len(each)))
    for server in range(0 if validators else servers):
        own = [line["participants"] for line in lines(tmp_path / "one", f"server-{server}", "round")]
        assert own == [line["participants"] for line in rounds["server-0"]]
    for worker in range(run.topology.workers):
        steps = {line["round"]: line["step"] for line in lines(tmp_path / "one", f"worker-{worker}", "round")}
        applied = []
        for line in rounds[f"validator-{worker % validators}" if validators else "server-0"]:
            answered = line["round"] - dict(map(tuple, line["late"])).get(worker, 0)
            applied += [steps[answered]] if worker in line["arrived"] and answered in steps else []
        assert applied == sorted(set(applied)), worker


def test_a_worker_is_lost_before_the_server_has_the_initial_model(tmp_path):
    link = {"simulation": {"local": {"latency": 0.05}}}
    _, rounds = played(survivors({"process": "worker-2", "at": [0.01], "repair": 0.02}, **link), tmp_path)
    assert [line["participants"] for line in rounds["server-0"][:2]] == [[0, 1, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            {"transport": {"kind": "mpi"}},
            "survive.workers: over it a run does not survive the loss of a worker: use one",
        ),
        ({"transport": {"kind": "pslite", "resend": True}}, "survive.workers: acknowledgements are for connections"),
        ({"survive": {"after": 2.0}}, "survive.after: a process is silent only where roles are processes"),
        ({"survive": {"workers": False, "after": 2.0}}, "survive.after: has an effect only with workers = true"),
        ({"attack": {"kind": "alie"}}, "survive.workers: alie needs the updates of all workers"),
        ({"validation": {"batchnorm": "averaged"}}, "survive.workers: the statistics of all workers are averaged"),
        ({"validation": {"batchnorm": "validator"}}, "survive.workers: the replacement of who evaluates has no such"),
        ({"communication": {"compression": {"kind": "topk", "memory": "ef21"}}}, "survive.workers: combiners keep"),
        ({"survive": {"workers": False, "min_workers": 2}}, "survive.min_workers: has an effect only with workers"),
        ({"survive": {"min_workers": 5}}, "survive.min_workers: a combiner has 4 workers: use at most that many"),
        ({"survive": {"workers": False}}, "simulation.failures[0]: a lost worker ends the run"),
        ({"simulation": {"failures": [{}]}}, "simulation.failures[0]: has no times"),
        (
            {"simulation": {"failures": [{"process": "worker-9", "at": [1]}]}},
            "failures[0].process: there is no worker-9",
        ),
    ],
)
def test_what_a_run_does_not_survive_is_refused(tables, expected):
    problems = list(contradictions(survivors({"process": "worker-2", "at": [1.0]}, **tables)))
    assert any(expected in f"{dotted(problem.path)}: {problem.message}" for problem in problems), problems


def test_check_says_what_a_file_survives(tmp_path, capsys):
    file = tmp_path / "file.toml"
    file.write_text(small_experiment("file", {"transport.kind": "pslite", "survive.workers": True}))
    losses = "any other lost process ends the run"
    assert main(["check", str(file), "--set", "topology.workers=7", "--set", "topology.validators=2"]) == 0
    assert f"losses      a lost worker is replaced; a round needs 1 of 3 or 1 of 4 workers, or waits; {losses}" in (
        capsys.readouterr().out
    )
    assert main(["check", str(file), "--set", "topology.validators=0", "--set", "survive.min_workers=2"]) == 0
    assert "a lost worker is replaced; a round needs 2 of" in (capsys.readouterr().out)
    assert main(["check", str(file), "--set", "survive.workers=false"]) == 0
    assert "losses" not in capsys.readouterr().out


def test_a_round_whose_workers_still_compute_does_not_wait_yet(tmp_path):
    """Worker 2 is lost at 0.45 s and back at 0.55 s, and the round ends at 0.6 s in any case."""
    run = survivors({"process": "worker-2", "at": [0.45], "repair": 0.1}, validators=1, survive={"min_workers": 4})
    _, rounds = played(run, tmp_path)
    (each,) = rounds.values()
    assert each[2]["time"] == pytest.approx(0.6)
    assert lines(tmp_path, "validator-0", "paused") == []

"""A checkpoint of a run with a quorum, a stop and a crash change nothing: who waits for whom, and the model."""

import random
import shutil

import interrupted
import numpy as np
import pytest
from executed import run_here
from installed import BACKEND

from hpcps.spec.schema import Run

MEMORIES = ("none", "residual", "ef21", "nesterov")


def drawn(chance, *, simulated):
    """Return the tables of a random run with unequal workers."""
    workers, validators = chance.randint(3, 5), chance.randint(0, 2)
    # Workers take between one and ten times as long; equal seconds and multiples of others make answers coincide.
    seconds = [chance.choice((0.1, 0.2, 0.3, 0.35, chance.uniform(0.1, 1.0))) for _ in range(workers)]
    if simulated:
        seconds = [round(0.1 + 0.21 * k + 0.017 * chance.random(), 4) for k in range(workers)]
        chance.shuffle(seconds)
    train = {
        "quorum": chance.choice((0.3, 0.5, 0.7)), "late": chance.choice(("drop", "next")),
        "abandon": chance.random() < 0.4, "abandoned": chance.choice(("residual", "lost")),
        "grace": chance.choice((0.0, 0.0, 0.15)), "epochs": 5, "batch_size": 8, "local_steps": chance.choice((1, 2)),
        "optimizer": {"lr": 0.05},
    }  # fmt: skip
    if not train["abandon"]:
        del train["abandoned"]
    communication = {"participation": chance.choice((1.0, 0.8)), "skip_rate": chance.choice((0.0, 0.3))}
    if chance.random() < 0.6:
        kind, memory = chance.choice(("topk", "randomk", "int8", "onebit")), chance.choice(MEMORIES)
        communication["compression"] = {"kind": kind, "memory": memory}
    return {
        "name": "quorum",
        "topology": {"servers": chance.choice((1, 2)), "validators": validators, "workers": workers},
        "transport": {"kind": "inproc", "partition": chance.choice(("auto", 4096))},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 120, "test_limit": 20},
        "train": train,
        "communication": communication,
        "heterogeneity": {"classes": [{"name": f"w{k}", "workers": [k], "seconds": s} for k, s in enumerate(seconds)]},
        **({"simulation": {"kind": "modelled"}} if simulated else {}),
    }


def closed(folder, combiner):
    """Return what became of the updates of each round, without the rounds that a later attempt repeated."""
    told = {}
    for line in interrupted.records(folder, combiner):
        if line["event"] == "round":
            told[line["round"]] = [line[key] for key in ("arrived", "participants", "late", "dropped", "abandoned")]
    return [told[round] for round in sorted(told)]


@pytest.mark.sample(1, 4)
@pytest.mark.thorough
@pytest.mark.parametrize("simulated", [False, True], ids=["one process", "virtual time"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 60))])
def test_checkpoints_stops_and_crashes_change_nothing(seed, simulated, tmp_path):
    chance = random.Random(seed)
    expected: list = []
    while not any(late or dropped or abandoned for _, _, late, dropped, abandoned in expected):
        tables = drawn(chance, simulated=simulated)
        combiner = "validator-0" if tables["topology"]["validators"] else "server-0"
        plain = Run.model_validate(tables | {"checkpoint": {"every": 0}})
        if plain.has_quorum:
            shutil.rmtree(tmp_path / "whole", ignore_errors=True)
            whole = run_here(plain, tmp_path / "whole")
            expected = closed(whole.path, combiner)
    run = Run.model_validate(tables | {"checkpoint": {"every": chance.choice((1, 2, 3))}})
    undisturbed = run_here(run, tmp_path / "undisturbed")
    assert closed(undisturbed.path, combiner) == expected
    np.testing.assert_array_equal(undisturbed.final_model(), whole.final_model())
    for _ in range(5):
        if chance.random() < 0.5:
            polls = iter(range(chance.randrange(1, 300)))
            done = interrupted.play(run, tmp_path / "cut", stop=lambda polls=polls: next(polls, None) is None)
        else:
            done = interrupted.play(run, tmp_path / "cut", crash_at=chance.randrange(1, 1000))
        if done:
            break
    assert done or interrupted.play(run, tmp_path / "cut")
    assert closed(tmp_path / "cut", combiner) == expected
    np.testing.assert_array_equal(interrupted.model(tmp_path / "cut"), whole.final_model())

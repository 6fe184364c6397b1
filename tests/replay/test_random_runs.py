"""Random runs over MPI and ps-lite, each interrupted once, are replayed to the same bits."""

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from os import kill

import pytest
from recorded import record
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory


def settings(chance):
    """Return the keys of a random run."""
    workers, validators = chance.randint(2, 5), chance.randint(0, 2)
    keys = {
        "seed": chance.randrange(1000),
        "topology.servers": chance.randint(1, 3),
        "topology.validators": min(validators, workers),
        "topology.workers": workers,
        "topology.evaluators": chance.randint(0, 1),
        "transport.kind": chance.choice(["mpi", "pslite"]),
        "data.limit": 320,
        "train.epochs": 12,
        "communication.participation": chance.choice([0.7, 1.0]),
        "communication.skip_rate": chance.choice([0.0, 0.3]),
        "heterogeneity.delay": {"kind": "uniform", "low": 0.0, "high": chance.choice([0.002, 0.02])},
        "checkpoint.every": 1,
    }
    attack = {"kind": chance.choice(["none", "sign_flip", "random", "ipm"])}
    keys["attack"] = attack if attack["kind"] == "none" else {**attack, "rate": 0.5}
    if attack["kind"] == "ipm" or chance.random() < 0.4:
        keys |= {
            "train.mode": "async",
            "validation.rule.kind": chance.choice(["naive_async", "zeno++" if validators else "fed_async"]),
            "asynchronous.absent": chance.choice(["reset", "accumulate"]),
            "asynchronous.updates_per_refresh": chance.choice(["queued", "share"]),
        }
    else:
        keys |= {
            "train.local_steps": 3,
            "train.quorum": 0.5,
            "train.grace": chance.choice([0.0, 0.005]),
            "train.late": chance.choice(["drop", "next"]),
            "train.abandon": chance.random() < 0.5,
            "validation.rule.kind": chance.choice(["average", "median"]),
            "communication.participation": 1.0,
        }
    return keys


def table(value):
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {table(item)}" for key, item in value.items()) + " }"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_random_runs_are_replayed(seed, tmp_path, capsys):
    """Each is interrupted once, at random after a checkpoint: a process is killed, or the run is told to stop."""
    chance = random.Random(seed)
    keys = settings(chance)
    options = [text for key, value in keys.items() for text in ("--set", f"{key}={table(value)}")]
    file, results = tmp_path / "chance.toml", tmp_path / "results"
    file.write_text(small_experiment("chance"))
    command = [sys.executable, "-m", "hpcps", "run", str(file), *options, "--results", str(results)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None and not list(results.glob("*/runs/*/checkpoints/*/manifest.json")):
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.5))
        with suppress(ProcessLookupError, IndexError):
            if chance.random() < 0.5:
                process.send_signal(signal.SIGTERM)
            else:
                (run,) = results.glob("*/runs/*")
                start = read_lines(record(RunDirectory(run), f"worker-{keys['topology.workers'] - 1}")).lines[0]
                kill(start["pid"], signal.SIGKILL)
        process.communicate(timeout=120)
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    status = main(["replay", "chance", *options, "--results", str(results)])
    said = capsys.readouterr().out
    print(keys, said)
    assert status == 0, said
    assert " are equal, and the final model (" in said

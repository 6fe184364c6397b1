"""Runs over ps-lite whose workers and validators are killed again and again are replayed to the same bits."""

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from fault_runs import Play, assert_quiet
from running_processes import parent
from small_experiment import small_experiment

from hpcps.cli.main import main

pytestmark = pytest.mark.usefixtures("starts_processes")


COMPRESSED = {"kind": "topk", "k": 0.1, "memory": "residual"}
DELAYED = {"kind": "uniform", "low": 0.0, "high": 0.1}


def settings(chance: random.Random, *, validators_too: bool) -> dict[str, Any]:
    """Return the keys of a random run."""
    workers, validators = chance.randint(2, 5), chance.choice([1, 2, 3] if validators_too else [0, 0, 1, 2])
    validators = min(validators, workers)
    keys: dict[str, Any] = {
        "seed": chance.randrange(1000),
        "topology.servers": chance.randint(1, 3),
        "topology.validators": validators,
        "topology.workers": workers,
        "transport.kind": "pslite",
        "survive.workers": True,
        "survive.validators": validators_too,
        "survive.after": 2,
        "data.limit": 32 * (workers + 1),
        "train.batch_size": 16,
        "train.optimizer.momentum": chance.choice([0.0, 0.9]),
        "validation.rule.kind": chance.choice(["average", "median", *(["zeno"] if validators else [])]),
        "communication.participation": chance.choice([0.7, 1.0]),
        "communication.skip_rate": chance.choice([0.0, 0.3]),
        "checkpoint.every": chance.choice([5, 20]),
    }
    if chance.random() < 0.5:
        direction = chance.choice(["update", "model", "both"])
        keys |= {f"communication.compression.{key}": value for key, value in COMPRESSED.items()}
        keys["communication.compression.direction"] = direction
    if chance.random() < 0.3:
        keys |= {f"heterogeneity.delay.{key}": value for key, value in DELAYED.items()}
    mode = chance.choice(["all workers", "a quorum", *([] if validators_too else ["asynchronous"])])
    if mode == "asynchronous":
        # A lost worker may have sent its update to some of several servers only.
        keys["topology.validators"] = validators or int(keys["topology.servers"] > 1)
        keys |= {"train.mode": "async", "validation.rule.kind": "naive_async"}
        keys["asynchronous.absent"] = chance.choice(["reset", "accumulate"])
    elif mode == "a quorum" and workers >= 2 * max(validators, 1):
        keys |= {"train.quorum": 0.5, "train.late": chance.choice(["next", "drop"])}
    return keys


def disturb(pid: int, there: Mapping[int, str], chance: random.Random) -> None:
    """Kill a process, or its guard; or stop both for some time, after which it may count as lost although it lives."""
    way, guard = chance.random(), parent(pid)
    if way < 0.7 or "guard.py" not in there.get(guard, ""):  # one that has just started has the starter as its parent
        os.kill(pid, signal.SIGKILL)
    elif way < 0.85:
        os.kill(guard, signal.SIGKILL)
    else:
        for each in (guard, pid):
            os.kill(each, signal.SIGSTOP)
        Timer(chance.uniform(1.0, 6.0), let_go_on, [(pid, guard)]).start()


def let_go_on(stopped: Iterable[int]) -> None:
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill(play: Play, chance: random.Random, seconds: float, pauses: tuple[float, float], roles: str) -> int:
    """Disturb processes of some roles, starting replacements too, again and again for some time; return how often."""
    killed, until = 0, time.monotonic() + seconds
    # Without validators, worker 0 evaluates: the run cannot go on without it.
    spared = set() if "validator" in roles or play.lines("validator-0") else {play.pid("worker-0")}
    found = re.compile(rf"hpcps\.execution .* ({roles}) *$")
    while play.process.poll() is None and time.monotonic() < until:
        there = play.left()
        if others := sorted({pid for pid, command in there.items() if found.search(command)} - spared):
            with suppress(ProcessLookupError, FileNotFoundError):
                disturb(chance.choice(others), there, chance)
                killed += 1
        time.sleep(chance.uniform(*pauses))
    return killed


def run_and_replay(
    start: Callable[..., Play],
    folder: Path,
    keys: dict[str, Any],
    chance: random.Random,
    seconds: float,
    pauses: tuple[float, float],
    interruption: signal.Signals | None,
) -> tuple[int, int]:
    """Run to the end, with steps of a tenth of a second, and replay; return the status of the replay, and the kills.

    The run is interrupted once: it is told to stop, or a server is killed. Processes that it may lose are killed for so
    many seconds before and after that.
    """
    roles = "worker|validator" if keys["survive.validators"] else "worker"
    file = folder / "killed.toml"
    workers = list(range(keys["topology.workers"]))
    paced = f'[[heterogeneity.classes]]\nname = "paced"\nworkers = {workers}\nseconds = 0.1'
    file.write_text(small_experiment("killed", keys, paced))
    play = start(file=file)
    play.until("worker-0", round=chance.choice([0, 1]))
    killed = kill(play, chance, seconds, pauses, roles)
    if interruption is not None and play.process.poll() is None:
        play.process.send_signal(interruption) if interruption is signal.SIGTERM else os.kill(
            play.pid("server-0"), interruption
        )
        assert play.end(120) > 0, play.text
        play = start(file=file)
        play.until("worker-0", round=1)
        killed += kill(play, chance, seconds, pauses, roles)
    assert play.end(300) == 0, play.text
    assert_quiet(play.text)
    return main(["replay", str(file), "--results", str(play.results)]), killed


@pytest.mark.soak
@pytest.mark.parametrize("validators_too", [False, True], ids=["workers", "validators too"])
@pytest.mark.parametrize("seed", range(20))
def test_random_runs(
    seed: int, validators_too: bool, start: Callable[..., Play], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    keys = {**settings(chance, validators_too=validators_too), "train.epochs": 150}
    interruption = chance.choice([None, None, signal.SIGTERM, signal.SIGKILL])
    status, killed = run_and_replay(start, tmp_path, keys, chance, 15.0, (1.0, 2.0), interruption)
    said = capsys.readouterr().out
    print(f"seed {seed}: {killed} killed, {interruption}, {keys}\n{said}")
    assert status == 0, said
    assert " are equal, and the final model (" in said
    assert killed > 2

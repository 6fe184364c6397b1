"""300 kills and stops of processes of all roles over ps-lite: each run is done, and replays to the same bits."""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer

import pytest
from executed import lines, run_here
from fault_runs import ENDLESS, Play, assert_quiet
from running_processes import parent
from survive.test_lost_validators import assert_evaluated
from test_killed_and_replayed import let_go_on
from test_lost_servers_live import seats
from test_lost_validators_live import PACED, assert_replayed
from test_lost_workers_live import ASYNCHRONOUS

from hpcps.spec.load import load_experiment
from hpcps.spec.schema import Run

pytestmark = [pytest.mark.usefixtures("starts_processes"), pytest.mark.soak]

SOME = 15
"""Processes that are disturbed in a run; 20 runs make 300."""
VALIDATED = 20
"""Runs with validators; three further ones have none, and worker 0 evaluates."""
AFTER = 5.0
"""`survive.after`: on a busy machine, processes may be silent for some seconds."""
ROLES = ("worker", "validator", "server", "standby")
MODES = ((), ("--set", "train.quorum=0.5", "--set", "train.late=next"), ASYNCHRONOUS)
"""Synchronous, with a quorum, and asynchronous."""


def settings(seed: int) -> tuple[str, ...]:
    """Return the keys of a run."""
    servers, validators, epochs = (1, 2, 2)[seed % 3], (2, 1)[seed % 2], (400, 700)[seed % 2]
    if seed >= VALIDATED:
        servers, validators = (2, 2, 1)[seed % len(MODES)], 0
    values = {
        "seed": seed, "topology.workers": 3, "topology.validators": validators, "topology.servers": servers,
        "data.limit": 160, "data.test_limit": 200, "train.epochs": epochs, "communication.skip_rate": 0.0,
        "checkpoint.rounds": (0, 50)[seed % 2], "heterogeneity.classes": PACED,
    }  # fmt: skip
    return tuple(word for key, value in values.items() for word in ("--set", f"{key}={value}"))


def surviving(seed: int) -> tuple[str, ...]:
    """Return the keys by which a run survives the loss of its processes."""
    survived = ROLES[:3] if seed < VALIDATED else ("worker", "server")
    values = {"transport.kind": "pslite", "transport.timeout": 120, "survive.after": AFTER}
    values |= {f"survive.{role}s": "true" for role in survived}
    return tuple(word for key, value in values.items() for word in ("--set", f"{key}={value}"))


class Disturbance:
    """Kills and stops processes, but none of a server while it has no standby with its state: that ends the run."""

    def __init__(self, play: Play, chance: random.Random) -> None:
        self._play, self._chance = play, chance
        self._servers = [path.stem for path in play.run.path.glob("records/server-*.jsonl")]
        self._seats = 0
        self._stopped: set[int] = set()
        self.done: list[str] = []

    def disturb(self) -> None:
        """Disturb a process of a random role: kill it or its guard, or stop both until it is replaced."""
        there = self._play.left()
        found: dict[str, list[int]] = {}
        for pid, command in there.items():
            if (named := re.search(r"hpcps\.execution .* (\w+) *$", command)) and pid not in self._stopped:
                found.setdefault(named[1], []).append(pid)
        roles = ROLES if self._has_standbys() else ROLES[:2]
        if not (some := [role for role in roles if role in found]):
            return
        role = self._chance.choice(some)
        pid = self._chance.choice(sorted(found[role]))
        with suppress(ProcessLookupError, FileNotFoundError):
            guard = parent(pid)
            if role in ROLES[2:]:
                self._seats = len(self._of_servers()) + 1
            guarded = "guard.py" in there.get(guard, "")  # one that has just started has the starter as its parent
            way = self._chance.choices(("kill", "kill the guard", "stop"), (0.6, 0.1, 0.3))[0] if guarded else "kill"
            if way == "stop":
                for each in (guard, pid):
                    os.kill(each, signal.SIGSTOP)
                self._stopped.add(pid)
                # From `AFTER` on it counts as lost; its replacement takes about a second.
                timer = Timer(AFTER + self._chance.uniform(1.0, 4.0), let_go_on, [(pid, guard)])
                timer.daemon = True
                timer.start()
            else:
                os.kill(pid if way == "kill" else guard, signal.SIGKILL)
            self.done.append(f"{way} {role}")

    def _has_standbys(self) -> bool:
        """Whether all servers have a standby again, after the loss of the last one was noticed."""
        whole = all(seats(self._play, name)[-1:] in ([], ["standby_began"]) for name in self._servers)
        return whole and len(self._of_servers()) >= self._seats

    def _of_servers(self) -> list[str]:
        return [event for name in self._servers for event in seats(self._play, name)]


def accuracies(keys: tuple[str, ...], coordinator: str, folder: Path) -> list[float]:
    """Return the accuracies of runs that lose nobody, with several seeds; more epochs do not change them."""
    found = []
    for seed in range(100, 103):
        values = [word for word in keys if word != "--set" and not word.startswith("heterogeneity")]
        experiment = load_experiment(
            "alone.toml", [*values, "transport.kind=inproc", f"seed={seed}", "train.epochs=150"], ENDLESS
        )
        run_here(experiment.points[0].run, folder / f"alone-{seed}")
        found.append(float(lines(folder / f"alone-{seed}", coordinator, "evaluation")[-1]["accuracy"]))
    return found


def assert_nothing_is_left(play: Play) -> None:
    assert play.left() == {}
    assert not [name for name in os.listdir("/dev/shm") if play.run.path.name in name]
    files = [path for path in play.run.path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert not [path for path in files if path.name.startswith(".") or path.parent.name in ("standbys", "failure")]


@pytest.mark.parametrize("seed", range(VALIDATED + len(MODES)))
def test_a_run_that_loses_processes_of_all_roles(
    seed: int, start: Callable[..., Play], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, keys = random.Random(seed), (*settings(seed), *MODES[seed % len(MODES)])
    coordinator = "validator-0" if seed < VALIDATED else "worker-0"
    play = start(*keys, *surviving(seed))
    play.until(coordinator, round=chance.choice([0, 1, 5, 50]))
    disturbance = Disturbance(play, chance)
    while len(disturbance.done) < SOME and play.process.poll() is None:
        disturbance.disturb()
        time.sleep(chance.uniform(0.3, 3.0))
    with capsys.disabled():
        print(f"\nseed {seed}: {', '.join(disturbance.done)}")
    assert play.end(400) == 0, play.text
    assert_quiet(play.text)
    assert_nothing_is_left(play)
    assert play.run.done
    assert len(disturbance.done) > SOME // 2
    events = [line["event"] for path in play.run.path.glob("records/*.jsonl") for line in play.lines(path.stem)]
    assert len([event for event in events if event in ("lost", "took_over", "standby_lost")]) >= SOME // 3
    evaluations = [line for line in play.lines(coordinator) if line["event"] == "evaluation"]
    assert_evaluated(Run.model_validate(play.run.spec["run"]), evaluations)
    assert_replayed(play, capsys)
    alone = accuracies(keys, coordinator, tmp_path)
    final = float(evaluations[-1]["accuracy"])
    assert final >= min(alone) - max(0.03, max(alone) - min(alone)), (final, alone)

"""Each process that a small run may lose is killed between every two events of the run, which goes on."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from executed import run_here
from survive import test_lost_async_validators, test_lost_validators

from hpcps.execution.simulation.sharing import EventQueue
from hpcps.records.run_directory import RunDirectory

WORKERS, VALIDATORS = 3, 2
PROCESSES = (*(f"worker-{k}" for k in range(WORKERS)), *(f"validator-{v}" for v in range(VALIDATORS)))
OF_SERVERS = ("server-0", "server-1", "standby-0", "standby-1")
COSTS = {
    "step": {"kind": "uniform", "low": 0.08, "high": 0.12},
    **{task: {"call": 0.007} for task in ("combine", "adopt", "apply")},
    "local": {"latency": 0.004},
    "messages": {"send": 0.003},
}
MODES = {
    "synchronous": (test_lost_validators, {}),
    "quorum": (test_lost_validators, {"train": {"quorum": 2}}),
    "asynchronous": (test_lost_async_validators, {}),
}


def run_of(mode, *failures, servers=False, evaluators=0):
    """Return a run of about three rounds; `servers`: whether it survives the loss of servers, too."""
    module, tables = MODES[mode]
    train = {"epochs": 1, **tables.get("train", {})}
    sizes = {"workers": WORKERS, "validators": VALIDATORS, "servers": 2, "topology": {"evaluators": evaluators}}
    survive = {"workers": True, "validators": True, "servers": servers}
    tables = {"simulation": COSTS, "data": {"limit": 48 * (WORKERS + 1)}, "train": train, "survive": survive}
    if servers:
        tables["checkpoint"] = {"every": 0, "rounds": 2}
    return module.run_of(*failures, **sizes, **tables)


def moments_of(mode, folder, monkeypatch, *, servers=False):
    """Return a moment between every two events of the undisturbed run."""
    found, step = [0.0], EventQueue.step

    def noting(clock):
        there = step(clock)
        found.append(clock())
        return there

    with monkeypatch.context() as patch:
        patch.setattr(EventQueue, "step", noting)
        run_here(run_of(mode, servers=servers), folder)
    return [(before + after) / 2 for before, after in pairwise(sorted(set(found)))]


@pytest.mark.parametrize("process", [*PROCESSES, *OF_SERVERS])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 40])
@pytest.mark.sample(1, 5)
def test_a_process_is_killed_at_every_moment(mode, process, every, tmp_path, monkeypatch):
    """Others learn of it at once or late, and its replacement begins at once or late.

    The model of a synchronous run that loses a server is the same.
    """
    servers, whole = process in OF_SERVERS, tmp_path / "undisturbed"
    moments = moments_of(mode, whole, monkeypatch, servers=servers)
    assert len(moments) > 100
    first = ((*PROCESSES, *OF_SERVERS).index(process) * 7) % every
    for moment in moments[first::every]:
        for noticed, repair in ((0.0, 0.0), (0.05, 0.3)):
            failure = {"process": process, "at": [moment], "noticed": noticed, "repair": repair}
            run, folder = run_of(mode, failure, servers=servers), tmp_path / "killed"
            try:
                run_here(run, folder)
                assert RunDirectory(folder).done
                MODES[mode][0].assert_consistent(run, folder)
                if servers and mode == "synchronous":
                    models = [[*map(Path.read_bytes, sorted((each / "final").iterdir()))] for each in (whole, folder)]
                    assert models[0] == models[1]
            except Exception as error:
                error.add_note(f"{mode}: {failure}")
                raise
            shutil.rmtree(folder)

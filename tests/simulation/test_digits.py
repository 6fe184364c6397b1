"""Real training in virtual time: the model is what it is without, and costs are measured from a real run over MPI."""

from itertools import pairwise

import numpy as np
import pytest
from executed import lines, run_here

from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run

STEPS = {"kind": "lognormal", "median": 0.01, "sigma": 1.0}
MACHINE = {
    "kind": "modelled",
    "step": STEPS,
    "evaluate": 0.05,
    "cores": 2,
    "hosts": 2,
    "waiting": {"spin": 1e-3, "poll": 1e-5, "interval": 1e-3},
    "remote": {"latency": 1e-3, "bandwidth": 1e7},
}


def played(folder, simulation=None, **changes):
    tables = {
        "name": "simulated",
        "topology": {"servers": 2, "validators": 2, "workers": 4},
        "transport": {"kind": "inproc"},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 200, "test_limit": 50},
        "train": {"epochs": 2, "batch_size": 8, "local_steps": 2, "optimizer": {"lr": 0.05}},
        "communication": {"participation": 0.7, "skip_rate": 0.3},
        "validation": {"rule": {"kind": "zeno"}},
        "attack": {"kind": "random", "rate": 0.3},
    }
    run = Run.model_validate({**tables, **changes, **({"simulation": simulation} if simulation else {})})
    return run_here(run, folder)


def told(directory):
    """What a record says of the training, without times: of each event, as an evaluation ends beside the rounds."""
    keys = ("event", "round", "loss", "accuracy", "participants", "accepted_pairs", "bytes_sent")
    said = [
        {key: line.get(key) for key in keys}
        for line in lines(directory.path, "validator-0")
        if line["event"] != "start"
    ]
    return sorted(said, key=lambda line: line["event"])


def test_time_changes_nothing_else_of_a_synchronous_run(tmp_path):
    plain, simulated = played(tmp_path / "plain"), played(tmp_path / "simulated", MACHINE)
    np.testing.assert_array_equal(plain.final_model(), simulated.final_model())
    assert told(plain) == told(simulated)
    assert (plain.done, simulated.done) == (True, True)
    starts = [lines(directory.path, "validator-0")[0] for directory in (plain, simulated)]
    assert [start.get("clock") for start in starts] == [None, "virtual"]
    rounds = [line["time"] for line in lines(simulated.path, "validator-0", "round")]
    # four lognormal workers and two validators on two cores each: every round has two steps of 10 ms at the median
    assert all(later - earlier > 5e-3 for earlier, later in pairwise(rounds))


def test_a_failure_in_virtual_time_is_reported_like_any_other(tmp_path, monkeypatch):
    from hpcps.errors import RunError
    from hpcps.roles.update.packer import Packer

    def broken(*_):
        raise ValueError("no packing today")

    monkeypatch.setattr(Packer, "pack", broken)
    with pytest.raises(RunError, match=r"worker-\d on \S+ failed in round 0 \(pack\): ValueError: no packing today"):
        played(tmp_path, MACHINE)
    assert {str(failure).split()[0] for failure in RunDirectory(tmp_path).failures} <= {f"worker-{k}" for k in range(4)}

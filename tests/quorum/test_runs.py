"""Whole runs with a quorum: the same over every way of execution, resumed, attacked, and compared with waiting."""

import json
import subprocess
import sys

import interrupted
import numpy as np
import pandas as pd
import pytest
from executed import lines, run_here
from installed import BACKEND
from quorum.test_orders import SECONDS, play, spec
from toy_trainers import Toy

from hpcps.cli.plot import handle as plot
from hpcps.figures.participation import settings
from hpcps.protocol.messages import CombinedUpdate, ModelPartition, Update
from hpcps.records.participation import least_present, participation
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run


def tables_of(validators=1, servers=1, **tables):
    """Return the tables of a run on the digits with unequal workers."""
    seconds = {0: 0.41, 1: 0.51, 2: 0.31, 3: 0.61}  # all answers are 0.2 s apart
    run = {
        "name": "quorum",
        "topology": {"servers": servers, "validators": validators, "workers": 4},
        "transport": {"kind": "inproc"},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 120, "test_limit": 40},
        "train": {"epochs": 3, "batch_size": 8, "local_steps": 2, "quorum": 3, "optimizer": {"lr": 0.05}},
        "heterogeneity": {"classes": [{"name": f"w{k}", "workers": [k], "seconds": s} for k, s in seconds.items()]},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return run


def digits(*topology, **tables):
    return Run.model_validate(tables_of(*topology, **tables))


def rounds(folder, combiner="validator-0"):
    fields = ("arrived", "participants", "absent", "late", "dropped", "abandoned")
    return [{key: line.get(key) for key in fields} for line in lines(folder, combiner, "round")]


@pytest.mark.parametrize(("validators", "servers"), [(0, 2), (1, 1), (2, 2)])
def test_a_quorum_of_all_is_todays_round(validators, servers, monkeypatch):
    """The same messages, with the same headers but for the id of the run, and the same bits."""
    sent = []
    from quorum import test_orders

    class Noted(test_orders.Post):
        def send(self, to, envelope):
            sent.append((self.owner, to, envelope.header, envelope.payload_bytes))
            super().send(to, envelope)

    monkeypatch.setattr(test_orders, "Post", Noted)
    found = []
    for keys in ({}, {"quorum": 4, "late": "next", "grace": 1.0}):
        found.append((play(spec(SECONDS, validators, servers, 64, **keys))[1].tobytes(), list(sent)))
        sent.clear()
    assert found[0] == found[1]


@pytest.mark.parametrize("validators", [0, 2])
def test_a_quorum_that_nobody_misses_changes_no_bit(tmp_path, validators):
    every = run_here(digits(validators, 2, train={"quorum": 4}), tmp_path / "every")
    graced = run_here(digits(validators, 2, train={"quorum": 0.25, "grace": 60.0}), tmp_path / "graced")
    np.testing.assert_array_equal(every.final_model(), graced.final_model())


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("late", [pytest.param("drop", marks=pytest.mark.soak), "next"])
def test_in_process_in_virtual_time_and_over_mpi(tmp_path, late):
    """Imposed seconds fix the order, whatever executes the roles; checkpoints do not change it."""
    seconds = (0.31, 0.51, 0.91)  # all answers are 0.2 s apart
    classes = [{"name": f"w{k}", "workers": [k], "seconds": each} for k, each in enumerate(seconds)]
    tables = tables_of(
        topology={"workers": 3}, heterogeneity={"classes": classes},
        train={"quorum": 2, "late": late, "abandon": late == "drop", "epochs": 2}, checkpoint={"every": 1},
    )  # fmt: skip
    ways = {"here": {"checkpoint": {"every": 0}}, "virtual": {"simulation": {"kind": "modelled"}}}
    runs = {name: Run.model_validate(tables | more) for name, more in ways.items()}
    folders = [run_here(run, tmp_path / name).path for name, run in runs.items()]
    file = tmp_path / "quorum.toml"
    file.write_text("\n".join(toml(tables | {"transport": {"kind": "mpi"}})))
    command = [sys.executable, "-m", "hpcps", "run", str(file), "--results", str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    folders += (tmp_path / "results/quorum/runs").glob("*")
    assert len(folders) == 3
    assert len(set(map(str, rounds(folders[0])))) > 1
    assert any(line["late"] or line["dropped"] or line["abandoned"] for line in rounds(folders[0]))
    for other in folders[1:]:
        assert rounds(other) == rounds(folders[0])
        np.testing.assert_array_equal(RunDirectory(other).final_model(), RunDirectory(folders[0]).final_model())


def toml(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from toml(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables = ", ".join("{" + ", ".join(toml(each)) + "}" for each in value)
            yield f"{prefix}{key} = [{tables}]"
        else:
            yield f"{prefix}{key} = {json.dumps(value)}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("late", ["drop", "next"])
@pytest.mark.parametrize("validators", [0, 1])
def test_a_resumed_run_is_the_same(tmp_path, validators, late):
    run = digits(validators, 2, train={"late": late, "epochs": 5}, checkpoint={"every": 1})
    whole = run_here(run, tmp_path / "whole")
    assert interrupted.play(run, tmp_path / "crashed", crash_at=700) is False
    assert list((tmp_path / "crashed").glob("checkpoints/*")), "the crash came before a checkpoint"
    assert interrupted.play(run, tmp_path / "crashed")
    np.testing.assert_array_equal(interrupted.model(tmp_path / "crashed"), whole.final_model())


@pytest.mark.sample(2)
@pytest.mark.parametrize("attack", ["silent", "late", "sign_flip"])
@pytest.mark.parametrize("validators", [0, 2])
def test_absent_and_attacking_workers_answer(tmp_path, validators, attack):
    attack = {"kind": attack, "rate": 0.3} | ({"seconds": 2.0} if attack == "late" else {})
    sending = {"participation": 0.6, "skip_rate": 0.3}
    run = digits(validators, 2, train={"late": "next", "quorum": 2}, attack=attack, communication=sending)
    found = rounds(run_here(run, tmp_path).path, "validator-0" if validators else "server-0")
    assert all(sorted(line["participants"] + line["absent"]) == sorted(line["arrived"]) for line in found)
    assert any(line["absent"] for line in found)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 40), (1, 3)])
def test_runs_of_one_round_end(tmp_path, epochs, steps):
    """PyTorch-parameter-server hangs at max-steps = 1, and when epochs end first."""
    run = digits(train={"epochs": epochs, "local_steps": steps, "late": "next"})
    (found,) = rounds(run_here(run, tmp_path).path)
    assert sorted(found["arrived"]) == [0, 1, 2, 3], "the last round waits for everyone"


def test_only_float32_travels(monkeypatch):
    """ps_pytorch sends float32 as double."""
    from quorum import test_orders

    sizes = set()

    class Noted(test_orders.Post):
        def send(self, to, envelope):
            if isinstance(envelope.message, (Update, ModelPartition, CombinedUpdate)):
                assert envelope.payload.dtype == np.float32
                sizes.add(envelope.payload_bytes)
            super().send(to, envelope)

    monkeypatch.setattr(test_orders, "Post", Noted)
    play(spec(SECONDS, 1, 1, quorum=2))
    assert sizes == {4 * test_orders.LAYOUT.size}


@pytest.mark.parametrize(("abandoned", "keeps"), [("residual", True), ("lost", False)])
def test_what_an_abandoned_round_leaves(abandoned, keeps):
    """The worker trains on from the model plus what it had computed, or from the model."""
    run = spec((1.0, 1.1, 1.2, 2.0), 1, 1, quorum=2, abandon=True, abandoned=abandoned)
    begun = []
    copy = Toy.copy_from
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "copy_from", lambda self, values: (begun.append((self, values[0])), copy(self, values))[1])
        records, _, _ = play(run)
    slow = [line for line in records["worker-3"] if line["event"] == "round"]
    assert slow[0]["abandoned"] is not None
    bases = [value for trainer, value in begun if getattr(trainer, "index", None) == 3]
    fast = {value for trainer, value in begun if getattr(trainer, "index", None) == 0}
    assert (bases[1] not in fast) is keeps


def test_a_slow_worker_no_longer_decides_the_pace(tmp_path):
    """One of 8 workers is ten times slower: in virtual time, K = 7 has five times the rounds per second of K = 8."""
    paces, directories = {}, {}
    for quorum in (7, 8):
        classes = [{"name": "slow", "workers": [5], "seconds": 10.0}]
        classes.append({"name": "fast", "workers": [0, 1, 2, 3, 4, 6, 7], "seconds": 1.0})
        run = digits(
            topology={"workers": 8}, train={"quorum": quorum, "local_steps": 1, "epochs": 20, "late": "next"},
            heterogeneity={"classes": classes}, simulation={"kind": "modelled"},
        )  # fmt: skip
        directories[quorum] = run_here(run, tmp_path / str(quorum))
        closed = lines(directories[quorum].path, "server-0", "round")
        paces[quorum] = len(closed) / closed[-1]["time"]
    assert paces[7] >= 5 * paces[8], paces
    assert participation(directories[8]) is None
    counts = participation(directories[7]).set_index("worker")
    assert counts.loc[5, "late"] >= 1
    assert counts.loc[5, "missed"] > 0.8 * counts.loc[5, "rounds"]
    assert counts.loc[0, "in_time"] + counts.loc[0, "late"] == counts.loc[0, "rounds"] - counts.loc[0, "missed"]


def test_a_line_names_a_worker_only_if_some_updates_were_not_in_time():
    always = {"rounds": 4, "in_time": 4, "late": 0, "absent": 0, "dropped": 0, "abandoned": 0, "missed": 0}
    counts = pd.DataFrame([{"worker": 0, **always}, {"worker": 1, **always}])
    assert least_present(counts) == "updates of all workers were in all rounds; updates: none late"
    counts.loc[1, ["in_time", "absent"]] = 1, 3
    said = "updates of workers were in 62 % of the rounds, of worker-1 in 25 %; 3 answers were absences"
    assert least_present(counts) == f"{said}; updates: none late"


def test_participation_is_drawn(tmp_path, capsys):
    from argparse import Namespace

    classes = [{"name": "slow", "workers": [3], "seconds": 2.0}, {"name": "fast", "workers": 3, "seconds": 0.4}]
    run = digits(train={"abandon": True}, heterogeneity={"classes": classes})
    directory = run_here(run, tmp_path / "runs" / "one")
    args = {"compare": [], "style": None, "overrides": [], "output": tmp_path / "figures", "results": tmp_path}
    assert plot(Namespace(what=["participation", str(directory.path)], **args)) == 0
    assert (tmp_path / "figures/participation-one.pdf").exists()
    assert settings(directory.spec["run"]) == "quorum 3 of 4 workers · late drop · abandoned residual"
    printed = capsys.readouterr().out
    (slow,) = participation(directory).query("worker == 3").itertuples()
    assert (slow.late, slow.dropped, slow.abandoned, slow.staleness) == (0, 0, 2, 1.5)
    assert "| worker | rounds | in time | late | absent | dropped | abandoned | missed | mean lateness |" in printed

"""A synchronous run that was interrupted and goes on ends exactly as one that was not."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from interrupted import model, play, play_through, records, small

from hpcps.attacks import Omniscient
from hpcps.errors import RunError
from hpcps.records.checkpoint import Checkpoints
from hpcps.records.collect import collect
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.update.packer import Packer


class Drifting(Omniscient):
    """Sends the mean of all honest updates so far, negated, and noise."""

    kind: Literal["drifting"] = "drifting"

    def craft(self, honest, own, context):
        """See `Omniscient.craft`."""
        context.state["sum"] = context.state.setdefault("sum", np.zeros(honest.shape[1])) + honest.mean(axis=0)
        return 0.01 * context.random.standard_normal(own.shape) - context.state["sum"]


ZENO = {"rule": {"kind": "zeno", "rho": -0.01}}
NOISE = {"kind": "random", "scale": 0.5, "rate": 0.4}
RING = {"topology": {"servers": 0, "validators": 0, "workers": 3}, "train": {"exchange": "ring"}}
ALLREDUCE = {**RING, "train": {"exchange": "allreduce"}}
CASES = {
    "average": small(),
    "two-validators": small(topology={"servers": 2, "validators": 2, "workers": 4}, validation=ZENO, attack=NOISE),
    "no-validator": small(topology={"servers": 3, "validators": 0}, seed=5),
    "partitions": small(topology={"servers": 2, "validators": 0, "workers": 3}, transport={"partition": 2048}),
    "partitions-two-validators": small(
        topology={"servers": 2, "validators": 2, "workers": 4}, transport={"partition": 2048}, attack=NOISE,
    ),
    "artifact": small(fidelity="artifact", validation={**ZENO, "evaluate": "validator_model"}, train={
        "first_step": "overwritten", "epochs": 6, "batch_size": 16, "local_steps": 3,
    }),
    "adam": small(train={"epochs": 6, "batch_size": 16, "local_steps": 4, "optimizer": {"name": "adam", "lr": 0.01}}),
    "sgd-decay": small(train={
        "epochs": 6, "batch_size": 16, "local_steps": 7, "optimizer": {"name": "sgd", "momentum": 0.0, "lr": 0.1},
        "lr_decay": {"epochs": [2, 4]}, "warmup": {"epochs": 3},
    }),
    "alone": small(
        topology={"servers": 0, "validators": 1, "workers": 0},
        data={"name": "digits", "limit": 480, "test_limit": 60, "shards": 3},
        train={"epochs": 30, "batch_size": 16, "local_steps": 3, "passes_per_epoch": 2},
    ),
    "adversary": small(topology={"servers": 2, "validators": 2, "workers": 4}).model_copy(
        update={"attack": Drifting(rate=0.25)}
    ),
    "ring": small(**RING),
    "ring-pieces": small(**RING, transport={"partition": 2048}, attack=NOISE),
    "allreduce": small(**ALLREDUCE),
    "dropout": small(model={"dropout": 0.3}),
    "delays": small(heterogeneity={"delay": {"kind": "lognormal", "median": 2.0}}),
}  # fmt: skip


@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("case", CASES)
def test_ends_as_if_nothing_had_happened(case, tmp_path):
    run = CASES[case]
    assert play(run, tmp_path / "whole")
    chance = random.Random(case)
    most = 120 if run.transport.partition == "auto" else 500 if run.collective else 1500
    crashes = [chance.randrange(1, 500 if run.has_adversary else most) for _ in range(12 if run.has_adversary else 6)]
    play_through(run, tmp_path / "cut", crashes)
    coordinator = "server-0" if run.topology.servers else "worker-0" if run.topology.workers else "validator-0"
    assert sum(line["event"] == "start" for line in records(tmp_path / "cut", coordinator)) > 3
    assert np.array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))
    assert np.isfinite(model(tmp_path / "cut")).all()
    assert not (tmp_path / "cut/checkpoints").exists(), "a run that is done needs none"
    if run.has_adversary:
        rounds = [line for line in records(tmp_path / "cut", "adversary-0") if line["event"] == "round"]
        assert sum(bool(line["replaced"]) for line in rounds) > len(rounds) / 4
        starts = [line for line in records(tmp_path / "cut", "adversary-0") if line["event"] == "start"]
        assert sum("continues" in line for line in starts) > 1


@pytest.mark.thorough
def test_batchnorm_goes_on_too(tmp_path):
    run = small(
        topology={"workers": 2},
        model={"name": "cifar_resnet8_v1"},
        data={"name": "synthetic", "limit": 48, "test_limit": 10},
        train={"epochs": 2, "batch_size": 8, "local_steps": 1},
        validation={**ZENO, "batchnorm": "averaged"},
    )
    assert play(run, tmp_path / "whole")
    play_through(run, tmp_path / "cut", [90])
    assert "continues" in [line for line in records(tmp_path / "cut", "server-0") if line["event"] == "start"][-1]
    assert np.array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))
    ends = [records(tmp_path / name, "validator-0") for name in ("cut", "whole")]
    cut, whole = ([line["loss"] for line in lines if line["event"] == "evaluation"][-1] for lines in ends)
    assert cut == whole, "only an evaluation uses the running statistics"


@pytest.mark.thorough
def test_its_records_tell_one_story(tmp_path):
    run = CASES["two-validators"]
    for name, crashes in {"whole": [], "cut": [150, 260, 90, 300]}.items():
        results = tmp_path / name
        play_through(run, results / "runs/small", crashes)
    tables = {name: collect(tmp_path / name).table for name in ("whole", "cut")}
    told = tables["whole"]["event"].isin(["round", "evaluation", "rejected"])
    assert told.sum() > 100
    same = ["event", "role", "index", "round", "step", "epoch", "loss", "accuracy", "participants", "accepted_pairs"]
    same += ["blocks_attacked", "acceptance_rate_cumulative"]
    whole, cut = (t.loc[t["event"].isin(["round", "evaluation"]), same].reset_index(drop=True) for t in tables.values())
    assert whole.equals(cut)
    sent = [t.loc[t["event"] == "evaluation", "bytes_sent_total"].to_numpy() for t in tables.values()]
    assert sent[0] == pytest.approx(sent[1], rel=0.02), "checkpoints cost a few bytes"
    walls = tables["cut"].loc[tables["cut"]["event"] == "evaluation", "wall"]
    assert walls.is_monotonic_increasing, "time goes on from the checkpoint"


SERVERS = {"topology": {"servers": 2, "validators": 2, "workers": 4}}


@pytest.mark.sample(1)
@pytest.mark.parametrize("tables", [SERVERS, RING, ALLREDUCE], ids=["servers", "ring", "allreduce"])
def test_stops_at_a_checkpoint_when_asked_to(tables, tmp_path):
    run = small(checkpoint={"every": 0}, **tables)
    assert play(run, tmp_path / "whole")
    asked = iter([False] * 30 + [True] * 10_000)
    assert not play(run, tmp_path / "cut", stop=lambda: next(asked))
    directory = RunDirectory(tmp_path / "cut")
    (moment,) = directory.checkpoints.positions()
    ends = {process.stem: records(tmp_path / "cut", process.stem)[-1] for process in directory.records}
    assert {end["reason"] for end in ends.values()} == {"suspended"}
    assert all(line["round"] < moment for line in records(tmp_path / "cut", "worker-0") if line["event"] == "round")
    assert play(run, tmp_path / "cut")
    assert np.array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))


def test_keeps_as_many_as_it_is_told(tmp_path):
    run = small(checkpoint={"every": 1, "keep": 3})
    assert not play(run, tmp_path, crash_at=420)
    checkpoints = RunDirectory(tmp_path).checkpoints
    assert len(checkpoints.positions()) == 3
    assert len(list(checkpoints.path.iterdir())) <= 4, "one more may be in the making"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def foreign(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "0123456789"}))


DAMAGE = {
    "a flipped bit": ("worker-1.npz", flip, "worker-1.npz is damaged"),
    "a part is gone": ("validator-0.npz", lambda path: path.unlink(), "validator-0.npz cannot be read"),
    "a part is cut": (
        "server-0.npz",
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        "server-0.npz is damaged",
    ),
    "another run's": ("manifest.json", foreign, "it belongs to run 0123456789"),
    "a torn manifest": ("manifest.json", lambda path: path.write_text('{"format": 1, "par'), "its manifest is damaged"),
}


@pytest.fixture(scope="module")
def average(tmp_path_factory):
    """Return the model of the run `average` that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    assert play(CASES["average"], folder)
    return model(folder)


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_refused_and_the_one_before_it_used(damage, average, tmp_path, capfd):
    run = CASES["average"]
    assert not play(run, tmp_path / "cut", crash_at=300)
    newest, before = RunDirectory(tmp_path / "cut").checkpoints.positions()
    name, harm, why = DAMAGE[damage]
    harm(tmp_path / f"cut/checkpoints/{newest:09}" / name)
    assert play(run, tmp_path / "cut")
    said = capfd.readouterr().err
    assert f"{newest:09} is rejected: {why}" in said
    assert "Traceback" not in said
    start = [line for line in records(tmp_path / "cut", "worker-0") if line["event"] == "start"][-1]
    lines = records(tmp_path / "cut", "worker-0")[: start["continues"]]
    assert [line["round"] for line in lines if line["event"] == "round"][-1] == before - 1
    assert np.array_equal(model(tmp_path / "cut"), average)


def remove(path, _):
    path.unlink()


def lose(path, counted):
    """Leave what was written before the older of the two checkpoints, and half of a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: counted[1]]) + lines[counted[1]][:20])


def edit(path, _):
    path.write_text(path.read_text().replace('"event": "start"', '"event": "begun"'))


LOSSES = {
    "removed": (remove, "cannot be read: No such file or directory", 2),
    "shortened": (lose, "lines, and the checkpoint counts", 1),
    "changed": (edit, "is damaged: the checksum of its first", 2),
}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Return a run with an evaluator, and the folder of its results if nothing interrupts it."""
    run = small(topology={"workers": 3, "evaluators": 1})
    results = tmp_path_factory.mktemp("evaluated")
    assert play(run, results / "runs/small")
    return run, results


@pytest.mark.sample(1, 5)
@pytest.mark.parametrize("process", ["server-0", "validator-0", "worker-1", "evaluator-0"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_checkpoint_counts_the_lines_of_each_record(loss, process, evaluated, tmp_path, capfd):
    """A run whose records have lost lines repeats what it has lost, so that it lacks no epoch at its end."""
    run, whole = evaluated
    folder = tmp_path / "cut/runs/small"
    assert not play(run, folder, crash_at=420)
    checkpoints = RunDirectory(folder).checkpoints
    positions = checkpoints.positions()
    if process == "evaluator-0":
        manifests = [json.loads((checkpoints.path / f"{each:09}/manifest.json").read_text()) for each in positions]
        counted = [manifest["records"][process]["lines"] for manifest in manifests]
    else:
        counted = [checkpoints.read(each, process).record.lines for each in positions]
    assert counted[0] > counted[1] > 0
    harm, why, rejected = LOSSES[loss]
    harm(folder / f"records/{process}.jsonl", counted)
    assert play(run, folder)
    said = [line for line in capfd.readouterr().err.splitlines() if "is rejected" in line]
    assert len(said) == rejected
    assert all(f"is rejected: records/{process}.jsonl " in line and why in line for line in said), said
    assert np.array_equal(model(folder), model(whole / "runs/small"))
    assert not RunDirectory(folder).damage(contents=True)
    cut, expected = (collect(results).table for results in (tmp_path / "cut", whole))
    for event, names in {"evaluation": ["epoch", "accuracy"], "round": ["role", "index", "round", "loss"]}.items():
        told, lines = (t.loc[t["event"] == event, names].reset_index(drop=True) for t in (cut, expected))
        assert told.equals(lines)
    assert cut.loc[cut["event"] == "evaluation", "epoch"].tolist() == list(range(1, 7))


@pytest.mark.parametrize("memory", [False, True], ids=["on-disk", "copied-from-memory"])
def test_records_are_on_disk_before_what_counts_them(memory, tmp_path, monkeypatch):
    """A power failure can otherwise leave a checkpoint, or DONE, that counts lines which are lost."""
    on_disk, parts, sealed, real, write = {}, {}, set(), os.fsync, Checkpoints.write

    def fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)
        on_disk[path] = path.read_bytes().count(b"\n") if path.suffix == ".jsonl" else 0
        if path.name.startswith(".manifest.json") and path.is_relative_to(tmp_path):
            assert {tmp_path / "records", path.parent} <= on_disk.keys()
            for process, lines in parts[path.parent.name].items():
                assert 0 < lines <= on_disk[tmp_path / f"records/{process}.jsonl"]
                assert any(file.name.startswith(f".{process}.npz") and file.parent == path.parent for file in on_disk)
            sealed.add(path.parent)

    def written(self, position, process, part, *rest):
        parts.setdefault(f"{position:09}", {})[process] = part.record.lines
        return write(self, position, process, part, *rest)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Checkpoints, "write", written)
    checkpoints = RunDirectory(tmp_path).checkpoints
    if memory:
        checkpoints.use_memory(1e9)
    try:
        assert play(CASES["average"], tmp_path)
        assert {len(each) for each in parts.values()} == {5}
        assert {folder.name for folder in sealed} == parts.keys()
        assert {checkpoints.path, *sealed} <= on_disk.keys()
    finally:
        checkpoints.leave_memory()
    for record in RunDirectory(tmp_path).records:
        assert on_disk[record] == record.read_bytes().count(b"\n"), "DONE has its checksum"


def test_without_any_that_is_sound_it_begins_anew(average, tmp_path, capfd):
    run = CASES["average"]
    assert not play(run, tmp_path / "cut", crash_at=300)
    for manifest in (tmp_path / "cut/checkpoints").glob("*/manifest.json"):
        foreign(manifest)
    assert play(run, tmp_path / "cut")
    assert capfd.readouterr().err.count("is rejected") == 2
    assert "continues" not in [line for line in records(tmp_path / "cut", "worker-0") if line["event"] == "start"][-1]
    assert np.array_equal(model(tmp_path / "cut"), average)


def test_what_lies_beside_the_checkpoints_does_no_harm(average, tmp_path, capfd):
    run = CASES["average"]
    assert not play(run, tmp_path / "cut", crash_at=300)
    newest, _ = RunDirectory(tmp_path / "cut").checkpoints.positions()
    folder = tmp_path / f"cut/checkpoints/{newest:09}"
    shutil.copytree(folder, folder.with_name(f"{folder.name}.bak"))
    manifest = json.loads((folder / "manifest.json").read_text())
    for parts in (None, ["worker-0"], 3):
        (folder / "manifest.json").write_text(json.dumps(manifest | {"parts": parts}))
        assert not play(run, tmp_path / "cut", crash_at=3)
        assert "is rejected: its manifest is damaged" in capfd.readouterr().err
        folder.mkdir(exist_ok=True)
    assert play(run, tmp_path / "cut")
    assert np.array_equal(model(tmp_path / "cut"), average)


def test_one_of_another_layout_is_refused_in_words(tmp_path, monkeypatch):
    run = CASES["average"]
    assert not play(run, tmp_path, crash_at=300)
    monkeypatch.setattr(Packer, "restore", lambda self, state: state.arrays["delays"])
    with pytest.raises(
        RunError, match=r"checkpoint of worker-0 is complete, but not in the format of this version.*--no-resume"
    ):
        play(run, tmp_path)

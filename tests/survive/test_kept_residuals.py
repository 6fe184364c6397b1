"""With survive.residual = "checkpoint" a replacement begins with the residual and momentum of the last checkpoint."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from executed import lines, run_here
from survive.test_lost_workers import survivors

from hpcps.execution.resume import take_over_residual
from hpcps.execution.role_factory import make_role
from hpcps.protocol.messages import Peer
from hpcps.records.checkpoint import CheckpointPart, Checkpoints
from hpcps.records.files import Prefix
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.training_role import TrainingRole
from hpcps.roles.worker import Worker
from hpcps.spec.checks import contradictions
from hpcps.spec.identity import run_id
from hpcps.spec.problems import dotted

MEMORY = {
    "train": {"optimizer": {"lr": 0.05, "momentum": 0.9}},
    "communication": {"compression": {"kind": "topk", "k": 0.1, "memory": "nesterov"}},
}
ASYNCHRONOUS = {"validation": {"rule": {"kind": "naive_async"}}}
WORKER_2 = Peer("worker", 2)


def keeping(*failures, residual="checkpoint", mode="sync", quorum=None, **tables):
    """Return a run with residuals and momenta that writes a checkpoint every two rounds, or eight entries."""
    train = {**MEMORY["train"], "mode": mode, **({"quorum": quorum} if quorum else {}), **tables.pop("train", {})}
    tables = {**MEMORY, **(ASYNCHRONOUS if mode == "async" else {}), **tables, "train": train}
    checkpoint = {"every": 0, "rounds": 2 if mode == "sync" else 8, "keep": 1, **tables.pop("checkpoint", {})}
    return survivors(*failures, survive={"residual": residual}, checkpoint=checkpoint, **tables)


@dataclass(frozen=True)
class Memory:
    """What a worker keeps: its residual and momenta by name, what its optimizer counts, and its local steps."""

    vectors: dict[str, bytes]
    optimizer: dict[str, object]
    steps: int

    @classmethod
    def of(cls, state):
        """Return the memory in a state, whose arrays change later."""
        names = ("packer.residual", "packer.momentum", *(name for name in state.arrays if ".optimizer." in name))
        trainer = state.facts["trainer"]
        return cls({name: state.arrays[name].tobytes() for name in names}, trainer["optimizer"], trainer["steps"])

    @property
    def zero(self):
        """Whether all vectors are zero."""
        return not any(any(values) for values in self.vectors.values())

    def equals(self, other):
        """Return whether residual and momenta are the same."""
        return (self.vectors, self.optimizer) == (other.vectors, other.optimizer)


@pytest.fixture
def kept(monkeypatch):
    """What worker 2 has at each checkpoint, and with what each of its replacements begins."""
    written, began = [], []
    state, take_place = TrainingRole.state, Worker.go_to

    def noted_state(self, evaluated):
        found = state(self, evaluated)
        if self.peer == WORKER_2:
            written.append(Memory.of(found))
        return found

    def noted_beginning(self, *place):
        take_place(self, *place)
        if self.peer == WORKER_2:
            began.append(Memory.of(state(self, 0)))

    monkeypatch.setattr(TrainingRole, "state", noted_state)
    monkeypatch.setattr(Worker, "go_to", noted_beginning)
    return written, began


def incarnations(folder):
    """Return the `start` lines of the replacements of worker 2."""
    return [line for line in lines(folder, "worker-2", "start") if line.get("incarnation")]


MODES = pytest.mark.parametrize(
    "tables",
    [
        {},
        {"servers": 2, "validators": 1},
        {"servers": 3},
        {"mode": "async"},
        {"mode": "async", "validators": 2, "servers": 2},
        {"quorum": 0.5, "workers": 6, "train": {"late": "next"}},
    ],
    ids=["server", "validator", "servers", "async", "async validators", "quorum"],
)


@MODES
def test_a_replacement_begins_with_what_the_last_checkpoint_has(tables, kept, tmp_path):
    """All but residual and momentum is that of its last update: the steps are not those of the checkpoint."""
    written, began = kept
    run_here(keeping({"process": "worker-2", "at": [1.05], "repair": 0.1}, **tables), tmp_path)
    (start,), (beginning,) = incarnations(tmp_path), began
    assert start["residual_from"] > 0
    moments = [line["moment"] for line in lines(tmp_path, "worker-2", "snapshot")]
    assert len(beginning.vectors) == 3
    assert not beginning.zero
    assert beginning.equals(written[moments.index(start["residual_from"])])
    assert beginning.steps >= written[moments.index(start["residual_from"])].steps


def test_without_the_key_it_begins_with_zeros_and_a_record_as_before(kept, tmp_path):
    run_here(keeping({"process": "worker-2", "at": [1.05], "repair": 0.1}, residual="zero"), tmp_path)
    (beginning,) = kept[1]
    assert beginning.zero
    assert "residual_from" not in incarnations(tmp_path)[0]


def test_the_steps_go_on_after_the_last_update_and_the_checkpoint_is_older(kept, tmp_path):
    """Checkpoint 4 is written after round 3; round 4 counts, and round 5 does not."""
    run_here(keeping({"process": "worker-2", "at": [1.05], "repair": 0.1}), tmp_path)
    (start,), (beginning,) = incarnations(tmp_path), kept[1]
    assert start["residual_from"] == 4
    assert beginning.steps == 10
    assert [memory.steps for memory in kept[0] if memory.equals(beginning)] == [8]


@pytest.mark.parametrize(("keep", "there"), [(2, None), (3, 4)])
def test_checkpoints_without_the_worker_take_the_place_of_its_last_one(keep, there, kept, tmp_path):
    """The worker is lost in round 5 and returns in round 9; checkpoints 6 and 8 have no part of it."""
    failure = {"process": "worker-2", "at": [1.05], "repair": 0.8}
    run_here(keeping(failure, checkpoint={"keep": keep}), tmp_path)
    (beginning,) = kept[1]
    assert beginning.zero is (there is None)
    assert incarnations(tmp_path)[0].get("residual_from") == there


def test_a_replacement_before_the_first_checkpoint_begins_with_zeros(tmp_path):
    run_here(keeping({"process": "worker-2", "at": [0.1], "repair": 0.05}), tmp_path)
    assert "residual_from" not in incarnations(tmp_path)[0]


def test_it_changes_the_model_and_the_same_run_gives_the_same_bits(tmp_path):
    models = []
    for number, residual in enumerate(("zero", "checkpoint", "checkpoint")):
        run_here(
            keeping({"process": "worker-2", "at": [1.05], "repair": 0.1}, residual=residual), tmp_path / str(number)
        )
        models.append(np.load(tmp_path / str(number) / "final" / "server-0.npy").tobytes())
    assert models[0] != models[1] == models[2]


def checkpoints_of(run, folder, positions):
    """Write complete checkpoints in which the residual of worker 2 is as large as the position; return their folder."""
    directory = RunDirectory(folder)
    directory.create({"run_id": run_id(run), "run": run.model_dump(mode="json")})
    for position in positions:
        checksums = {}
        for name in ("worker-0", "worker-1", "worker-2", "worker-3", "server-0"):
            state = make_role(run, Peer.parse(name)).state(0) if name == "worker-2" else None
            if state is not None:
                state.arrays["packer.residual"][:] = position
                state = replace(state, facts={**state.facts, "round": position})
                checksums[name] = directory.checkpoints.write(position, name, CheckpointPart(state, Prefix(0), 0.0))
            else:
                checksums[name] = "0" * 64
        directory.checkpoints.seal(position, run_id(run), checksums, 9)
    return directory


def replacement(run, directory):
    """Return the replacement of worker 2, and the value of its residual."""
    run = run.identified(run_id(run))
    role = make_role(run, WORKER_2, incarnation=1)
    take_over_residual(role, directory, run)
    return role.residual_from, float(role._role.state(0).arrays["packer.residual"].max())


def test_a_damaged_checkpoint_is_left_out(tmp_path):
    run = keeping(checkpoint={"keep": 3})
    directory = checkpoints_of(run, tmp_path, (4, 6, 8))
    assert replacement(run, directory) == (8, 8.0)
    part = tmp_path / "checkpoints" / "000000008" / "worker-2.npz"
    part.write_bytes(part.read_bytes()[:-1])
    assert replacement(run, directory) == (6, 6.0)
    manifest = tmp_path / "checkpoints" / "000000006" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run_id": "0123456789"}))
    assert replacement(run, directory) == (4, 4.0)
    (tmp_path / "checkpoints" / "000000004" / "manifest.json").unlink()
    assert replacement(run, directory) == (None, 0.0)


def test_a_checkpoint_that_is_removed_meanwhile_is_no_reason_to_forget_a_newer_one(tmp_path, monkeypatch):
    """Checkpoint 4 is removed, as 6 is complete, while the replacement reads it."""
    run = keeping()
    directory, read = checkpoints_of(run, tmp_path, (4,)), Checkpoints.read

    def removed(self, position, process):
        if position == 4:
            checkpoints_of(run, tmp_path, (6,))
            (tmp_path / "checkpoints" / "000000004" / "worker-2.npz").unlink()
        return read(self, position, process)

    monkeypatch.setattr(Checkpoints, "read", removed)
    assert replacement(run, directory) == (6, 6.0)


def test_when_checkpoints_are_written_belongs_to_the_id(tmp_path):
    ids = [run_id(keeping(residual=each, checkpoint={"rounds": n})) for each in ("zero", "checkpoint") for n in (2, 3)]
    assert len(set(ids)) == 3
    assert ids[0] == ids[1]
    assert run_id(keeping(checkpoint={"keep": 5})) != run_id(keeping())
    assert run_id(keeping(checkpoint={"margin": 5.0})) == run_id(keeping())


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"checkpoint": {"rounds": 0}}, "survive.residual: no checkpoint is written while the run goes on"),
        ({"checkpoint": {"rounds": 0, "every": 1}}, ""),
    ],
)
def test_a_run_without_checkpoints_is_refused(tables, expected):
    problems = [f"{dotted(each.path)}: {each.message}" for each in contradictions(keeping(**tables))]
    assert [each[: len(expected)] for each in problems] == [expected] * bool(expected), problems


def test_it_needs_workers_that_may_be_lost():
    run = survivors(survive={"workers": False, "residual": "checkpoint"}, checkpoint={"every": 1})
    problems = [f"{dotted(each.path)}: {each.message}" for each in contradictions(run)]
    assert any("survive.residual: has an effect only with workers = true" in each for each in problems), problems

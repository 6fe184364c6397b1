"""A payload that is read where its sender keeps it is never changed under its reader, whoever is slow.

The same run is played in the same random order: once every payload is copied when it is sent, once it is read in
place, as between processes that share memory, and once it is in the memory of a device, which is used again when its
owner has no vector there. Were anything changed too early, the models would differ.
"""

import random
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from buffers.late_device import LateDevice
from installed import BACKEND

from hpcps.execution.inprocess import check_finished
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role
from hpcps.execution.simulation.sharing import EventQueue
from hpcps.numerics.layout import private
from hpcps.numerics.vectors import DeviceVector
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import ModelPartition, ModelReply, Peer
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.resources import ALONE, Resources
from hpcps.spec.schema import Run
from hpcps.transport.base import Traffic

SYNC = {
    # name: rule, validators, servers, bytes of a partition, other tables
    "servers combine partitions": ("trimmed_mean", 0, 2, 2048, {}),
    "validators, partitions": ("average", 2, 3, 2048, {}),
    "a validator that trains": ("zeno", 1, 1, 2048, {"train": {"first_step": "overwritten"}}),
    "worker 0 tests": ("average", 0, 2, 2048, {"validation": {"evaluate": "global_model"}}),
    "checkpoints": ("average", 2, 2, 2048, {"checkpoint": {"every": 1}}),
}
ASYNC = {
    "one validator": ("zeno++", 1, 2, {}),
    "two validators": ("naive_async", 2, 2, {}),
    "servers judge": ("naive_async", 0, 1, {}),
    "weights": ("fed_async", 0, 2, {}),
    "checkpoints": ("naive_async", 1, 1, {"checkpoint": {"every": 1}}),
}


def spec(mode: str, rule: str, validators: int, servers: int, partition: object, changes: dict) -> Run:
    tables = {
        "name": "lifetimes",
        "topology": {"servers": servers, "validators": validators, "workers": 4},
        "transport": {"partition": partition},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 120, "test_limit": 40},
        "train": {"mode": mode, "epochs": 2, "batch_size": 8, "local_steps": 1, "optimizer": {"lr": 0.05}},
        "communication": {"participation": 0.8, "skip_rate": 0.3},
        "validation": {"rule": {"kind": rule}},
    }
    for table, values in changes.items():
        tables[table] = {**tables.get(table, {}), **values}
    return Run.model_validate(tables)


class Post:
    """One role's mailbox; `place` says what its readers get of a payload."""

    def __init__(self, owner, boxes, place):
        self._owner, self._boxes, self._place = owner, boxes, place
        self._boxes[owner] = deque()
        self.traffic = Traffic()

    def send(self, to, envelope):
        payload = envelope.payload if envelope.payload is not None and envelope.payload.size else None
        self._boxes[to].append((self._owner, envelope.header, None if payload is None else self._place(payload)))

    def receive(self):
        if not self._boxes[self._owner]:
            return None
        source, header, payload = self._boxes[self._owner].popleft()
        return Delivered(source, Envelope.decode(header, payload))


class NotedPost(Post):
    """A mailbox that notes the payloads of models."""

    def __init__(self, owner, boxes, models):
        super().__init__(owner, boxes, in_place)
        self._models = models

    def send(self, to, envelope):
        if isinstance(envelope.message, (ModelPartition, ModelReply)) and envelope.payload.size:
            self._models.append(envelope.payload)
        super().send(to, envelope)


class DevicePost(Post):
    """The mailbox of a role with a device: MPI keeps the vector, and copies its memory when the reader receives it."""

    def __init__(self, owner, boxes, device):
        super().__init__(owner, boxes, lambda payload: payload)
        self._device = device

    def send(self, to, envelope):
        self._device.finish()
        super().send(to, envelope)

    def receive(self):
        if not self._boxes[self._owner]:
            return None
        source, header, sent = self._boxes[self._owner].popleft()
        payload = None if sent is None else DeviceVector(self._device, sent.memory.copy())
        return Delivered(source, Envelope.decode(header, payload))


def in_place(payload):
    view = payload[:]
    view.flags.writeable = False
    return view


def play(run: Run, folder: Path, place) -> dict[str, np.ndarray]:
    """Play a run; for a while always the same one of those who can go on does, so that others fall far behind."""
    directory, chance = RunDirectory(folder), random.Random(0)
    directory.create({"run_id": "lifetimes"})
    roster, boxes, clock = Roster.of(run), {}, EventQueue()
    with ExitStack() as stack:
        nodes = []
        for peer in (*roster.readers(), *roster.all_servers()):
            record = stack.enter_context(RecordWriter(folder, "lifetimes", peer.role, peer.index, "here"))
            resources, post = ALONE, Post(peer, boxes, place)
            if place is None:
                device = LateDevice()
                resources, post = Resources(device.allocate, device.allocate), DevicePost(peer, boxes, device)
            role = make_role(run.identified("lifetimes"), peer, resources)
            nodes.append(RoleDriver(role, post, record, directory, clock=clock))
        while left := [node for node in nodes if not node.finished]:
            chance.shuffle(left)
            for _ in range(chance.choice((1, 3, 30))):
                if not any(not node.finished and node.step() for node in left):
                    check_finished(nodes)
                    break
    return {str(path.relative_to(folder)): np.load(path) for path in sorted(folder.glob("final/*.npy"))}


def assert_same(run: Run, folder: Path) -> None:
    copied = play(run, folder / "copied", np.copy)
    shared = play(run, folder / "shared", in_place)
    assert len(copied) == run.topology.servers
    on_device = play(run, folder / "device", None) if BACKEND == "torch" else shared
    for name, model in copied.items():
        assert np.isfinite(model).all()
        np.testing.assert_array_equal(shared[name], model, err_msg=name)
        np.testing.assert_array_equal(on_device[name], model, err_msg=name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", SYNC)
def test_in_rounds(tmp_path, case):
    assert_same(spec("sync", *SYNC[case]), tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", ASYNC)
def test_asynchronous(tmp_path, case):
    rule, validators, servers, changes = ASYNC[case]
    assert_same(spec("async", rule, validators, servers, "auto", changes), tmp_path)


@pytest.mark.parametrize(("mode", "rule"), [("sync", "average"), ("async", "naive_async")])
def test_models_are_sent_from_memory_that_readers_can_map(tmp_path, mode, rule):
    """`Resources.allocate` gives shared memory, where there is some: a model in other memory is sent."""
    run = spec(mode, rule, 0, 1, "auto", {"train": {"epochs": 1}})
    shared, models, boxes, nodes = [], [], {}, []

    def allocate(size):
        shared.append(np.empty(size, np.float32))
        return shared[-1]

    RunDirectory(tmp_path).create({"run_id": "lifetimes"})
    roster = Roster.of(run)
    with ExitStack() as stack:
        for peer in (*roster.readers(), *roster.all_servers()):
            record = stack.enter_context(RecordWriter(tmp_path, "lifetimes", peer.role, peer.index, "here"))
            resources = Resources(allocate, private) if peer == Peer("server", 0) else ALONE
            post = NotedPost(peer, boxes, models)
            role = make_role(run.identified("lifetimes"), peer, resources)
            nodes.append(RoleDriver(role, post, record, RunDirectory(tmp_path), clock=EventQueue()))
        while any(not node.finished and node.step() for node in nodes):
            pass
    assert models
    assert all(any(np.shares_memory(model, array) for array in shared) for model in models)

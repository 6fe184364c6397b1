"""Whole runs with the kernels: roles, `CudaDevice` and Triton's interpreter, on a driver whose memory is the host's.

Their result is that of the host up to rounding.
"""

from collections import deque

import numpy as np
import pytest
import torch
from buffers import cuda_on_host

from hpcps.execution.inprocess import run_in_process, take_turns
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role
from hpcps.execution.simulation.event_queue import EventQueue
from hpcps.numerics import device
from hpcps.numerics.layout import Layout
from hpcps.numerics.vectors import DeviceVector
from hpcps.protocol.messages import Message, Peer, Received
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.resources import Resources
from hpcps.roles.sync import partitions
from hpcps.roles.sync.partitions import PartitionCollector
from hpcps.rules import Context, Median
from hpcps.spec.schema import Run
from hpcps.transport.base import Traffic

if not device.interpreted():
    pytest.skip("make test runs it in .venv-triton, in Triton's interpreter", allow_module_level=True)

pytestmark = pytest.mark.skipif(cuda_on_host.compiler() is None, reason="no C compiler for a stand-in of libcuda")
RULES = [
    *("average", "zeno", "krum", "zeno++"),
    *(pytest.param(rule, marks=pytest.mark.soak) for rule in ("phocas", "median", "naive_async")),
]

ASYNC = ("zeno++", "naive_async")


class Passed:
    """A transport that passes payloads on where they are."""

    def __init__(self, owner, boxes, device, kinds):
        self.owner, self.boxes, self.device, self.kinds = owner, boxes, device, kinds
        self.traffic = Traffic()
        boxes[owner] = deque()

    def send(self, to, message):
        self.device.finish()
        self.kinds.add((message.kind.name, type(message.payload)))
        self.boxes[to].append(Received(self.owner, Message.decode(message.header(), message.payload)))

    def receive(self):
        return self.boxes[self.owner].popleft() if self.boxes[self.owner] else None


@pytest.mark.parametrize("rule", RULES)
def test_a_run_with_kernels_gives_the_model_of_the_host(tmp_path, rule, monkeypatch):
    monkeypatch.setattr(torch, "empty", torch.empty)
    run = Run.model_validate({
        "name": "kernels",
        "topology": {"servers": 1, "validators": 1, "workers": 4},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 80, "test_limit": 20},
        "train": {
            "epochs": 1, "batch_size": 4, "local_steps": 2, "optimizer": {"lr": 0.05}, "device": "cpu",
            "mode": "async" if rule in ASYNC else "sync",
        },
        "communication": {"skip_rate": 0.3},
        "validation": {"rule": {"kind": rule, **({"f": 0} if rule == "krum" else {})}},
        "attack": {"kind": "negative", "rate": 0.3},
    })  # fmt: skip
    here = RunDirectory(tmp_path / "here")
    here.create({"run_id": "0123456789"})
    run_in_process(run, "0123456789", here)
    device, kinds = cuda_on_host.open_device(), set()
    there = RunDirectory(tmp_path / "there")
    there.create({"run_id": "0123456789"})
    drivers, records, boxes = [], [], {}
    for peer in Roster.of(run).everyone():
        records.append(RecordWriter(there.path, "0123456789", peer.role, peer.index, "here"))
        role = make_role(run, "0123456789", peer, Resources(device.allocate, device.allocate))
        drivers.append(RoleDriver(role, Passed(peer, boxes, device, kinds), records[-1], there))
    take_turns(drivers, there, EventQueue())
    for record in records:
        record.close()
    for kind in ("UPDATE", "APPLY" if rule in ASYNC else "COMBINED", "MODEL"):
        assert (kind, DeviceVector) in kinds
    models = [np.load(directory.path / "final/server-0.npy") for directory in (here, there)]
    np.testing.assert_allclose(models[1], models[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("absences", "most", "numbers"), [(True, 16, [1, 2, 3]), (True, 2, []), (False, 2, [3])])
def test_no_round_waits_for_a_compiler(monkeypatch, absences, most, numbers):
    """A kernel that sorts is compiled for a number of updates, and the number of workers that take part changes."""
    monkeypatch.setattr(torch, "empty", torch.empty)
    asked, kernel_for, there = [], Median.kernel_for, cuda_on_host.open_device()

    def noted(rule, n):
        kernel = kernel_for(rule, n)
        return lambda updates, context: (asked.append(len(updates)), kernel(updates, context))[1]

    monkeypatch.setattr(Median, "kernel_for", noted)
    monkeypatch.setattr(partitions, "PREPARED", most)
    layout, share = Layout.of([("a", (4,)), ("b", (2,))]), [Peer("worker", worker) for worker in range(3)]
    collector = PartitionCollector(share, [Partition.of(layout, (0, 6))])
    collector.prepare(Median(), Context(out=there.allocate(6)), absences=absences)
    assert asked == numbers
    assert collector.waiting_for == tuple(share), "nothing of a round is used up"

"""How often a round on a device waits for it."""

from functools import partialmethod

import numpy as np
import pytest
import torch
from interrupted import small
from late_device import LateTensors

from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics.layout import Layout
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import Flag, Peer, Update
from hpcps.roles.resources import Resources
from hpcps.roles.sync.partitions import PartitionCollector
from hpcps.roles.sync.shard import SyncShard
from hpcps.roles.weights import ALIKE

SERVER = Peer("server", 0)
LAYOUT = Layout.of([("a", (600,)), ("b", (40,))])


def counted(tensor, method, calls):
    calls.append(method)
    return method(tensor)


@pytest.mark.parametrize("optimizer", [{"kind": "nesterov"}, {"kind": "yogi", "lr": 0.1}, {"kind": "sgd", "lr": 0.5}])
def test_a_round_with_a_server_optimizer_waits_twice(optimizer, monkeypatch):
    """Once for the rule, and once for the norms of the step and whether the model is finite."""
    run = small(
        topology={"servers": 1, "validators": 0, "workers": 3},
        server={"optimizer": optimizer},
        validation={"rule": {"kind": "median"}},
    )
    updates = np.random.default_rng(1).standard_normal((3, LAYOUT.size)).astype(np.float32)
    found = {}
    for name, resources in (("host", Resources()), ("device", Resources(*[LateTensors().allocate] * 2))):
        shard = SyncShard(SERVER, run, LAYOUT.to_json(), resources)
        shard.begin(np.ones(LAYOUT.size, np.float32))
        collector = PartitionCollector([Peer("worker", k) for k in range(3)], shard.partitions)
        for peer, update in zip(collector.waiting_for, updates, strict=True):
            message = Update(round=0, shard=0, partition=0, flags=Flag.NONE, mask=np.ones(2, np.bool_), values=update)
            assert not [*collector.put(peer, message, 0)]
        waits = []
        with monkeypatch.context() as patch:
            for method in ("__float__", "__bool__", "__int__", "item", "tolist"):
                ours = getattr(torch.Tensor, method)
                patch.setattr(torch.Tensor, method, partialmethod(counted, ours, waits))
            rule = run.validation.rule
            shard.combine(collector, rule, RuleState(rule, 1, SERVER), ALIKE)
        assert len(waits) == (2 if name == "device" else 0)
        assert shard.finite
        found[name] = on_host(shard.coming.model), *shard.stepper.turn().values()
    for here, there in zip(found["host"], found["device"], strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-6)

"""Runs whose models travel as compressed differences: all roles have the same bits, however they got them."""

from itertools import pairwise

import numpy as np
import pytest
from executed import run_here
from interrupted import model, play, play_through, records, small
from quorum.test_runs import digits

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.protocol.messages import Flag
from hpcps.roles.asynchronous.shard import AsyncShard
from hpcps.roles.local_training import LocalTraining
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.update.packer import Packer

SHORT = {"epochs": 2, "batch_size": 16, "local_steps": 3, "optimizer": {"lr": 0.05}}


def run_of(kind, direction="both", topology=(1, 0, 3), communication=(("participation", 0.7),), **tables):
    """Return a small run with a compressor; the topology is servers, validators and workers."""
    keys = {"kind": kind, "direction": direction, **tables.pop("compressor", {})}
    tables = {
        "topology": dict(zip(("servers", "validators", "workers"), topology, strict=True)),
        "communication": {"participation": 1.0, "skip_rate": 0.0, **dict(communication), "compression": keys},
        "train": SHORT,
        **tables,
    }
    return small(**tables)


def final(folder, run):
    assert play(run, folder)
    return model(folder)


@pytest.mark.sample(1, 4)
@pytest.mark.parametrize(
    ("kind", "memory"),
    [("fp16", "nesterov"), ("bf16", "ef21"), ("qsgd", "residual"), ("powersgd", "nesterov"), ("sparse_loco", "none"),
     ("dithering", "ef21"), ("lossless", "residual")],
)  # fmt: skip
def test_servers_partitions_and_validators_do_not_show(kind, memory, tmp_path):
    shapes = ((1, 0, "auto"), (3, 0, 4096), (1, 1, 4096), (3, 1, "auto"))
    models = []
    for *roles, partition in shapes:
        tables = {"transport": {"partition": partition}, "server": {"optimizer": "nesterov"}}
        tables["communication"] = (("participation", 0.7), ("skip_rate", 0.3))
        run = run_of(kind, topology=(*roles, 3), compressor={"memory": memory}, **tables)
        models.append(final(tmp_path / str(len(models)), run))
    for other in models[1:]:
        np.testing.assert_array_equal(other, models[0])
    upward = run_of(kind, "update", topology=(1, 0, 3), compressor={"memory": memory}, **tables)
    assert np.array_equal(final(tmp_path / "update", upward), models[0]) == (kind == "lossless")


@pytest.fixture
def adopted(monkeypatch):
    """The models that roles adopt, by round."""
    found, adopt = {}, LocalTraining._adopt

    def note(self):
        found.setdefault(self.round, []).append(self.inbox.model)
        return adopt(self)

    monkeypatch.setattr(LocalTraining, "_adopt", note)
    return found


@pytest.mark.parametrize("memory", ["residual", "none"])
def test_everyone_trains_on_the_same_decoded_model(memory, adopted, tmp_path):
    """Its differences have few values; the server keeps what is left of the model, or goes on from what it sent."""
    run = run_of("topk", "model", (2, 1, 3), compressor={"k": 0.1, "memory": memory}, checkpoint={"every": 0})
    last = final(tmp_path, run)
    rounds = sorted(adopted)
    for round in rounds:
        assert len(adopted[round]) == 4
        assert all(each.tobytes() == adopted[round][0].tobytes() for each in adopted[round])
    changed = [np.mean(adopted[a][0] != adopted[b][0]) for a, b in pairwise(rounds)]
    assert max(changed) < 0.12
    assert np.mean(adopted[rounds[-1]][0] != adopted[0][0]) > 0.2
    assert last.tobytes() == adopted[rounds[-1]][0].tobytes()
    evaluated = [line for line in records(tmp_path, "validator-0") if line["event"] == "evaluation"]
    assert np.isfinite(evaluated[-1]["loss"])


@pytest.mark.parametrize(("direction", "up", "down"), [("update", 0.5, 1.0), ("model", 1.0, 0.5), ("both", 0.5, 0.5)])
def test_records_state_the_bytes_that_travelled(direction, up, down, tmp_path):
    """Small blocks and headers remain, and the first model is whole, as is that after a checkpoint."""
    tables = {"communication": (), "checkpoint": {"every": 0}}
    found = {}
    for name, run in (("plain", small(**plain())), ("fp16", run_of("fp16", direction, (1, 0, 2), **tables))):
        final(tmp_path / name, run)
        lines = records(tmp_path / name, "worker-1")
        found[name] = [sum(line.get(f"bytes_{way}", 0) for line in lines) for way in ("sent", "received")]
    assert found["fp16"][0] / found["plain"][0] == pytest.approx(up, abs=0.05)
    assert found["fp16"][1] / found["plain"][1] == pytest.approx(down, abs=0.07)


def plain():
    return {
        "topology": {"servers": 1, "validators": 0, "workers": 2},
        "communication": {"participation": 1.0, "skip_rate": 0.0},
        "train": SHORT,
        "checkpoint": {"every": 0},
    }


@pytest.mark.sample(1, 4)
@pytest.mark.parametrize(
    ("kind", "memory", "validators"),
    [("int8", "ef21", 1), ("randomk", "nesterov", 0), ("qsgd", "residual", 0), ("powersgd", "ef21", 1),
     ("dithering", "none", 0), ("sparse_loco", "residual", 1), ("lossless", "residual", 0)],
)  # fmt: skip
def test_ends_as_if_nothing_had_happened(kind, memory, validators, tmp_path):
    """With the state of a server optimizer, what servers keep of models, memories of updates, and random streams."""
    tables = {"server": {"optimizer": "nesterov"}, "train": {**SHORT, "epochs": 4}, "compressor": {"memory": memory}}
    run = run_of(kind, topology=(2, validators, 3), **tables)
    whole = final(tmp_path / "whole", run)
    play_through(run, tmp_path / "cut", [300] * 4)
    assert any("continues" in line for line in records(tmp_path / "cut", "server-1"))
    np.testing.assert_array_equal(model(tmp_path / "cut"), whole)


@pytest.mark.parametrize("topology", [(2, 0, 3), (3, 1, 2)])
def test_asynchronous_readers_have_what_the_servers_say_they_have(topology, monkeypatch, tmp_path):
    """A model that a role adopts is, in each shard, what its server notes of this reader; the last one is the model."""
    sent, adopted = {}, []
    reply, adopt = AsyncShard.reply, LocalTraining._adopt

    def noted(self, reader, request, *args, **keys):
        message = reply(self, reader, request, *args, **keys)
        sent.setdefault((reader, request), {})[message.shard] = self.sent.held[reader].copy(), message.flags
        return message

    def compared(self):
        held = [values for _, (values, _) in sorted(sent[self._peer, self.inbox.round].items())]
        adopted.append((self._peer.role, self.inbox.model.tobytes() == np.concatenate(held).tobytes()))
        return adopt(self)

    monkeypatch.setattr(AsyncShard, "reply", noted)
    monkeypatch.setattr(LocalTraining, "_adopt", compared)
    run = run_of(
        "topk", "both", topology, train={**SHORT, "mode": "async"}, validation={"rule": {"kind": "naive_async"}}
    )
    last = final(tmp_path, run)
    assert all(same for _, same in adopted)
    assert {role for role, _ in adopted} == ({"worker", "validator"} if topology[1] else {"worker"})
    flags = [flag for shards in sent.values() for _, flag in shards.values()]
    assert 0.5 < np.mean([Flag.DIFFERENCE in flag for flag in flags]) < 1
    coordinator = "validator" if topology[1] else "worker"
    ends = [shards for (reader, _), shards in sent.items() if str(reader) == f"{coordinator}-0"][-1]
    assert np.concatenate([values for _, (values, _) in sorted(ends.items())]).tobytes() == last.tobytes()


@pytest.mark.sample(1, 2)
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int8", "qsgd", "dithering", "randomk"])
def test_alone_an_asynchronous_run_ends_as_if_nothing_had_happened(kind, tmp_path):
    """With two servers a checkpoint reaches the worker before the model from the other one, so no update is lost."""
    tables = {"train": {**SHORT, "mode": "async", "epochs": 6}, "validation": {"rule": {"kind": "naive_async"}}}
    run = run_of(kind, topology=(2, 0, 1), communication=(), **tables)
    whole = final(tmp_path / "whole", run)
    play_through(run, tmp_path / "cut", [100, 100, 150])
    starts = [line for line in records(tmp_path / "cut", "server-1") if line["event"] == "start"]
    assert sum("continues" in line for line in starts) > 1
    np.testing.assert_array_equal(model(tmp_path / "cut"), whole)


def late(validators, servers, keys, kind="int8", **tables):
    """Return a run in which the slowest of four workers is late: its update is dropped, or enters the next round."""
    return digits(
        validators,
        servers,
        **{
            "train": {"quorum": 3, **keys},
            "server": {"optimizer": "nesterov"},
            "communication": {"compression": {"kind": kind, "direction": "both"}},
            **tables,
        },
    )


@pytest.fixture
def agreed(monkeypatch):
    """Whether each estimate is that of its worker, once its update is decoded."""
    packers, found = {}, []
    begin, decode = Packer.__init__, UpdateDecoder.__call__

    def noted(self, peer, *args):
        packers[peer] = self
        begin(self, peer, *args)

    def compared(self, sender, *args):
        result = decode(self, sender, *args)
        ours, theirs = self._estimates[sender], packers[sender]._encoder.estimate
        found.append(ours.tobytes() == theirs.tobytes())
        return result

    monkeypatch.setattr(Packer, "__init__", noted)
    monkeypatch.setattr(UpdateDecoder, "__call__", compared)
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("mode", "attack"), [("drop", "nan"), ("next", "late"), ("next", "nan"), ("async", "nan"), ("async", "ipm")]
)
def test_workers_and_combiners_agree_on_estimates(mode, attack, agreed, tmp_path):
    """Also if updates are dropped, replaced by an adversary, or not finite."""
    tables = {"train": {"quorum": 3, "late": mode}, "attack": {"kind": attack, "rate": 0.3}}
    tables["attack"] |= {"epsilon": 2.0} if attack == "ipm" else {"seconds": 0.2} if attack == "late" else {}
    if mode == "async":
        tables["train"] = {"mode": "async", "quorum": None, "epochs": 9}
        tables["validation"] = {"rule": {"kind": "naive_async"}}
    keys = {"kind": "int8", "memory": "ef21", "direction": "both"}
    communication = {"participation": 0.8, "skip_rate": 0.2, "compression": keys}
    run = digits(1, 2, communication=communication, transport={"kind": "inproc"}, **tables)
    assert np.isfinite(model(run_here(run, tmp_path).path)).all()
    assert all(agreed)
    assert len(agreed) > 12


@pytest.mark.sample(1)
@pytest.mark.parametrize("keys", [{"late": "drop"}, {"late": "next", "grace": 0.05}], ids=["drop", "next"])
def test_late_workers_get_whole_models_and_have_the_same_bits(keys, adopted, monkeypatch, tmp_path):
    """Whatever the shards; and memory that a late worker may still read is not written over."""
    whole, put = [], ModelInbox.put

    def noted(self, source, model, round):
        whole.append((model.round, str(self._owner), Flag.DIFFERENCE not in model.flags))
        return put(self, source, model, round)

    monkeypatch.setattr(ModelInbox, "put", noted)
    last = []
    for validators, servers, partition in ((0, 1, "auto"), (0, 3, 4096), (1, 2, 4096)):
        run = late(validators, servers, keys, transport={"kind": "inproc", "partition": partition})
        last.append(model(run_here(run, tmp_path / f"{validators}-{servers}").path))
    for other in last[1:]:
        np.testing.assert_array_equal(other, last[0])
    for models in adopted.values():
        assert all(each.tobytes() == models[0].tobytes() for each in models)
    later = {(round, owner) for round, owner, entire in whole if round and entire}
    owners = {owner for _, owner in later}
    assert "worker-3" in owners
    assert "worker-2" not in owners, "it is the first of each round"
    assert len(later) < len({(round, owner) for round, owner, _ in whole}) / 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["qsgd", "powersgd", "sparse_loco"])
def test_a_quorum_ends_as_if_nothing_had_happened(kind, tmp_path):
    run = late(0, 2, {"late": "next"}, kind, checkpoint={"every": 1})
    whole = final(tmp_path / "whole", run)
    play_through(run, tmp_path / "cut", [400] * 4)
    assert any("continues" in line for line in records(tmp_path / "cut", "server-1"))
    np.testing.assert_array_equal(model(tmp_path / "cut"), whole)

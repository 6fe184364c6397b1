"""Runs with compressed updates in one process: shards and partitions, memory, attacks, bytes, hostile messages."""

from dataclasses import replace

import numpy as np
import pytest
from interrupted import model, play, play_through, records, small

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.compression import Codec, Int8
from hpcps.numerics.layout import Layout, private
from hpcps.numerics.updates import Destination
from hpcps.protocol.messages import Flag, Peer, Update
from hpcps.protocol.partitioning import Partition
from hpcps.registry import active
from hpcps.roles.sync.partitions import PartitionCollector
from hpcps.roles.update.memory import ErrorFeedback
from hpcps.roles.update.packer import Packer
from hpcps.rules import Average, Context

SHORT = {"epochs": 2, "batch_size": 16, "local_steps": 3, "optimizer": {"lr": 0.05}}


def final(folder, **tables):
    """Play a small run; return its final model."""
    tables.setdefault("train", SHORT)
    assert play(small(**tables), folder)
    return model(folder)


def compressed(kind, **keys):
    """Return the table `communication`, with skipped blocks and rounds."""
    return {"participation": 0.7, "skip_rate": 0.3, "compression": {"kind": kind, **keys}}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["fp16", "randomk"])
def test_servers_partitions_and_validators_do_not_show(kind, tmp_path):
    shapes = ((1, 0, "auto"), (3, 0, 4096), (1, 1, 4096), (2, 1, "auto"))
    models = [
        final(
            tmp_path / str(number),
            topology={"servers": servers, "validators": validators, "workers": 3},
            transport={"partition": partition},
            communication=compressed(kind),
            attack={"kind": "random", "rate": 0.3},
        )
        for number, (servers, validators, partition) in enumerate(shapes)
    ]
    for other in models[1:]:
        np.testing.assert_array_equal(other, models[0])
    plain = final(
        tmp_path / "plain",
        topology={"servers": 1, "validators": 0, "workers": 3},
        communication={"participation": 0.7, "skip_rate": 0.3},
        attack={"kind": "random", "rate": 0.3},
    )
    assert not np.array_equal(plain, models[0])


def worker_bytes(folder):
    return sum(line.get("bytes_sent", 0) for k in range(2) for line in records(folder, f"worker-{k}"))


def test_records_state_the_bytes_that_travelled(tmp_path):
    """Two workers that send everything: half of the bytes with fp16, and so on; small blocks and headers remain."""
    tables = {"topology": {"servers": 1, "validators": 0, "workers": 2}}
    sent = {}
    for kind in ("none", "fp16", "int8", "onebit"):
        final(tmp_path / kind, communication={"participation": 1, "skip_rate": 0, "compression": kind}, **tables)
        sent[kind] = worker_bytes(tmp_path / kind)
    assert sent["fp16"] / sent["none"] == pytest.approx(0.5, abs=0.05)
    assert sent["int8"] / sent["none"] == pytest.approx(0.25, abs=0.07)
    assert sent["onebit"] / sent["none"] == pytest.approx(1 / 32, abs=0.08)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["fp16", "randomk"])
def test_ends_as_if_nothing_had_happened(kind, tmp_path):
    run = small(topology={"servers": 2, "validators": 0, "workers": 3}, communication=compressed(kind))
    assert play(run, tmp_path / "whole")
    play_through(run, tmp_path / "cut", [300] * 6)
    assert any("continues" in line for line in records(tmp_path / "cut", "server-1"))
    np.testing.assert_array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))


@pytest.mark.sample(3)
@pytest.mark.parametrize("validators", [0, 1])
@pytest.mark.parametrize("attack", [{"kind": "nan"}, {"kind": "ipm", "epsilon": 2.0}], ids=["nan", "ipm"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_attacks_act_before_the_encoding_and_nothing_that_is_not_finite_enters(mode, attack, validators, tmp_path):
    rule = {"sync": "median", "async": "naive_async"}[mode]
    final(
        tmp_path,
        topology={"servers": 2, "validators": validators, "workers": 3},
        train={**SHORT, "mode": mode},
        validation={"rule": {"kind": rule}},
        communication={"participation": 1, "skip_rate": 0, "compression": "int8"},
        attack={**attack, "rate": 0.4},
    )
    assert np.isfinite(model(tmp_path)).all()
    workers = [line for k in range(3) for line in records(tmp_path, f"worker-{k}") if line["event"] == "round"]
    assert any(line["blocks_attacked"] for line in workers)
    combiner = "validator-0" if validators else "server-0"
    rejected = [line for line in records(tmp_path, combiner) if line["event"] == "rejected"]
    assert bool(rejected) == (attack["kind"] == "nan")
    assert all(line["reason"] == "not finite" for line in rejected)


LAYOUT = Layout.of([("a", (600,)), ("b", (3,)), ("c", (700,))])


def test_a_collector_refuses_and_counts_what_is_no_encoding():
    """The valid update of worker 1 is combined, and each broken one of worker 0 is a record and an empty update."""
    codec, mask = Codec(Int8(), LAYOUT), np.ones(3, np.bool_)
    generator = np.random.default_rng(1)
    values = generator.standard_normal(LAYOUT.size).astype(np.float32)
    words = codec.encode(LAYOUT, 0, mask, values, np.empty(codec.most_elements(LAYOUT, 0), np.float32)).copy()
    peers = tuple(Peer("worker", k) for k in range(2))
    whole = (Partition.of(LAYOUT, (0, LAYOUT.size)),)
    collector = PartitionCollector(peers, whole, decoder=UpdateDecoder(codec))
    update = Update(round=0, shard=0, partition=0, flags=Flag.NONE, mask=mask, values=words)
    refused = 0
    for trial in range(60):
        collector.clear()
        changed = np.resize(words, generator.integers(0, 2 * len(words))) if trial % 2 else words.copy()
        if not trial % 2:
            changed.view(np.uint32)[generator.integers(0, len(words))] ^= np.uint32(1 << generator.integers(0, 32))
        effects = [*collector.put(peers[0], replace(update, values=changed), 0)]
        assert not [*collector.put(peers[1], update, 0)]
        assert collector.ready
        fields_of = {effect.fields["reason"][:12] for effect in effects}
        assert fields_of <= {"its encoding"}
        refused += bool(effects)
        combined = collector.combine_next(Average(), Context(), Destination())
        if effects:
            np.testing.assert_array_equal(combined.update, codec.decode(LAYOUT, 0, mask, words) / 2)
        assert collector.report()[0]["malformed"] == len(effects)
    assert 25 <= refused < 60


KINDS = [kind for kind in active().of("compressors").usable() if kind != "none"]


class Adder:
    """A trainer whose steps add given vectors to the model."""

    def __init__(self, layout):
        self.layout, self.x = layout, np.zeros(layout.size, np.float32)

    def copy_to(self, out):
        out[:] = self.x


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["residual", "none", "nesterov"])
def test_what_was_sent_and_the_residual_add_up_to_all_steps(kind, memory):
    """With memory; without it, what the encoding loses is lost. Blocks are skipped and rounds missed on the way.

    With `nesterov` the steps that add up are those after the momentum, m = 0.9 m + Δ: Δ + 0.9 m.
    """
    keys = {"error_decay": 1} if kind in ("sparse_loco", "demo") and memory != "none" else {}
    run = small(
        topology={"servers": 1, "validators": 0, "workers": 1}, communication=compressed(kind, memory=memory, **keys)
    )
    packer = Packer(Peer("worker", 0), run, (Peer("server", 0),), LAYOUT, private)
    trainer, codec = Adder(LAYOUT), Codec.of(run.communication.compression, LAYOUT)
    generator = np.random.default_rng(2)
    sent, made, momentum, missed = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size), np.zeros(LAYOUT.size), 0
    for round in range(40):
        base, steps = trainer.x.copy(), generator.standard_normal(LAYOUT.size).astype(np.float32)
        trainer.x += steps
        made += trainer.x.astype(np.float64) - base
        if memory == "nesterov":
            momentum = 0.9 * momentum + trainer.x - base
            made += 0.9 * momentum
        packed = packer.pack(trainer, base, round, 0)
        missed += not packed.parts
        for part in (packer.encode(packed, place) for place in range(len(packed.parts))):
            values = codec.decode(LAYOUT, 0, part.mask, part.payload)
            sent[LAYOUT.spread(part.mask)] += values
    assert 4 < missed < 25
    lost = np.abs(sent + packer.memory.values - made).max()
    # Each round adds and subtracts float32 values of a size of some tens; those of the momentum are ten times as large.
    bound = 40 * 4 * 2.0**-24 * (640 if memory == "nesterov" else 64)
    assert (lost < bound) == (memory != "none"), lost
    assert isinstance(packer.memory, ErrorFeedback) == (memory != "none")


@pytest.mark.parametrize("kind", ["randomk", "dithering", "qsgd", "powersgd"])
def test_an_update_that_an_adversary_replaces_is_encoded_once(kind):
    """The codes are those of the other values alone, whose error the worker does not keep."""
    run = small(
        topology={"servers": 1, "validators": 0, "workers": 1},
        communication={"participation": 1, "skip_rate": 0.3, "compression": kind},
        attack={"kind": "ipm", "rate": 0.4, "epsilon": 1.5},
    )
    layout = Layout.of([("a", (60, 30)), ("b", (3,)), ("c", (700,))])
    packer = Packer(Peer("worker", 0), run, (Peer("server", 0),), layout, private)
    trainer, codec = Adder(layout), Codec.of(run.communication.compression, layout)
    generator = np.random.default_rng(2)
    for round in range(8):
        base, kept = trainer.x.copy(), packer.memory.values.copy()
        trainer.x += generator.standard_normal(layout.size).astype(np.float32)
        packed = packer.pack(trainer, base, round, 0)
        other = generator.standard_normal(packed.payload.size).astype(np.float32)
        part = packer.encode(packer.crafted(packed, other), 0)
        room = np.empty(codec.most_elements(layout, 0), np.float32)
        np.testing.assert_array_equal(part.payload, codec.encode(layout, 0, packed.mask, other, room))
        there = layout.spread(packed.mask)
        assert not packer.memory.values[there].any()
        np.testing.assert_array_equal(packer.memory.values[~there], (kept + (trainer.x - base))[~there])


@pytest.mark.parametrize("kind", ["fp16", "int8", "onebit", "topk", "randomk"])
def test_estimates_of_ef21_are_those_of_the_worker_and_approach_its_update(kind):
    """The update is the same in each round. The combiner's values are the estimate; a block that is skipped waits."""
    keys = {"kind": kind, "memory": "ef21", **({"k": 0.1} if kind in ("topk", "randomk") else {})}
    run = small(
        topology={"servers": 1, "validators": 0, "workers": 1},
        communication={"participation": 0.8, "skip_rate": 0.2, "compression": keys},
    )
    peer, whole = Peer("worker", 0), Partition.of(LAYOUT, (0, LAYOUT.size))
    packer, decoder = Packer(peer, run, (Peer("server", 0),), LAYOUT, private), UpdateDecoder.of(run, LAYOUT)
    trainer, steps = Adder(LAYOUT), np.random.default_rng(2).standard_normal(LAYOUT.size).astype(np.float32)
    errors, broken = [], 0
    for round in range(80):
        trainer.x = steps.copy()
        trainer.x[: 100 if 40 <= round < 44 else 0] = np.nan
        packed = packer.pack(trainer, np.zeros_like(steps), round, 0)
        for part in (packer.encode(packed, place) for place in range(len(packed.parts))):
            values, reason = decoder(peer, part.mask, part.payload, whole)
            estimate = packer.state().arrays["estimate"]
            assert reason is None
            np.testing.assert_array_equal(decoder.state().arrays["0"], estimate)
            if np.isnan(values).any():
                assert not estimate[:600].any(), "the block begins anew"
                broken += 1
            else:
                np.testing.assert_array_equal(values, estimate[LAYOUT.spread(part.mask)])
            errors.append(np.linalg.norm(estimate - steps) / np.linalg.norm(steps))
    assert broken
    assert errors[28] < (0.4 if kind == "randomk" else 0.1), "before"
    assert errors[-1] < (0.4 if kind == "randomk" else 0.1), "after"
    assert max(errors[32:40]) > 0.5
    assert not isinstance(packer.memory, ErrorFeedback)

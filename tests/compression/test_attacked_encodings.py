"""Attacks that act on what is encoded: what combiners decode, what the attacker keeps, and whole runs."""

import numpy as np
import pytest
from interrupted import model, play, play_through, records, small

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.compression import Codec
from hpcps.numerics.layout import Layout, private
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.roles.update.packer import Packer
from hpcps.seeds import generator

LAYOUT = Layout.of([("a", (60, 30)), ("b", (3,)), ("c", (700,)), ("d", (500,))])
WHOLE = Partition.of(LAYOUT, (0, LAYOUT.size))
SERVER = (Peer("server", 0),)


class Steps:
    """A trainer whose steps add given vectors to the model."""

    def __init__(self):
        self.x = np.zeros(LAYOUT.size, np.float32)

    def copy_to(self, out):
        out[:] = self.x


def run_with(compression, attack):
    return small(
        topology={"servers": 1, "validators": 0, "workers": 2},
        communication={"participation": 0.8, "skip_rate": 0.3, "compression": compression},
        attack=attack,
    )


def received(packer, packed, decoder, round):
    """Return what a combiner reads of an update, `[d]`; skipped blocks are zero."""
    found = np.zeros(LAYOUT.size, np.float32)
    for part in packed.parts:
        values, reason = decoder(Peer("worker", 0), part.mask, part.payload, WHOLE)
        assert reason is None
        found[LAYOUT.spread(part.mask)] = values
    return found


@pytest.mark.parametrize("compression", ["int8", "topk", "onebit", "qsgd", "powersgd", "fp16", "lossless"])
@pytest.mark.parametrize(("kind", "factor"), [("negative", -6), ("sign_flip", -1)])
def test_what_combiners_decode(kind, factor, compression):
    """Attacked blocks: the honest encoding is decoded, attacked and encoded once more. The rest is honest."""
    honest_run = run_with(compression, {"kind": "none"})
    run = run_with(compression, {"kind": kind, "rate": 0.5, "acts_on": "encoding"})
    honest, packer = (Packer(Peer("worker", 0), each, SERVER, LAYOUT, private) for each in (honest_run, run))
    compressor = run.communication.compression
    second, decoder = Codec(compressor, LAYOUT), UpdateDecoder.of(run, LAYOUT)
    choice = generator(run.seed, "worker", 0, "attacked blocks")
    random, trainer = np.random.default_rng(2), Steps()
    attacks = 0
    for round in range(12):
        base = trainer.x.copy()
        trainer.x += random.standard_normal(LAYOUT.size).astype(np.float32)
        plain = honest.pack(trainer, base, round, 0)
        encoded = [honest.encode(plain, place) for place in range(len(plain.parts))]
        packed = packer.pack(trainer, base, round, 0)
        chosen = choice.random(len(LAYOUT.blocks)) < 0.5
        np.testing.assert_array_equal(packer.memory.values, honest.memory.values, "as that of an honest worker")
        assert len(packed.parts) == len(encoded)
        if not packed.parts:
            continue
        (part,) = encoded
        expected = np.zeros(LAYOUT.size, np.float32)
        expected[LAYOUT.spread(part.mask)] = Codec(compressor, LAYOUT).decode(LAYOUT, 0, part.mask, part.payload)
        attacked = chosen & part.mask
        there = LAYOUT.spread(attacked)
        room = np.empty(second.most_elements(LAYOUT, 0), np.float32)
        values = np.float32(factor) * expected[there]
        expected[there] = second.decode(LAYOUT, 0, attacked, second.encode(LAYOUT, 0, attacked, values, room))
        np.testing.assert_array_equal(received(packer, packed, decoder, round), expected)
        assert packed.attacked == attacked.sum()
        attacks += packed.attacked
    assert attacks > 5


@pytest.mark.parametrize("compression", ["int8", "qsgd", "topk"])
def test_an_adversary_sees_what_combiners_decode(compression):
    run = run_with(compression, {"kind": "ipm", "rate": 0.5, "scope": "worker", "acts_on": "encoding"})
    packer = Packer(Peer("worker", 0), run, SERVER, LAYOUT, private)
    decoder, second = UpdateDecoder.of(run, LAYOUT), Codec(run.communication.compression, LAYOUT)
    random, trainer, seen = np.random.default_rng(2), Steps(), 0
    for round in range(8):
        base = trainer.x.copy()
        trainer.x += random.standard_normal(LAYOUT.size).astype(np.float32)
        packed = packer.pack(trainer, base, round, 0)
        if not packed.parts:
            continue
        there, kept = LAYOUT.spread(packed.mask), packer.memory.values.copy()
        np.testing.assert_array_equal(received(packer, packed, decoder, round)[there], packed.payload)
        other = random.standard_normal(packed.payload.size).astype(np.float32)
        room = np.empty(second.most_elements(LAYOUT, 0), np.float32)
        words = second.encode(LAYOUT, 0, packed.mask, other, room)
        (part,) = packer.crafted(packed, other).parts
        np.testing.assert_array_equal(part.payload, words)
        np.testing.assert_array_equal(packer.memory.values, kept)
        seen += 1
    assert seen > 3


SHORT = {"epochs": 2, "batch_size": 16, "local_steps": 3, "optimizer": {"lr": 0.05}}


@pytest.mark.sample(1, 2)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "attack"), [("fp16", "nan"), ("fp16", "gaussian"), ("int8", "alie"), ("qsgd", "negative")]
)
def test_servers_partitions_and_validators_do_not_show(kind, attack, tmp_path):
    models = []
    for number, (servers, validators, partition) in enumerate(((1, 0, "auto"), (3, 0, 4096), (2, 1, 4096))):
        run = small(
            topology={"servers": servers, "validators": validators, "workers": 3},
            transport={"partition": partition},
            train=SHORT,
            validation={"rule": {"kind": "median"}},
            communication={"participation": 0.7, "skip_rate": 0.3, "compression": kind},
            attack={"kind": attack, "rate": 0.4, "acts_on": "encoding"},
        )
        assert play(run, tmp_path / str(number))
        models.append(model(tmp_path / str(number)))
    for other in models[1:]:
        np.testing.assert_array_equal(other, models[0])
    assert np.isfinite(models[0]).all()
    before = run.model_copy(update={"attack": run.attack.model_copy(update={"acts_on": "update"})})
    assert play(before, tmp_path / "before")
    assert not np.array_equal(model(tmp_path / "before"), models[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "train", [SHORT, {**SHORT, "mode": "async"}, {**SHORT, "quorum": 2}], ids=["sync", "async", "quorum"]
)
@pytest.mark.parametrize("attack", ["negative", "ipm"])
def test_every_mode_of_training_ends(train, attack, tmp_path):
    run = small(
        topology={"servers": 2, "validators": 0, "workers": 3},
        train={**SHORT, **train},
        validation={"rule": {"kind": "naive_async" if "mode" in train else "median"}},
        communication={"compression": "int8"},
        attack={"kind": attack, "rate": 0.4, "acts_on": "encoding"},
    )
    assert play(run, tmp_path)
    assert np.isfinite(model(tmp_path)).all()
    lines = [line for k in range(3) for line in records(tmp_path, f"worker-{k}") if line["event"] == "round"]
    assert any(line["blocks_attacked"] for line in lines)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["gaussian", "alie"])
def test_ends_as_if_nothing_had_happened(attack, tmp_path):
    """The random numbers of the second encoding are in checkpoints, too."""
    run = small(
        topology={"servers": 2, "validators": 0, "workers": 3},
        communication={"compression": "qsgd"},
        attack={"kind": attack, "rate": 0.4, "acts_on": "encoding"},
    )
    assert play(run, tmp_path / "whole")
    play_through(run, tmp_path / "cut", [300] * 6)
    np.testing.assert_array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))

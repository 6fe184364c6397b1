"""Rules that see whole gradients, and simulated attackers: the bits of the rule alone, and those of an experiment."""

import numpy as np
import pytest
from interrupted import small
from members import Members

from hpcps.attacks import Alie, Negative, Random, attackers
from hpcps.compression import Codec
from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import ADVERSARY
from hpcps.registry import active
from hpcps.roles.knowledge import Knowledge
from hpcps.roles.resources import ALONE
from hpcps.roles.update.packer import Packer
from hpcps.rules import Bulyan, CenteredClipping, Context, Dnc, GeometricMedian, Krum, Median
from hpcps.seeds import generator
from hpcps.session.reduction import table_of
from hpcps.session.tensors import Declaration

BLOCKS = (20_000, 7, 3)


def updates(seed, workers=7):
    return np.random.default_rng(seed).standard_normal((workers, sum(BLOCKS)), dtype=np.float32)


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("rule", [Krum(f=2), Bulyan(f=1), GeometricMedian(), CenteredClipping(), Dnc(f=1)])
def test_a_rule_that_sees_whole_vectors_combines_as_it_does_outside(rule, servers):
    members, context = Members(7, servers), Context(random=generator(0, "server", 0, "rule"))
    for step in range(3):
        rows = updates(step)
        wanted = rule(rows, blocks=BLOCKS, context=context)
        for result in members.combine(list(rows), table_of(rule), blocks=BLOCKS):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("size", [100, 50_000])
def test_tensors_of_such_a_rule_are_not_combined_together(size):
    members, rows = Members(4), np.random.default_rng(1).standard_normal((2, 4, size), dtype=np.float32)
    targets = [[np.zeros(4 * size, np.uint8) for _ in range(2)] for _ in range(4)]
    for k, member in enumerate(members.workers):
        tensors = [member.declare(Declaration(f"t{t}", "float32", ((size,),), table_of("krum"))) for t in range(2)]
        for t, tensor in enumerate(tensors):
            member.start(tensor, [rows[t][k].view(np.uint8)], [targets[k][t]])
    members.run()
    for t in range(2):
        for k in range(4):
            np.testing.assert_array_equal(targets[k][t].view(np.float32), Krum()(rows[t]))


@pytest.mark.parametrize(
    "attack",
    [
        {"kind": "gaussian", "rate": 0.3},
        {"kind": "random", "rate": 0.5, "scope": "worker", "every": 3, "on": 2},
        {"kind": "alie", "rate": 0.3, "scope": "worker", "every": 2},
        {"kind": "mimic", "rate": 0.3, "scope": "worker"},
    ],
    ids=lambda attack: attack["kind"],
)
def test_attackers_have_the_bits_of_an_experiment(attack):
    run = small(
        attack=attack, topology={"workers": 7, "validators": 0, "servers": 1},
        validation={"rule": {"kind": "median"}}, seed=3,
    )  # fmt: skip
    names = [(f"b{b}", (size,)) for b, size in enumerate(BLOCKS)]
    layout, members = Layout.of(names), Members(7)
    packers = [Packer(Peer("worker", k), run, (Peer("server", 0),), layout, np.zeros) for k in range(7)]
    known = None
    if run.attack.omniscient:
        known = Knowledge(ADVERSARY, run, layout.to_json(), 2, ALONE)
    reduction = {**table_of("median"), "attack": attack, "seed": 3}
    changed = 0
    for round in range(4):
        rows, sent = updates(round), np.ones(3, bool)
        attacked = rows.copy()
        for k, packer in enumerate(packers):
            packer.attacker.corrupt(attacked[k], sent, round, 0)
        if known is not None:
            (group,) = known.groups
            for k in range(7):
                group.put(k, sent, rows[k])
            for k, payload in group.craft(round, [k for k in range(7) if known.attacks(k, round, 0)]).items():
                attacked[k] = payload
            group.clear()
        changed += int((attacked != rows).any(axis=1).sum())
        for result in members.combine(list(rows), reduction, blocks=BLOCKS):
            np.testing.assert_array_equal(result, Median()(attacked, blocks=BLOCKS))
    assert changed >= 2


@pytest.mark.parametrize(
    ("rule", "attack", "reason"),
    [
        ("zeno", None, "needs the reference of a validator"),
        ("loss_score", None, "needs the loss of a validator"),
        ("median", {"kind": "label_flip"}, "does not change updates"),
        ("median", {"kind": "late"}, "does not change updates"),
        ("median", {"kind": "free_rider"}, "needs the model"),
        ("median", {"kind": "random", "from_epoch": 2}, "remove from_epoch"),
        ("median", {"kind": "randon"}, r"^attack.kind: .*random"),
        ("median", {"kind": "alie", "rate": 3}, r"^attack.*rate"),
        ("median", {"kind": "alie", "acts_on": "encoding"}, "no gradient is encoded"),
    ],
)
def test_what_a_session_cannot_do_is_refused(rule, attack, reason):
    table = table_of(rule) | ({} if attack is None else {"attack": attack, "seed": 0})
    with pytest.raises(SpecError, match=reason):
        Members(4).workers[0].declare(Declaration("x", "float32", ((3,),), table))


@pytest.mark.parametrize("kind", ["int8", "qsgd"])
def test_an_attack_on_compressed_gradients_changes_what_is_decoded(kind):
    """One of three workers attacks: the rule gets its decoded gradient times -2, encoded once more."""
    attack = {"kind": "negative", "scale": 2, "rate": 0.4, "scope": "worker", "acts_on": "encoding"}
    compression = {"kind": kind, "memory": "none", "min_bytes": 0}
    reduction = {**table_of("median"), "attack": attack, "seed": 3, "compression": compression}
    (attacker,) = attackers(Negative(rate=0.4, scope="worker"), 3, 3)
    members, layout = Members(3), Layout.of([(f"b{b}", (size,)) for b, size in enumerate(BLOCKS)])
    compressor = active().of("compressors").usable()[kind](memory="none", min_bytes=0)
    codecs = [Codec(compressor, layout) for _ in range(4)]

    def read(values, codec):
        room, whole = np.empty(codec.most_elements(layout, 0), np.float32), np.ones(3, bool)
        return codec.decode(layout, 0, whole, codec.encode(layout, 0, whole, values, room))

    for step in range(3):
        rows = updates(step, workers=3)
        decoded = np.stack([read(row, codec) for row, codec in zip(rows, codecs, strict=False)])
        decoded[attacker] = read(-2 * decoded[attacker], codecs[3])
        for result in members.combine(list(rows), reduction, blocks=BLOCKS):
            np.testing.assert_array_equal(result, Median()(decoded, blocks=BLOCKS))


def test_the_table_of_an_attack():
    assert table_of(Random(rate=0.3), "attack")["kind"] == "random"
    assert table_of(Alie(), "attack")["kind"] == "alie"
    with pytest.raises(SpecError, match="attack must be the name"):
        table_of(3, "attack")

"""Neither partitions nor shards change what a rule makes of updates: one call always gets all of its `granularity`.

Where that cannot be, the experiment file has a mistake.
"""

import functools
import itertools
import json
from typing import ClassVar, Literal

import numpy as np
import pytest

from hpcps.attacks.base import Attack
from hpcps.data.sets import Digits
from hpcps.execution.inprocess import run_in_process
from hpcps.execution.role_factory import PARTITION, spread
from hpcps.numerics.blocks import mean
from hpcps.numerics.layout import Layout
from hpcps.numerics.operations import put
from hpcps.protocol.roster import partitioning_of
from hpcps.records.run_directory import RunDirectory
from hpcps.registry import active
from hpcps.rules import Arc, AsyncRule, Average, Bucketing, Cge, Decision, Dnc, Median, Nnm, Rule, TrimmedMean, Zeno
from hpcps.rules.base import Granularity
from hpcps.spec.checks import contradictions
from hpcps.spec.schema import Run

SIZES = ("auto", 2112, 16384)
SERVERS_AND_SIZES = ((1, 2112), (1, 16384), (3, "auto"), (3, 2112))
"""Partitions that cut blocks and that hold several, and shards that do; one server without partitions is the norm."""
RADIUS = 0.02


def scales(values, layout, sees):
    """Return by what each block of each update is multiplied, so that no block, or no update, is longer than RADIUS."""
    edges = layout.offsets if sees == "block" else layout.offsets[[0, -1]]
    parts = [*itertools.pairwise(edges.tolist())]
    norms = np.array([[np.sqrt(np.sum(row[a:b].astype(np.float64) ** 2)) for a, b in parts] for row in values])
    blocks = len(layout.blocks)
    return np.broadcast_to(RADIUS / np.maximum(norms.reshape(len(values), -1), RADIUS), (len(values), blocks))


class ClippedMean(Rule):
    """The mean of the updates, each scaled down to norm RADIUS; as it says nothing, it is for whole updates."""

    kind: Literal["clipped_mean"] = "clipped_mean"

    def combine(self, updates, context):
        """See `Rule.combine`; what is scaled down does not count as accepted."""
        layout = updates.layout
        values = updates.tile(slice(0, layout.size))
        factors = scales(values, layout, self.granularity)
        clipped = [np.repeat(row, layout.sizes) * value for row, value in zip(factors, values, strict=True)]
        return put(updates, mean(clipped, len(updates)) if clipped else np.zeros(1), factors == 1.0)


class ClippedMeanOfBlocks(ClippedMean):
    """The same, block by block."""

    granularity: ClassVar[Granularity] = "block"


class AsyncClipped(AsyncRule):
    """Clips each block of an update."""

    granularity: ClassVar[Granularity] = "block"
    kind: Literal["clipped"] = "clipped"

    def decide(self, update, context):
        """See `AsyncRule.decide`."""
        update *= np.repeat(scales(update[None, :], context.layout, self.granularity)[0], context.layout.sizes)
        return Decision.accept(context.sent)


class OneNaN(Attack):
    """Spoils the last element of a block."""

    kind: Literal["one_nan"] = "one_nan"

    def corrupt(self, block, context):
        """See `Attack.corrupt`."""
        block[-1] = np.nan


# `mean` is another name of `average`.
RULES = {name: rule() for name, rule in active().of("rules").items() if rule.mode == "sync" and name != "mean"} | {
    "vector": ClippedMean(),
    "block": ClippedMeanOfBlocks(),
    "cge per block": Cge(f=1, per="block"),
    "arc, nnm, median": Median(before=[Arc(f=1), Nnm(f=1)]),
    "nnm per block, median": Median(before=[Nnm(f=1, per="block")]),
    "bucketing, dnc": Dnc(f=0, coordinates=50, before=[Bucketing(f=0)]),
    "median of sent": Median(skipped="left_out"),
    "zeno of sent": Zeno(skipped="left_out"),
}
WORKERS = 4


def spec(rule, validators, servers, partition="auto", workers=WORKERS, attack=None, **train):
    tables = {
        "name": "oracle",
        "topology": {"servers": servers, "validators": validators, "workers": workers},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 100, "test_limit": 20},
        "train": {"epochs": 2, "batch_size": 8, "optimizer": {"lr": 0.05}, **train},
        "communication": {"participation": 0.9, "skip_rate": 0.2} if workers > 1 else {},
        "transport": {"kind": "inproc", "partition": partition},
        "attack": {"kind": "random", "rate": 0.2},
    }
    run = Run.model_validate(tables)
    validation = run.validation.model_copy(update={"rule": rule})
    return run.model_copy(update={"validation": validation, "attack": attack or run.attack})


def play(folder, run):
    """Return the final model and, of every combiner, what its rounds counted."""
    directory = RunDirectory(folder)
    directory.create({"run_id": "run"})
    run_in_process(run.identified("run"), directory)
    topology = run.topology
    counts = []
    for index in range(topology.validators or topology.servers):
        record = folder / f"records/{'validator' if topology.validators else 'server'}-{index}.jsonl"
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        counts.append([{key: line[key] for key in line if counted(key)} for line in lines if line["event"] == "round"])
    return np.concatenate([np.load(folder / f"final/server-{s}.npy") for s in range(topology.servers)]), counts


def counted(key):
    return key.endswith("_pairs") or key in (
        "participants",
        "absent",
        "rejected_blocks",
        "blocks_below_bound",
        "kept_out",
        "acceptance_rate",
    )


@pytest.fixture(autouse=True)
def data(monkeypatch):
    """Every role opens the data set, which takes longer than its training."""
    monkeypatch.setattr(Digits, "open", functools.cache(Digits.open))


def test_servers_agree_which_blocks_are_not_finite(tmp_path):
    """A block that two servers share is refused by both, also if only one has a value that is not finite."""
    models, counts = zip(
        *(play(tmp_path / str(servers), spec(Average(), 0, servers, attack=OneNaN(rate=0.5))) for servers in (1, 2, 3)),
        strict=True,
    )
    assert sum(line["rejected_blocks"] for line in counts[0][0]) > 0
    for model in models[1:]:
        np.testing.assert_array_equal(model, models[0])


CASES = [
    (name, validators)
    for name, validators in itertools.product(RULES, (0, 1, 2))
    if validators or not {"reference", "loss"} & RULES[name].requires
    if not RULES[name].refusal(WORKERS // max(validators, 1))
    # Validators cut updates as a single server does, so a few rules are played with every number of validators.
    if name in ("average", "zeno", "block", "vector", "median of sent") or validators == bool(RULES[name].needs)
]


@pytest.mark.sample(2, 10)
@pytest.mark.parametrize(("name", "validators"), CASES)
def test_the_result_is_that_of_whole_updates(tmp_path, name, validators):
    rule = RULES[name]
    whole, expected = play(tmp_path / "whole", spec(rule, validators, 1))
    assert np.isfinite(whole).all()
    allowed, of_servers = [], {1: expected}
    for servers, size in SERVERS_AND_SIZES:
        run = spec(rule, validators, servers, size)
        if contradictions(run):
            continue
        allowed.append((servers, size))
        model, counts = play(tmp_path / f"{servers}-{size}", run)
        np.testing.assert_array_equal(model, whole, err_msg=f"{servers} servers, partition {size}")
        # Each of several servers that combine counts the pairs of its own blocks.
        assert counts == of_servers.setdefault(servers, expected if validators else counts), (servers, size)
    several = rule.scope != "vector" or validators > 0
    assert allowed == [pair for pair in SERVERS_AND_SIZES if several or pair[0] == 1]


def test_the_rules_of_these_tests_clip_and_differ(tmp_path):
    """Otherwise the comparison would say nothing."""
    played = {name: play(tmp_path / name, spec(RULES[name], 0, 1)) for name in ("average", "vector", "block")}
    for one, other in itertools.combinations(played, 2):
        assert not np.array_equal(played[one][0], played[other][0]), (one, other)
    rates = [line["acceptance_rate"] for line in played["block"][1][0]]
    assert any(0 < rate < 1 for rate in rates)


def test_a_vector_stays_whole_between_hosts():
    layout = Layout.of([("w", (300, 1000)), ("b", (1000,))])
    cases = (
        (ClippedMean(), "auto", "auto", 1),
        (ClippedMean(), 4096, "auto", 1),
        (ClippedMeanOfBlocks(), "auto", PARTITION, 2),
    )
    for rule, given, size, partitions in cases:
        run = spread(spec(rule, 1, 2, given), hosts=2)
        assert run.transport.partition == size
        assert len(partitioning_of(run, layout).updates[0]) == partitions
    assert len(partitioning_of(spread(spec(RULES["median"], 1, 2), hosts=2), layout).updates[0]) == 4


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (spec(ClippedMean(), 0, 2), "validation.rule: clipped_mean sees whole updates, but with "
         "topology.validators = 0 each of the 2 servers gets only a part of them: use a validator, or one server"),
        (spec(Median(before=[Nnm()]), 0, 2), "validation.rule: median after nnm sees whole updates, but with "
         "topology.validators = 0 each of the 2 servers gets only a part of them: use a validator, or one server"),
    ],
)  # fmt: skip
def test_what_a_rule_cannot_see_is_a_mistake(run, expected):
    assert [f"{'.'.join(problem.path)}: {problem.message}" for problem in contradictions(run)] == [expected]


@pytest.mark.sample(1)
@pytest.mark.parametrize("validators", [0, 1])
def test_a_block_that_is_not_finite_is_refused_whole(tmp_path, validators):
    """Also where a partition of it is finite: here the last element of a block is spoilt."""
    attack = OneNaN(rate=0.3)
    played = [play(tmp_path / str(size), spec(RULES["average"], validators, 2, size, attack=attack)) for size in SIZES]
    assert any(line["rejected_blocks"] for line in played[0][1][0])
    for model, counts in played[1:]:
        np.testing.assert_array_equal(model, played[0][0])
        assert counts == played[0][1]


@pytest.mark.parametrize("rule", [TrimmedMean(f=1), Cge(f=1)])
def test_rounds_below_the_bound_are_counted(tmp_path, rule):
    """Three updates are enough for f = 1; of fewer, one rule gives zero and the other a mean."""
    run = spec(rule, 1, 2)
    run = run.model_copy(update={"communication": run.communication.model_copy(update={"participation": 0.5})})
    for line in play(tmp_path, run)[1][0]:
        few = len(line["participants"]) < 3
        assert line["blocks_below_bound"] == (6 if few else 0)
        assert bool(line["accepted_pairs"]) == (not few or (rule.kind == "cge" and len(line["participants"]) == 2))


@pytest.mark.parametrize("size", SIZES)
def test_blocks_left_out_count_against_the_bound(tmp_path, size):
    """Block by block: where fewer than three workers sent the block, the trimmed mean accepts none."""
    run = spec(TrimmedMean(f=1, skipped="left_out"), 0, 1, size)
    communication = run.communication.model_copy(update={"participation": 1.0, "skip_rate": 0.4})
    _, counts = play(tmp_path, run.model_copy(update={"communication": communication}))
    below = [line["blocks_below_bound"] for line in counts[0]]
    assert 0 < max(below) <= 6
    for line, number in zip(counts[0], below, strict=True):
        out = functools.reduce(int.__or__, [int(mask, 16) for _, mask in line["kept_out"]], 0)
        assert number == out.bit_count(), "a block that somebody sent and nobody got in"


def test_servers_that_judge_blocks_have_whole_blocks(tmp_path):
    """Asynchronous, and without a validator; with one worker that always sends, nothing is left to chance."""
    models = [
        play(tmp_path / str(servers), spec(AsyncClipped(), 0, servers, workers=1, mode="async"))[0]
        for servers in (1, 2, 3)
    ]
    for model in models[1:]:
        np.testing.assert_array_equal(model, models[0])

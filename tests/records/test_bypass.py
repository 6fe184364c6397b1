"""Which attacked and which honest blocks entered the model: two records joined, against the masks inside the roles."""

import json

import numpy as np
import pytest
from small_experiment import small_experiment

import hpcps.roles.update.attacker as attacker_module
from hpcps.cli.main import main
from hpcps.records.bypass import COUNTS, Bypass, count_by_round
from hpcps.records.collect import collect
from hpcps.records.table import tabulate
from hpcps.roles.sync.partitions import PartitionCollector


def written(folder, rule, scope="worker", validators=1, servers=1, scale=5):
    """Write the experiment; return its file."""
    keys = {"seed": 3, "topology.servers": servers, "topology.validators": validators, "topology.workers": 6}
    keys |= {"data.limit": 300, "train.local_steps": 2}
    keys |= {"communication.participation": 0.8, "communication.skip_rate": 0.3}
    keys |= {"attack.kind": "random", "attack.scale": scale, "attack.rate": 0.4, "attack.scope": scope}
    file = folder / "bypass.toml"
    file.write_text(small_experiment("bypass", keys, f"validation.rule = {rule}"))
    return str(file)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("rule", "scope", "validators", "servers", "scale"),
    [
        ('{ kind = "krum", f = 1 }', "worker", 1, 1, 5),
        ('{ kind = "cge", f = 1, per = "block" }', "block", 2, 1, 5),
        ('{ kind = "average" }', "block", 0, 3, 1e60),  # infinite in float32
        ('{ kind = "cge", f = 2, per = "block" }', "block", 0, 2, 5),
    ],
)
def test_the_joined_counts_are_those_of_the_masks(tmp_path, monkeypatch, rule, scope, validators, servers, scale):
    """What the packer attacked and what the rule accepted, watched inside the roles."""
    attacked, let_in = watch(monkeypatch)
    file = written(tmp_path, rule, scope, validators, servers, scale)
    assert main(["run", file, "--results", str(tmp_path)]) == 0
    table = collect(tmp_path / "bypass").table
    rows = table[(table["event"] == "round") & (table["role"] == "worker")]
    seen = set()
    for row in rows.itertuples():
        bad, sent = attacked.get((row.index, row.round), (None, None))
        counts = [getattr(row, name) for name in COUNTS]
        if bad is None:
            assert counts == [0, 0, 0, 0]
            continue
        entered = sent & let_in.get((row.round, row.index), np.zeros_like(sent))
        expected = [bad.sum(), (bad & entered).sum(), (sent & ~bad).sum(), (sent & ~bad & entered).sum()]
        assert counts == expected, (row.round, row.index)
        seen.add(tuple(expected))
    assert len(seen) > 2


def watch(monkeypatch):
    """Return what the packers attack, `(attacked, sent)` by worker and round, and the blocks that entered the model."""
    attacked, let_in = {}, {}
    choose, report = attacker_module.attacked_blocks, PartitionCollector.report

    def attacked_blocks(attack, sent, worker, *rest):
        chosen = choose(attack, sent, worker, *rest)
        attacked[worker, sum(other == worker for other, _ in attacked)] = chosen.copy(), sent.copy()
        return chosen

    def watched_report(collector):
        collector.rounds = getattr(collector, "rounds", -1) + 1
        for row, peer in enumerate(collector._share):
            if peer.role == "worker" and collector._present[row]:
                blocks = let_in.setdefault((collector.rounds, peer.index), np.ones(6, np.bool_))
                accepted = ~collector._outcomes.kept_out[row]
                blocks[collector._first_block :][: len(accepted)] &= accepted
        return report(collector)

    monkeypatch.setattr(attacker_module, "attacked_blocks", attacked_blocks)
    monkeypatch.setattr(PartitionCollector, "report", watched_report)
    return attacked, let_in


def a_run(**changes):
    """Return the lines of a combiner and of two workers in round 0, the second of which is absent from it."""
    combiner = {"event": "round", "role": "validator", "index": 0, "round": 0, "participants": [0], "kept_out": []}
    worker = {"event": "round", "role": "worker", "round": 0, "blocks_sent": 5, "blocks_attacked": 2, "attacked": "6"}
    return combiner | changes, {**worker, "index": 0}, {**worker, "index": 1}


def joined(combiner, *workers):
    bypass = Bypass()
    bypass.join([combiner])
    bypass.join(workers)
    return [[worker.get(name) for name in COUNTS] for worker in workers]


def test_a_worker_whose_update_was_not_received_let_nothing_in():
    assert joined(*a_run()) == [[2, 2, 3, 3], [2, 0, 3, 0]]
    combiner, *workers = a_run()
    assert joined(combiner, workers[1] | {"blocks_sent": 0}) == [[0, 0, 0, 0]], "the attack withholds the update"
    assert joined(*a_run(kept_out=[[0, "1c"]])) == [[2, 1, 3, 1], [2, 0, 3, 0]]


def test_a_round_has_no_counts_if_one_combiner_does_not_know_what_it_kept_out():
    combiner, *workers = a_run()
    other = combiner | {"index": 1, "participants": [1], "kept_out": None}
    for combiners in ([combiner, other], [other, combiner]):
        bypass = Bypass()
        bypass.join([*combiners, combiner | {"round": 1}])
        lines = [*workers, workers[0] | {"round": 1}]
        bypass.join(lines)
        assert [[line.get(name) for name in COUNTS] for line in lines] == [[None] * 4, [None] * 4, [2, 2, 3, 3]]


@pytest.mark.parametrize("kept_out", [[[0, 3]], [[0]], ["0"], [[None, "1"]], [[0, "-1"]], [[0, "zz"]], [3]])
def test_damaged_records_are_no_reason_to_fail(kept_out):
    assert joined(*a_run(kept_out=kept_out))[0] == [2, 2, 3, 3]
    assert joined(*a_run(participants=7))[0] == [None] * 4
    assert joined(*a_run(round="0"))[0] == [None] * 4


def test_old_records_have_no_counts_and_no_rows():
    combiner, *workers = a_run()
    del combiner["kept_out"]
    assert joined(combiner, *workers) == [[None] * 4] * 2
    assert count_by_round(tabulate([combiner, *workers])).empty


def test_evaluations_have_the_totals_before_their_model(tmp_path):
    assert main(["run", written(tmp_path, '{ kind = "krum" }'), "--results", str(tmp_path)]) == 0
    table = collect(tmp_path / "bypass").table
    rounds = table[(table["event"] == "round") & (table["role"] == "worker")]
    rows = table[table["event"] == "bypass"].set_index("round")
    assert rows[[*COUNTS]].equals(rounds.groupby("round")[[*COUNTS]].sum())
    assert rows["byzantine_sent"].sum() > rows["byzantine_entered"].sum()
    evaluations = table[table["event"] == "evaluation"]
    assert len(evaluations) == 2
    for evaluation in evaluations.itertuples():
        before = rows.loc[rows.index < evaluation.round, [*COUNTS]].sum()
        assert [getattr(evaluation, f"{name}_total") for name in COUNTS] == [before[name] for name in COUNTS]
    assert not {"kept_out", "attacked"} & {*table}
    records = "".join(path.read_text() for path in tmp_path.glob("bypass/runs/*/records/validator-0.jsonl"))
    lines = [json.loads(line) for line in records.splitlines()]
    assert any(line.get("kept_out") for line in lines)
    assert not any("attack" in key for line in lines for key in line), "a validator does not know who is Byzantine"

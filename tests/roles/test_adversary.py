"""The adversary: what it is shown, what it makes of it, and that nobody else notices.

The trainers halve the distance to their target in each step, so that every update is known in advance.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pytest
from toy_trainers import Quadratic, changed, everyone, play, spec

from hpcps.attacks import Ipm, NoAttack, Omniscient, attackers
from hpcps.errors import RunError
from hpcps.execution.role_factory import make_role
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import (
    Absent,
    Copy,
    CraftedUpdate,
    Description,
    Flag,
    ModelPartition,
    Peer,
    Statistics,
    WriteCheckpoint,
)
from hpcps.protocol.received import Received
from hpcps.protocol.roster import ADVERSARY
from hpcps.roles.events import Compute, Computed, Send

LAYOUT = Layout.of([("a", (3,)), ("b", (2,)), ("c", (4,))])
SYNC = {"mode": "sync"}


class Probe(Omniscient):
    """Notes what it gets, and sends minus the sum of the honest updates and of what it would send."""

    needs: ClassVar[frozenset] = frozenset({"honest", "own"})

    kind: Literal["probe"] = "probe"
    seen: ClassVar[list] = []

    def craft(self, honest, own, context):
        """See `Omniscient.craft`."""
        self.seen.append((honest.copy(), own.copy(), context))
        context.state["rounds"] = context.state.setdefault("rounds", 0) + 1
        return -honest.sum(axis=0) - own


class Endless(Omniscient):
    """Sends values that are not finite."""

    kind: Literal["endless"] = "endless"

    def craft(self, honest, own, context):
        """See `Omniscient.craft`."""
        return np.full(honest.shape[1], np.inf)


@pytest.fixture(autouse=True)
def probe():
    Probe.seen.clear()
    return Probe.seen


def game(attack, *, rule="average", train=SYNC, epochs=4, **tables):
    """Return a run with this attack."""
    run = spec(rule, train={**train, "epochs": epochs}, **tables)
    return run.model_copy(update={"attack": attack})


class Wire:
    """An endpoint that notes all messages that a role sends, and may change them."""

    def __init__(self, me, inner, noted, change=None):
        self.me, self.inner, self.noted, self.change, self.traffic = me, inner, noted, change, inner.traffic

    def send(self, to, envelope):
        for sent in [envelope] if self.change is None else self.change(self.me, to, envelope):
            message = sent.message if sent.payload is None else replace(sent.message, values=sent.payload.copy())
            self.noted.append((self.me, to, message))
            self.inner.send(to, sent)

    def receive(self):
        return self.inner.receive()


def watched(path, run, change=None):
    """Play a run; return it and all messages: sender, receiver, message."""
    noted = []
    trainers = {peer: Quadratic(LAYOUT, 2.0 ** (peer.index + 1), steps_per_epoch=1) for peer in everyone(run)}
    return play(path, run, trainers, lambda peer, inner: Wire(peer, inner, noted, change)), noted


def test_ipm_is_what_a_plain_transcription_makes_of_it(tmp_path):
    run = game(Ipm(epsilon=0.5, rate=0.25), workers=4, validators=0, servers=2)
    played, _ = watched(tmp_path, run)
    (bad,) = attackers(run.attack, 4, run.seed)
    model = np.float32(0)
    for _ in range(4):
        updates = [(np.float32(2.0 ** (k + 1)) - model) / 2 for k in range(4)]
        updates[bad] = np.float32(-0.5 * np.mean([u for k, u in enumerate(updates) if k != bad], dtype=np.float64))
        model += np.float32(sum(map(float, updates)) / 4)
    np.testing.assert_allclose(played.model, np.full(LAYOUT.size, model), rtol=1e-6)
    rounds = played.lines("adversary-0", "round")
    assert [line["round"] for line in rounds] == [0, 1, 2, 3]
    assert all(line["replaced"] == [bad] and line["shown"] == [0, 1, 2, 3] for line in rounds)
    assert played.lines("adversary-0", "end")[0]["reason"] == "finished"


@pytest.mark.parametrize(("validators", "shares"), [(0, [(0, 1, 2, 3, 4)]), (2, [(0, 2, 4), (1, 3)])])
def test_an_attack_gets_the_participants_of_one_combiner(tmp_path, probe, validators, shares):
    communication = {"participation": 0.6, "skip_rate": 0.3}
    attack = Probe(rate=0.4)
    run = game(attack, workers=5, validators=validators, epochs=12, communication=communication)
    _, noted = watched(tmp_path, run)
    bad = attackers(attack, 5, run.seed)
    assert len(probe) >= 6
    copies = {(m.round, who.index): m for who, to, m in noted if to == ADVERSARY and isinstance(m, Copy)}
    crafted = 0
    for honest, own, context in probe:
        share = next(share for share in shares if set(context.workers + context.byzantine) <= set(share))
        present = tuple(k for k in share if (context.round, k) in copies)
        assert context.workers == tuple(k for k in present if k not in bad)
        assert context.byzantine == tuple(k for k in present if k in bad)
        assert (context.n, context.f) == (len(present), len(context.byzantine))
        for rows, workers in ((honest, context.workers), (own, context.byzantine)):
            for row, worker in zip(rows, workers, strict=True):
                shown = copies[context.round, worker]
                np.testing.assert_array_equal(row[LAYOUT.spread(shown.mask)], shown.values)
                assert not row[~LAYOUT.spread(shown.mask)].any()
        crafted += context.f
    replaced = [m for who, _, m in noted if who == ADVERSARY and isinstance(m, CraftedUpdate) and m.mask is not None]
    assert len(replaced) == crafted
    assert max(int(context.state["rounds"]) for *_, context in probe) > 2, "its state is kept"
    assert len({int(context.round) for *_, context in probe if context.n < len(shares[0])}) > 1, "some are absent"


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("validators", [0, 1])
def test_it_sees_copies_only_and_nobody_else_notices_it(tmp_path, mode, validators):
    """Combiners get the messages that they get without an attack; only the values of Byzantine updates differ."""
    rule = {"sync": "average", "async": "naive_async"}[mode]
    if validators:
        rule = {"sync": "zeno", "async": "zeno++"}[mode]  # its validator has a reference, which is secret
    tables = {"workers": 4, "validators": validators, "servers": 2, "rule": rule, "train": {"mode": mode}, "epochs": 6}
    tables["communication"] = {"participation": 0.8, "skip_rate": 0.2}
    run = game(Ipm(rate=0.25, epsilon=1.0), **tables)
    played, noted = watched(tmp_path / "attacked", run)
    _, plain = watched(tmp_path / "plain", game(NoAttack(), **tables))
    coordinator = Peer("validator" if validators else "worker", 0)

    shown = {(who.role, m.kind) for who, to, m in noted if to == ADVERSARY}
    ends = {("server", "STOP")} if mode == "async" else set()
    assert shown == {(coordinator.role, "INIT"), ("worker", "COPY"), ("worker", "ABSENT")} | ends
    for who, to, message in noted:
        if to == ADVERSARY and not isinstance(message, Copy):
            assert message.payload is None, "the layout, the schedule, an absence, the end: no values"
        if who == ADVERSARY:
            assert (to.role, message.kind) == ("worker", "REPLACEMENT"), "combiners hear nothing of it"

    def forms(messages):
        inside = [(who, to, m) for who, to, m in messages if ADVERSARY not in (who, to)]
        if mode == "async":  # the order of arrivals is another one
            return {(who.role, to.role, m.kind) for who, to, m in inside}
        return sorted((str(who), str(to), type(m).__name__, facts_of(m)) for who, to, m in inside)

    def facts_of(message):
        """Return the fields of a message but for its values, as a text."""
        fields = {name: value for name, value in vars(message).items() if name != "values"}
        return str({name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in fields.items()})

    assert forms(noted) == forms(plain)
    (bad,) = attackers(run.attack, 4, run.seed)
    by_worker = {k: [m for who, _, m in noted if who == Peer("worker", k) and isinstance(m, Copy)] for k in range(4)}
    sent = {k: [m for who, _, m in noted if who == Peer("worker", k) and m.kind == "UPDATE"] for k in range(4)}
    for k in range(4):
        assert len(by_worker[k]) > 2
        if k != bad and validators:
            for copy, update in zip(by_worker[k], sent[k], strict=False):
                np.testing.assert_array_equal(copy.values, update.values)
    different = [
        not np.array_equal(copy.values, update.values) for copy, update in zip(by_worker[bad], sent[bad], strict=False)
    ]
    assert not validators or sum(different) > 1
    assert played.lines("worker-0", "round")


def test_its_bytes_are_counted_apart(tmp_path):
    tables = {"workers": 3, "validators": 1, "servers": 2, "communication": {"skip_rate": 0.3}}
    apart, _ = watched(tmp_path / "with", game(Ipm(rate=0.4), **tables))
    plain, _ = watched(tmp_path / "without", game(NoAttack(), **tables))
    names = ("bytes_sent", "bytes_received")
    for process in plain.records:
        got, want = (
            [sum(line.get(name, 0) for line in played.records[process]) for name in names] for played in (apart, plain)
        )
        assert got == want, process
    own = apart.records["adversary-0"]
    assert sum(line.get("bytes_sent", 0) + line.get("bytes_received", 0) for line in own) == 0
    received = sum(line.get("adversary_bytes_received", 0) for line in own)
    others = [line for process, lines in apart.records.items() for line in lines if process != "adversary-0"]
    assert received == sum(line.get("adversary_bytes_sent", 0) for line in others) > 3 * 4 * 9
    assert sum(line.get("adversary_bytes_sent", 0) for line in own) == sum(
        line.get("adversary_bytes_received", 0) for line in others
    )
    assert not any("adversary_bytes_sent" in line for lines in plain.records.values() for line in lines)


def test_asynchronously_it_uses_what_was_sent_last(tmp_path, probe):
    run = game(Probe(rate=0.34), rule="naive_async", train={"mode": "async"}, workers=3, epochs=8)
    _, noted = watched(tmp_path, run)
    (bad,) = attackers(run.attack, 3, run.seed)
    last, expected = {}, []
    for who, to, message in noted:
        if to == ADVERSARY and isinstance(message, Copy):
            last[who.index] = message.values
            if who.index == bad and len(last) > 1:
                expected.append((message.round, {k: v for k, v in last.items() if k != bad}, message.values))
    handled = probe[: len(expected)]
    assert len(handled) > 2
    for (honest, own, context), (cycle, others, mine) in zip(handled, expected, strict=False):
        assert context.round == cycle
        assert context.workers == tuple(sorted(others))
        np.testing.assert_array_equal(honest, [others[k] for k in sorted(others)])
        np.testing.assert_array_equal(own, [mine])


class Predicting(Omniscient):
    """Sends the negated mean of the honest updates, and notes what the rule will make of the round."""

    needs: ClassVar[frozenset] = frozenset({"rule"})
    kind: Literal["predicting"] = "predicting"
    seen: ClassVar[list] = []

    def craft(self, honest, own, context):
        """See `Omniscient.craft`."""
        sent = -honest.mean(axis=0)
        rows = {**dict(zip(context.workers, honest, strict=True)), **dict.fromkeys(context.byzantine, sent)}
        updates = np.stack([rows[k] for k in sorted(rows)])
        first, again = context.rule(updates), context.rule(updates)
        np.testing.assert_array_equal(first, again, err_msg="a trial changes no state")
        self.seen.append(first)
        return sent


@pytest.mark.parametrize(
    ("rule", "validators"),
    [
        ("median", 0),
        ({"kind": "centered_clipping", "radius": 0.5}, 1),
        ({"kind": "krum", "before": [{"kind": "nnm"}]}, 1),
    ],
)
def test_an_attack_can_try_the_rule_of_the_run(tmp_path, rule, validators):
    """Also a rule that remembers earlier rounds: the adversary knows all that it has got."""
    Predicting.seen.clear()
    run = game(Predicting(rate=0.2), rule=rule, workers=5, validators=validators, epochs=6)
    _, noted = watched(tmp_path, run)
    models = [m.values for who, to, m in noted if isinstance(m, ModelPartition) and to == Peer("worker", 0)]
    assert len(Predicting.seen) == len(models) - 1 == 6
    for before, after, change in zip(models, models[1:], Predicting.seen, strict=False):
        np.testing.assert_array_equal(after, before + change)


class Spoilt(Quadratic):
    """Diverges in every other step."""

    def step(self):
        super().step()
        if self.steps_done % 2:
            self.x[3] = np.nan


def test_a_block_that_is_not_finite_is_zero_for_the_attack(tmp_path, probe):
    run = game(Probe(rate=0.34), workers=3, epochs=4)
    (bad,) = attackers(run.attack, 3, run.seed)
    trainers = {peer: Quadratic(LAYOUT, 4) for peer in everyone(run)}
    trainers[Peer("worker", (bad + 1) % 3)] = Spoilt(LAYOUT, 4)
    played = play(tmp_path, run, trainers)
    assert np.isfinite(played.model).all()
    assert len(played.lines("validator-0", "rejected")) == 2
    assert all(np.isfinite(honest).all() for honest, *_ in probe)
    assert sum(not honest[:, 3:5].all() and honest[:, :3].all() for honest, *_ in probe) >= 2


def test_replacements_that_are_not_finite_are_refused_like_others(tmp_path):
    run = game(Endless(rate=0.34), workers=3, transport={"partition": 64}, epochs=3, rule="median")
    played, _ = watched(tmp_path, run)
    assert np.isfinite(played.model).all()
    assert len(played.lines("validator-0", "rejected")) == 3


BAD = {
    "a short payload": lambda m: [changed(m, values=m.payload[:-1])],
    "another's name": lambda m: [replace(m, sender=Peer("worker", 0))],
    "another run": lambda m: [replace(m, run="other")],
    "no mask": lambda m: [changed(m, mask=np.ones(0, np.bool_))],
    "another kind": lambda m: [replace(m, message=Statistics(round=m.message.round, values=m.payload))],
    "twice": lambda m: [m, m],
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_copy_is_refused_and_the_run_goes_on(tmp_path, name, mode):
    rule = {"sync": "average", "async": "naive_async"}[mode]
    run = game(Ipm(rate=0.34), rule=rule, train={"mode": mode}, workers=3)

    def change(me, to, message):
        return BAD[name](message) if isinstance(message.message, Copy) and me == Peer("worker", 1) else [message]

    played, _ = watched(tmp_path, run, change)
    refused = {line["sender"] for line in played.lines("adversary-0", "rejected")}
    assert refused == ({"worker-1"} if name != "twice" or mode == "sync" else set())
    assert played.lines("server-0", "end")[0]["reason"] == "finished"


ANSWERS = {
    "another kind": (
        lambda m: replace(m, message=Statistics(round=0, values=m.payload)),
        "a worker gets no STATISTICS from adversary-0",
    ),
    "other blocks": (lambda m: changed(m, mask=~m.message.mask), "it has other blocks than the update"),
    "another size": (lambda m: changed(m, values=m.payload[1:]), "its payload has 8 elements instead of 9"),
    "a round to come": (lambda m: changed(m, round=m.message.round + 1), "it is of round 1"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_cannot_be_used_ends_the_run(tmp_path, name):
    change, says = ANSWERS[name]

    def tampered(me, to, envelope):
        message = envelope.message
        return [change(envelope) if isinstance(message, CraftedUpdate) and message.mask is not None else envelope]

    run = game(Ipm(rate=0.34), workers=3)
    (bad,) = attackers(run.attack, 3, run.seed)
    with pytest.raises(RunError, match=f"worker-{bad} cannot use what adversary-0 sent in round 0: {says}"):
        watched(tmp_path, run, tampered)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_schedule_of_an_attack_is_kept(tmp_path, mode):
    rule = {"sync": "average", "async": "naive_async"}[mode]
    attack = Ipm(rate=0.34, from_epoch=2, every=3, on=2)
    played, noted = watched(tmp_path, game(attack, rule=rule, train={"mode": mode}, workers=3, epochs=9))
    (bad,) = attackers(attack, 3, 1)
    epochs = {m.round: m.epoch for who, _, m in noted if who.index == bad and isinstance(m, Copy)}
    lines = [line for line in played.lines("adversary-0", "round") if bad in line["shown"]]
    active = [line.get("cycle", line["round"]) for line in lines if line["replaced"]]
    if mode == "sync":
        assert active == [3, 4, 6, 7]
        assert [line["blocks_attacked"] for line in played.lines(f"worker-{bad}", "round")] == [
            3 * (round in active) for round in range(9)
        ]
    else:
        assert active
        answered = [(line["cycle"], epochs[line["cycle"]]) for line in lines]
        assert active == [cycle for cycle, epoch in answered if epoch >= 2 and cycle % 3 < 2]
        assert any(cycle % 3 < 2 for cycle, epoch in answered if epoch < 2)
        assert len(active) < len(lines) - 2


class Noisy(Omniscient):
    """Sends the sum of the honest updates and noise."""

    kind: Literal["noisy"] = "noisy"

    def craft(self, honest, own, context):
        """See `Omniscient.craft`."""
        return honest.sum(axis=0) + context.random.standard_normal(own.shape)


def test_a_resumed_adversary_knows_what_was_sent_last():
    """Asynchronous: no honest worker has sent anything since the checkpoint."""
    run = game(Noisy(rate=0.34), rule="naive_async", train={"mode": "async"}, workers=3)
    (bad,) = attackers(run.attack, 3, run.seed)
    known = Description(layout=LAYOUT.to_json(), steps_per_epoch=1, statistics=False)
    everything = np.ones(3, np.bool_)

    def copy(worker, round, value):
        sender = Peer("worker", worker)
        values = np.full(LAYOUT.size, value, np.float32)
        return Received(sender, Copy(round=round, flags=Flag.NONE, mask=everything, values=values))

    def answer(role, event):
        (craft,) = (effect for effect in role.handle(event) if isinstance(effect, Compute))
        effects = role.handle(Computed("craft", craft.work()))
        (message,) = (effect.message for effect in effects if isinstance(effect, Send))
        return message.values.copy()

    first = make_role(run.identified("toy"), ADVERSARY)
    coordinator = Peer("validator", 0)
    list(first.handle(Received(coordinator, known)))
    for worker in {0, 1, 2} - {bad}:
        list(first.handle(copy(worker, 0, 1 + worker)))
    answer(first, copy(bad, 0, 7))
    order = WriteCheckpoint(position=5, flags=Flag.SNAPSHOT)
    (snapshot, *_) = first.handle(Received(Peer("server", 0), order))
    second = make_role(run.identified("toy"), ADVERSARY)
    second.restore(snapshot.state)
    np.testing.assert_array_equal(answer(second, copy(bad, 1, 8)), answer(first, copy(bad, 1, 8)))
    assert second.round == first.round == 4


def test_copies_may_come_before_the_layout(tmp_path):
    """The coordinator's message may take longer than two others."""
    held = []

    def late(me, to, message):
        if isinstance(message.message, Description):
            held.append(message)
            return []
        return [message]

    run = game(Ipm(rate=0.34), workers=3, validators=2)
    expected, _ = watched(tmp_path / "in order", run)

    class Delaying(Wire):
        """Gives the adversary the layout when all copies of the first round have come."""

        def receive(self):
            event = self.inner.receive()
            copies = sum(isinstance(message, Copy) for _, _, message in self.noted)
            if event is None and held and self.me == ADVERSARY and copies == 3:
                self.inner._boxes[ADVERSARY].append((Peer("validator", 0), 0, 0, held.pop().header, None))
                return self.inner.receive()
            return event

    noted = []
    trainers = {peer: Quadratic(LAYOUT, 2.0 ** (peer.index + 1), steps_per_epoch=1) for peer in everyone(run)}
    played = play(tmp_path / "late", run, trainers, lambda peer, inner: Delaying(peer, inner, noted, late))
    np.testing.assert_array_equal(played.model, expected.model)


def test_a_copy_of_the_next_round_may_come_before_an_absence_of_this_one():
    """Nobody but the adversary waits for the message of a worker that is absent."""
    run = game(Ipm(rate=0.34), workers=3, validators=1)
    role = make_role(run.identified("toy"), ADVERSARY)

    def told(sender, message):
        effects = list(role.handle(Received(sender, message)))
        while computing := [effect for effect in effects if isinstance(effect, Compute)]:
            effects.remove(computing[0])
            effects += role.handle(Computed(computing[0].task, computing[0].work(), 0.0))
        return [effect.message.round for effect in effects if isinstance(effect, Send)]

    def shown(worker, round):
        mask, values = np.ones(3, np.bool_), np.ones(9, np.float32)
        return told(Peer("worker", worker), Copy(round=round, flags=Flag.NONE, mask=mask, values=values))

    told(Peer("validator", 0), Description(layout=LAYOUT.to_json(), steps_per_epoch=1, statistics=False))
    answers = [shown(k, 0) for k in (0, 1)]
    answers += [shown(0, 1), told(Peer("worker", 2), Absent(round=0, flags=Flag.NONE))]
    answers += [shown(k, 1) for k in (1, 2)]
    assert sorted(round for rounds in answers for round in rounds) == [0, 0, 1, 1, 1]

"""What is malformed or not finite never reaches the model: it is refused, counted, recorded, and the run goes on."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from installed import BACKEND
from toy_trainers import Stepped, Tampering, changed, send_raw

from hpcps.protocol.messages import Absent, CombinedUpdate, Flag, Peer, Statistics, Update
from hpcps.spec.schema import Run

SENDER = Peer("worker", 1)


def first_of_update(message):
    """Whether a message is an update or its first partition, from round 1 on."""
    first = isinstance(message, Absent) or (isinstance(message, Update) and message.partition == 0)
    return first and message.round >= 1


def absence(envelope):
    return replace(envelope, message=Absent(round=envelope.message.round, flags=Flag.NONE))


raw = partial(send_raw, SENDER)


def poison(value):
    def change(transport, to, envelope):
        values = envelope.payload.copy()
        values[0] = value
        transport.send(to, changed(envelope, values=values))

    return change


def a_combined_update(update):
    return CombinedUpdate(round=update.round, shard=0, partition=0, flags=Flag.NONE, values=update.values)


TAMPERINGS = {
    "nan": poison(np.nan),
    "inf": poison(np.inf),
    "minus inf": poison(-np.inf),
    "garbage": lambda t, to, m: raw(t, to, b"garbage"),
    "empty": lambda t, to, m: raw(t, to, b""),
    "short payload": lambda t, to, m: t.send(to, changed(m, values=m.payload[:-1])),
    "long payload": lambda t, to, m: t.send(to, changed(m, values=np.append(m.payload, np.float32(1)))),
    "no payload": lambda t, to, m: t.send(to, changed(m, values=m.payload[:0])),
    "payload of another size than announced": lambda t, to, m: raw(t, to, m.header, m.payload[:-1]),
    "wrong mask": lambda t, to, m: t.send(to, changed(m, mask=np.ones(7, np.bool_))),
    "no mask": lambda t, to, m: t.send(to, changed(m, mask=np.ones(0, np.bool_))),
    "another's name": lambda t, to, m: t.send(to, replace(m, sender=Peer("worker", 0))),
    "a partition to come": lambda t, to, m: t.send(to, changed(m, partition=m.message.partition + 1)),
    "another run": lambda t, to, m: t.send(to, replace(m, run="other")),
    "a round to come": lambda t, to, m: t.send(to, changed(m, round=m.message.round + 5)),
    "another kind": lambda t, to, m: t.send(to, replace(m, message=a_combined_update(m.message))),
    "absence after it": lambda t, to, m: (t.send(to, m), t.send(to, absence(m))),
    "twice": lambda t, to, m: (t.send(to, m), t.send(to, changed(m, values=np.full_like(m.payload, 9)))),
    "late": lambda t, to, m: (t.send(to, changed(m, round=m.message.round - 1)), t.send(to, m)),
}


def play(tmp_path, run, change):
    """Play a run whose worker 1 is tampered with; return the model, and the record of the role that combines."""

    def wrap(peer, endpoint):
        return Tampering(endpoint, change, first_of_update) if change and peer == SENDER else endpoint

    played = Stepped(tmp_path, run, wrap=wrap).to_the_end()
    return played.model, played.records["validator-0" if run.topology.validators else "server-0"]


def spec(rule, validators, partition="auto", participation=1.0):
    return Run.model_validate(
        {
            "name": "refusals",
            "topology": {"servers": 2, "validators": validators, "workers": 3},
            "model": {"name": "mlp", "backend": BACKEND},
            "data": {"name": "digits", "limit": 200, "test_limit": 50},
            "train": {"epochs": 2, "batch_size": 16, "local_steps": 2},
            "communication": {"participation": participation},
            "validation": {"rule": {"kind": rule}},
            "transport": {"partition": partition},
        }
    )


CASES = [
    (rule, 1, "auto", name)
    for rule in ("average", "trimmed_mean", "phocas")
    for name in ("nan", "inf", "short payload")
]
SPECS = (("zeno", 1, "auto"), ("average", 0, "auto"), ("zeno", 1, 4000), ("average", 0, 4000))
CASES += [(*which, name) for which in SPECS for name in TAMPERINGS]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("rule", "validators", "partition", "name"), CASES)
def test_a_bad_update_is_refused_and_the_run_goes_on(tmp_path, rule, validators, partition, name):
    model, lines = play(tmp_path, spec(rule, validators, partition), TAMPERINGS[name])
    assert np.isfinite(model).all()
    refused = [line for line in lines if line["event"] == "rejected"]
    assert {line["sender"] for line in refused} == {str(SENDER)}
    rounds = [line for line in lines if line["event"] == "round"]
    assert len(refused) >= len(rounds) - 1
    for line in rounds[1:] if name != "absence after it" or partition != "auto" else ():
        assert 1 in line["participants"], "a malformed update counts as one whose blocks were all skipped"
    if name in ("nan", "inf", "minus inf"):
        assert all(line["rejected_blocks"] == 1 for line in rounds[1:])
    elif name not in ("twice", "late") and (name != "absence after it" or partition != "auto"):
        assert all(line["malformed"] == 1 for line in rounds[1:])


@pytest.mark.parametrize("partition", ["auto", 4000])
@pytest.mark.parametrize("name", ["twice", "late"])
def test_a_repeated_update_changes_nothing(tmp_path, name, partition):
    clean, _ = play(tmp_path / "clean", spec("average", 1), None)
    model, _ = play(tmp_path / name, spec("average", 1, partition), TAMPERINGS[name])
    np.testing.assert_array_equal(model, clean)


ABSENCES = {
    **{name: TAMPERINGS[name] for name in ("garbage", "empty", "another run", "another's name", "a round to come")},
    "another kind": lambda t, to, m: t.send(to, replace(m, message=Statistics(round=1, values=np.ones(2, np.float32)))),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("validators", [1, 0])
@pytest.mark.parametrize("name", ABSENCES)
def test_a_bad_message_in_place_of_an_absence_counts_as_an_empty_update(tmp_path, name, validators):
    def change(transport, to, envelope):
        if isinstance(envelope.message, Absent):
            ABSENCES[name](transport, to, envelope)
        else:
            transport.send(to, envelope)

    models = []
    for partition in ("auto", 4000):
        run = spec("average", validators, partition, participation=0.5)
        model, lines = play(tmp_path / str(partition), run, change)
        models.append(model.tolist())
        rounds = [line for line in lines if line["event"] == "round"][1:]
        bad = [line for line in rounds if line["malformed"]]
        assert 0 < len(bad) < len(rounds)
        assert all(1 in line["participants"] for line in rounds)
    assert models[0] == models[1]


@pytest.mark.parametrize("validators", [1, 0])
def test_a_bad_first_message_counts_the_same_in_any_number_of_partitions(tmp_path, validators):
    models = [
        play(tmp_path / str(partition), spec("average", validators, partition), TAMPERINGS["garbage"])[0].tolist()
        for partition in ("auto", 4000)
    ]
    assert models[0] == models[1]

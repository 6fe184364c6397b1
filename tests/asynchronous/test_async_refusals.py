"""Whatever a worker sends, the run goes on, the others are served, and so is the worker."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from toy_trainers import Endpoint, Quadratic, Tampering, changed, everyone, play, send_raw, spec

from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import ModelReply, Peer, RunEnds, Statistics, UpdateEntry, UpdateRequest

LAYOUT = Layout.of([(f"b{b}", (8,)) for b in range(6)])
SENDER = Peer("worker", 1)


def is_update(message):
    return isinstance(message, (UpdateRequest, UpdateEntry))


raw = partial(send_raw, SENDER)


def number_of(envelope):
    """Return the number of an update, with the name of its field."""
    message = envelope.message
    return ("request", message.request) if isinstance(message, UpdateRequest) else ("number", message.number)


def numbered(envelope, further):
    name, number = number_of(envelope)
    return changed(envelope, **{name: number + further})


TAMPERINGS = {
    "nan": lambda t, to, m: t.send(to, changed(m, values=np.full_like(m.payload, np.nan))),
    "garbage": lambda t, to, m: raw(t, to, b"garbage"),
    "empty": lambda t, to, m: raw(t, to, b""),
    "short payload": lambda t, to, m: t.send(to, changed(m, values=m.payload[:-1])),
    "no payload": lambda t, to, m: t.send(to, changed(m, values=m.payload[:0])),
    "payload of another size than announced": lambda t, to, m: raw(t, to, m.header, m.payload[:-1]),
    "wrong mask": lambda t, to, m: t.send(to, changed(m, mask=np.ones(9, np.bool_))),
    "no mask": lambda t, to, m: t.send(to, changed(m, mask=np.ones(0, np.bool_))),
    "another's name": lambda t, to, m: t.send(to, replace(m, sender=Peer("worker", 0))),
    "another run": lambda t, to, m: t.send(to, replace(m, run="other")),
    "a request to come": lambda t, to, m: t.send(to, numbered(m, 5)),
    "a version to come": lambda t, to, m: t.send(to, changed(m, base_version=m.message.base_version + 50)),
    "a rate in words": lambda t, to, m: t.send(to, changed(m, rate="high")),
    "a rate that is not finite": lambda t, to, m: t.send(to, changed(m, rate=np.nan)),
    "another kind": lambda t, to, m: t.send(to, replace(m, message=Statistics(round=1, values=m.payload))),
    "the end": lambda t, to, m: t.send(to, replace(m, message=RunEnds(round=1))),
    "twice": lambda t, to, m: (t.send(to, m), t.send(to, changed(m, values=np.full_like(m.payload, 9)))),
    "late too": lambda t, to, m: (t.send(to, m), t.send(to, numbered(m, -1))),
    "garbage too": lambda t, to, m: (raw(t, to, b"garbage"), t.send(to, m)),
    "garbage after": lambda t, to, m: (t.send(to, m), raw(t, to, b"garbage")),
    "one shard only": lambda t, to, m: raw(t, to, b"x") if to == Peer("server", 1) else t.send(to, m),
    "not the first shard": lambda t, to, m: raw(t, to, b"x") if to == Peer("server", 0) else t.send(to, m),
}
HARMLESS = ("twice", "late too")


@pytest.mark.sample(16)
@pytest.mark.parametrize("validators", [1, 2, 0])
@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_bad_update_is_refused_and_the_run_goes_on(tmp_path, name, validators):
    run = spec("naive_async", servers=2, validators=validators, workers=3, epochs=6)
    trainers = {peer: Quadratic(LAYOUT, 4) for peer in everyone(run) if peer.role != "server"}
    shards = name in ("one shard only", "not the first shard")
    if shards and validators:
        pytest.skip("with validators an update is sent whole")
    played = play(
        tmp_path,
        run,
        trainers,
        lambda peer, transport: Tampering(transport, TAMPERINGS[name], is_update) if peer == SENDER else transport,
    )
    assert np.isfinite(played.model).all()
    assert (played.model > 0).all(), "the others' updates are in"
    refused = [
        line for process in played.records for line in played.lines(process, "rejected") if process != str(SENDER)
    ]
    assert {line["sender"] for line in refused} == {str(SENDER)}
    log = played.log
    of_sender = [line for line in log if line["reader"] == str(SENDER)]
    assert len(of_sender) >= 3, "its worker gets models"
    if name not in (*HARMLESS, "garbage too", "garbage after", "one shard only") and not (
        name == "nan" and not validators
    ):
        assert {line["kind"] for line in of_sender} == {"read"}, "nothing of it is applied"
    if name in HARMLESS:
        assert {line["kind"] for line in of_sender} == {"apply" if validators else "update"}


def test_a_second_message_changes_nothing(tmp_path):
    models = []
    for name in (None, *HARMLESS):
        run = spec("naive_async", servers=2, workers=3, epochs=6)
        trainers = {peer: Quadratic(LAYOUT, 4) for peer in everyone(run) if peer.role != "server"}
        change = TAMPERINGS[name] if name else lambda t, to, m: t.send(to, m)
        played = play(
            tmp_path / str(name),
            run,
            trainers,
            lambda peer, transport, change=change: (
                Tampering(transport, change, is_update) if peer == SENDER else transport
            ),
        )
        models.append(played.model.tolist())
    assert models[0] == models[1] == models[2]


def test_a_model_that_was_not_asked_for_is_left_alone(tmp_path):
    class Meddling(Endpoint):
        def send(self, to, envelope):
            super().send(to, envelope)
            if isinstance(envelope.message, ModelReply) and envelope.message.request == 1:
                super().send(to, changed(envelope, request=9))

    run = spec("naive_async", workers=3, epochs=6)
    trainers = {peer: Quadratic(LAYOUT, 4) for peer in everyone(run) if peer.role != "server"}
    played = play(tmp_path, run, trainers, lambda peer, t: Meddling(t) if peer.role == "server" else t)
    assert [line["reason"] for line in played.lines("worker-0", "rejected")] == [
        "a model that answers request 9 instead of 2"
    ]

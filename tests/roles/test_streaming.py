"""A round in partitions: each is combined and sent on as soon as it is there, and nobody gets far ahead of it."""

import pytest
from toy_trainers import Adding, Endpoint, Stepped

from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import CombinedUpdate, Credit, ModelPartition, PartWritten, Peer, Update
from hpcps.roles.sync.partitions import WINDOW
from hpcps.spec.schema import Run

LAYOUT = Layout.of([(f"b{b}", (100,)) for b in range(20)])
PARTITIONS = 20
BYTES = 448  # room for one block, and not for two


class Logged(Endpoint):
    """A transport that writes down what is sent."""

    def __init__(self, inner, owner, log):
        super().__init__(inner)
        self._owner, self._log = owner, log

    def send(self, to, envelope):
        message = envelope.message
        round = message.position if isinstance(message, PartWritten) else getattr(message, "round", 0)
        number = message.partitions if isinstance(message, Credit) else getattr(message, "partition", 0)
        self._log.append((self._owner, to, type(message), round, number))
        super().send(to, envelope)


def spec(rule="average", partition=BYTES, servers=1, validators=0, workers=3, every=0, rounds=3):
    return Run.model_validate(
        {
            "name": "streams",
            "topology": {"servers": servers, "validators": validators, "workers": workers},
            "model": {"name": "mlp"},
            "data": {"name": "synthetic"},
            "train": {"epochs": rounds, "batch_size": 1},
            "validation": {"rule": {"kind": rule}},
            "transport": {"partition": partition},
            "checkpoint": {"every": every},
        }
    )


class Play(Stepped):
    """A run in this process, step by step.

    Attributes:
        log: what was sent: (sender, receiver, kind, round, partition).
    """

    def __init__(self, folder, run):
        self.log = []
        super().__init__(
            folder,
            run,
            lambda peer: Adding(LAYOUT, peer.index + 1),
            lambda peer, endpoint: Logged(endpoint, peer, self.log),
        )

    def sent(self, kind, to=None, round=None):
        """Return the (place in the log, sender, partition) of such messages."""
        return [
            (place, sender, partition)
            for place, (sender, receiver, what, when, partition) in enumerate(self.log)
            if what is kind and (to is None or receiver == to) and (round is None or when == round)
        ]


@pytest.mark.parametrize("validators", [0, 1, 2])
def test_the_next_model_is_on_its_way_while_updates_come_in(tmp_path, validators):
    play = Play(tmp_path, spec(servers=2, validators=validators))
    model = play.to_the_end().model
    assert (model == model[0]).all()
    for round in range(3):
        first = play.sent(ModelPartition, round=round + 1)[0][0]
        assert first < play.sent(Update, round=round)[-1][0]
        if validators:
            assert play.sent(CombinedUpdate, round=round)[0][0] < play.sent(Update, round=round)[-1][0]


@pytest.mark.parametrize(("rule", "validators"), [("average", 0), ("average", 1), ("zeno", 2)])
def test_nobody_is_further_ahead_than_its_receiver_allows(tmp_path, rule, validators):
    play = Play(tmp_path, spec(rule, validators=validators))
    laggard = Peer("worker", 2)
    play.go_on(without=(laggard,))
    combiner = Peer("validator", 0) if validators else Peer("server", 0)
    # Of what the others sent nothing can be combined without the one that does not move.
    ahead = [partition for _, sender, partition in play.sent(Update, to=combiner) if sender == Peer("worker", 0)]
    assert ahead == list(range(WINDOW))
    play.to_the_end()
    for round in range(3):
        for to in (combiner, Peer("server", 0)):
            kind = Update if to == combiner else CombinedUpdate
            passed = play.sent(Credit, round=round)
            # A server that has made a partition of the next model takes another.
            passed += [(when, who, made + 1 + WINDOW) for when, who, made in play.sent(ModelPartition, round=round + 1)]
            for place, sender, partition in play.sent(kind, to=to, round=round):
                granted = [number for when, who, number in passed if who == to and when < place]
                assert partition < max(granted, default=WINDOW), (sender, partition)
    came = [partition for _, sender, partition in play.sent(Update, round=0) if sender == laggard]
    assert came == list(range(PARTITIONS))


def test_what_fits_the_window_needs_no_leave(tmp_path):
    play = Play(tmp_path, spec(partition=4 * LAYOUT.size // WINDOW + BYTES, validators=1))
    play.to_the_end()
    assert len(play.sent(Update, round=0)) == WINDOW * 3
    assert not play.sent(Credit)


@pytest.mark.parametrize("validators", [0, 2])
def test_a_server_gives_leave_by_the_next_model(tmp_path, validators):
    play = Play(tmp_path, spec(servers=2, validators=validators, every=2))
    play.to_the_end()
    saved = {play.log[place][3] - 1 for place, _, _ in play.sent(PartWritten)}
    assert saved
    for round in range(3):
        # Before a checkpoint the next model is kept back: then it has to be said.
        said = {sender.role for _, sender, _ in play.sent(Credit, round=round)}
        assert said == ({"validator"} if validators else set()) | ({"server"} if round in saved else set())


@pytest.mark.parametrize("validators", [0, 2])
def test_a_checkpoint_is_written_before_the_model_goes_on(tmp_path, validators):
    play = Play(tmp_path, spec(servers=2, validators=validators, every=1))
    play.to_the_end()
    server = Peer("server", 1)
    parts = {play.log[place][3]: place for place, sender, _ in play.sent(PartWritten) if sender == server}
    assert parts, "there were checkpoints"
    for moment, written in parts.items():
        models = [place for place, sender, _ in play.sent(ModelPartition, round=moment) if sender == server]
        assert written < min(models)


@pytest.mark.parametrize(("workers", "accepted"), [(4, 80), (2, 0)])
def test_what_is_recorded_does_not_depend_on_the_cut(tmp_path, workers, accepted):
    told = []
    for partition in ("auto", 128, BYTES):
        play = Play(tmp_path / str(partition), spec("trimmed_mean", partition, workers=workers))
        rounds = play.to_the_end().lines("server-0", "round")
        told.append(
            [{key: line[key] for key in line if key.endswith(("pairs", "rate", "ants", "sent"))} for line in rounds]
        )
    assert told[0][0]["accepted_pairs"] == accepted
    assert told[0][0]["sent_pairs"] == workers * len(LAYOUT.blocks)
    for other in told[1:]:
        for line, wanted in zip(other, told[0], strict=True):
            assert line | {"bytes_sent": 0, "messages_sent": 0} == wanted | {"bytes_sent": 0, "messages_sent": 0}

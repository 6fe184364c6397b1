"""What a tracer writes, and what is read back of it."""

import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from hpcps.errors import RunError
from hpcps.protocol.messages import Flag, ModelPartition, Peer, Update
from hpcps.protocol.received import Received
from hpcps.records.trace.clocks import Offset
from hpcps.records.trace.reader import merge, read_trace
from hpcps.records.trace.tracer import PACKED, Tracer
from hpcps.roles.events import AwaitBackground, Compute, Computed, Now, Save, Send

WORKER, SERVER = Peer("worker", 0), Peer("server", 0)


class Clock:
    """Passes when told to."""

    now = 100.0

    def __call__(self):
        return self.now


NOTHING = np.zeros(0, np.float32)
MODEL = ModelPartition(round=0, shard=0, partition=0, flags=Flag.NONE, values=NOTHING)
UPDATE = Update(round=0, shard=0, partition=0, flags=Flag.NONE, mask=np.ones(0, np.bool_), values=NOTHING)


def nothing():
    return None


def tracer_of(folder, peer=WORKER, session=1, clock=time.perf_counter, **more):
    return Tracer(folder, "run", peer, "here", session, clock=clock, **more)


def carry_out(tracer, clock, effect, seconds, round=0):
    start = tracer.begin(effect)
    clock.now += seconds
    tracer.carried_out(effect, round, start)


def a_turn(tracer, clock, round=0):
    """Wait 1 s in two polls, receive for 2 ms, think for 1 ms, train 3 s, send for 0.5 ms."""
    tracer.rest("wait")
    clock.now += 0.5
    tracer.write_late()
    clock.now += 0.5
    start = clock.now
    clock.now += 0.002
    tracer.took(Received(SERVER, MODEL), round, start)
    clock.now += 0.001
    carry_out(tracer, clock, Compute("train", nothing), 3.0, round)
    clock.now += 5e-6  # too short to be told apart
    carry_out(tracer, clock, Send(SERVER, UPDATE), 0.0005, round)


A_TURN = ["wait", "receive", "handle", "train", "send"]


def test_spans_follow_one_another_without_a_gap(tmp_path):
    clock = Clock()
    with tracer_of(tmp_path, clock=clock) as tracer:
        a_turn(tracer, clock)
        clock.now += 0.25
        tracer.rest("pause")
        clock.now += 0.125
        tracer.took(Computed("train", None), 1, clock.now)
        clock.now += 0.5
        carry_out(tracer, clock, Save("model", np.zeros(1, np.float32)), 0.001, 1)
    spans = list(read_trace(tmp_path).spans.itertuples())
    assert [(s.activity, round(s.start, 6), round(s.seconds, 6), s.round) for s in spans] == [
        ("wait", 0, 1, 0),
        ("receive", 1, 0.002, 0),
        ("handle", 1.002, 0.001, 0),
        ("train", 1.003, 3, 0),
        ("send", 4.003, 0.000505, 0),
        ("handle", 4.003505, 0.25, 1),
        ("pause", 4.253505, 0.125, 1),
        ("handle", 4.378505, 0.5, 1),
        ("save", 4.878505, 0.001, 1),
    ]
    assert (spans[1].other, spans[1].kind, spans[4].other, spans[4].kind) == (
        "server-0", "MODEL", "server-0", "UPDATE",
    )  # fmt: skip


def test_messages_are_told_with_whom_and_how_large(tmp_path):
    clock, far = Clock(), Peer("validator", 70_000)
    large = replace(UPDATE, values=np.broadcast_to(np.float32(0), 2**31))
    with tracer_of(tmp_path, clock=clock) as tracer:
        carry_out(tracer, clock, Send(far, large), 1.0, 2**31 - 1)
    (span,) = read_trace(tmp_path).spans.itertuples()
    assert (span.other, span.kind, span.bytes, span.round) == ("validator-70000", "UPDATE", 2**33, 2**31 - 1)


def test_what_a_killed_process_had_noted_is_there(tmp_path):
    """A second after it happened it is in the file; what was cut short, or stands for nothing, is passed over."""
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    a_turn(tracer, clock)
    tracer.rest("wait")
    clock.now += 1.1
    tracer.write_late()
    now = clock.now
    damaged = [(77, 0, 0, 0), (4, 99, 0, 0), (4, 0, 9, 0), (1, 0, 0, 77)]
    spans = [PACKED.pack(*each, 0, now, now, now + 1, 0, 0) for each in damaged]
    spans += [PACKED.pack(1, 0, 0, 0, 0, now, now, stop, 0, 0) for stop in (now - 1, float("nan"))]
    with tracer.path.open("ab") as file:
        file.write(b"".join(spans) + bytes(PACKED.size) + b"\x01torn")
    assert [*read_trace(tmp_path).spans.activity] == A_TURN
    tracer.close()
    tracer.close()


def test_a_process_without_rest_writes_every_second(tmp_path):
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    for _ in range(30):
        carry_out(tracer, clock, Send(SERVER, UPDATE), 0.1)
    assert len(read_trace(tmp_path).spans) >= 20
    tracer.close()


def test_more_than_there_is_room_for_is_written(tmp_path):
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    for _ in range(1100):
        carry_out(tracer, clock, Send(SERVER, UPDATE), 1e-5)
    assert len(read_trace(tmp_path).spans) == 1024
    tracer.close()
    assert len(read_trace(tmp_path).spans) == 1100


@pytest.mark.parametrize(
    "effect", [Compute("train", nothing), Now("apply", nothing), AwaitBackground(), Save("model", None)]
)
def test_what_comes_before_something_long_is_in_the_file(tmp_path, effect):
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    a_turn(tracer, clock)
    clock.now += 0.2
    tracer.begin(effect)
    assert [*read_trace(tmp_path).spans.activity] == A_TURN
    tracer.close()


def test_only_the_last_attempt_counts(tmp_path):
    for peer, session in ((WORKER, 1), (SERVER, 2)):
        tracer_of(tmp_path, peer, session).close()
    assert [process.peer for process in read_trace(tmp_path).processes] == [SERVER]
    tracer_of(tmp_path, WORKER, 2).close()
    assert [process.peer for process in read_trace(tmp_path).processes] == [SERVER, WORKER]


def test_a_trace_that_cannot_be_written_does_not_stop_the_run(tmp_path, capsys):
    clock = Clock()
    (tmp_path / "trace").touch()
    tracer = tracer_of(tmp_path, clock=clock)
    a_turn(tracer, clock)
    tracer.close()
    assert "worker-0.spans ends here" in capsys.readouterr().err


def test_a_full_disk_is_told_once(tmp_path, capsys):
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    os.dup2(os.open("/dev/full", os.O_WRONLY), tracer._file)
    for _ in range(3):
        a_turn(tracer, clock)
    tracer.close()
    assert capsys.readouterr().err.count("ends here: No space left") == 1


def test_clocks_of_two_hosts_are_put_on_one(tmp_path):
    """The worker's clock is 40 s ahead at its start and 41 s after 100 s: both saw the same second."""
    here, there = Clock(), Clock()
    there.now += 40
    with tracer_of(tmp_path, SERVER, clock=here) as server, tracer_of(tmp_path, clock=there) as worker:
        worker.compare(Offset(-40, 0.001))
        here.now += 50
        there.now += 50.5
        train = Compute("train", nothing)
        starts = [tracer.begin(train) for tracer in (server, worker)]
        here.now += 1
        there.now += 1.01
        for tracer, start in zip((server, worker), starts, strict=True):
            tracer.carried_out(train, 0, start)
        there.now += 49 - 0.01 + 0.5
        worker.compare(Offset(-41, 0.002))
    trace = read_trace(tmp_path)
    one, other = trace.spans[trace.spans.activity == "train"].itertuples()
    assert (one.start, one.seconds) == pytest.approx((50, 1))
    assert (other.start, other.seconds) == pytest.approx((50, 1), abs=2e-3)
    assert [process.error for process in trace.processes] == [0, pytest.approx(0.002)]
    facts = json.loads(merge(tmp_path).read_text())["otherData"]
    assert facts == {"clock": "monotonic", "clock_error_us": {"server-0": 0.0, "worker-0": 2000.0}}


def test_a_run_without_a_trace(tmp_path):
    """Or with one of another version."""
    tracer = tracer_of(tmp_path)
    tracer.close()
    tracer.path.write_bytes(tracer.path.read_bytes().replace(b'"format": 2', b'"format": 1'))
    with pytest.raises(RunError, match="has no trace: run it with `hpcps run FILE --trace`"):
        read_trace(tmp_path)

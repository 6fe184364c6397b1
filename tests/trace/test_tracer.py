"""What a tracer writes, and what is read back of it."""

import json
import os
import time

import pytest

from hpcps.errors import RunError
from hpcps.messages import Kind, Message, Peer, Received
from hpcps.roles.events import Compute, Send
from hpcps.trace.chrome import merge
from hpcps.trace.clocks import Offset
from hpcps.trace.lanes import read_lanes
from hpcps.trace.tracer import FileTracer

WORKER, SERVER = Peer("worker", 0), Peer("server", 0)


class Clock:
    """Passes when told to."""

    now = 100.0

    def __call__(self):
        return self.now


def nothing():
    return None


def message(kind, sender):
    return Message(kind, sender, "run", 0)


def tracer_of(folder, peer=WORKER, session=1, clock=time.perf_counter, **more):
    return FileTracer(folder, "run", peer, "here", session, clock=clock, **more)


def a_turn(tracer, clock):
    """Wait 1 s in two polls, receive for 2 ms, think for 1 ms, train 3 s, send for 0.5 ms."""
    for _ in range(2):
        clock.now += 0.5
        tracer.idle("wait", 0)
    clock.now += 0.002
    tracer.event(Received(SERVER, message(Kind.MODEL, SERVER)), 0)
    clock.now += 0.001
    train = Compute("train", nothing)
    tracer.before(train, 0)
    clock.now += 3.0
    tracer.after(train, 0)
    clock.now += 5e-6  # too short to be told apart
    send = Send(SERVER, message(Kind.UPDATE, WORKER))
    tracer.before(send, 0)
    clock.now += 0.0005
    tracer.after(send, 0)


def test_spans_follow_one_another_without_a_gap(tmp_path):
    clock = Clock()
    with tracer_of(tmp_path, clock=clock) as tracer:
        a_turn(tracer, clock)
        clock.now += 0.25
        tracer.handled(1)
    (lane,) = read_lanes(tmp_path)
    spans = list(lane.spans())
    assert [(s.activity, round(s.start, 6), round(s.seconds, 6), s.round) for s in spans] == [
        ("wait", 0, 1, 0),
        ("receive", 1, 0.002, 0),
        ("handle", 1.002, 0.001, 0),
        ("train", 1.003, 3, 0),
        ("send", 4.003, 0.000505, 0),
        ("handle", 4.003505, 0.25, 1),
    ]
    assert (spans[1].other, spans[1].kind, spans[4].other, spans[4].kind) == (
        "server-0", "MODEL", "server-0", "UPDATE",
    )  # fmt: skip


def test_other_names_and_own_code_in_one_piece(tmp_path):
    clock = Clock()
    with tracer_of(tmp_path, SERVER, clock=clock, names={"combine": "apply"}) as tracer:
        clock.now += 1
        tracer.after(Compute("combine", nothing), 3)
        for _ in range(2):
            clock.now += 0.002
            tracer.handled(3)
    (lane,) = read_lanes(tmp_path)
    assert [(s.activity, round(s.seconds, 6)) for s in lane.spans()] == [("apply", 1), ("handle", 0.004)]


def test_what_a_killed_process_had_noted_is_there(tmp_path):
    """A second after it happened it is in the file; a line that was cut short is passed over."""
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    a_turn(tracer, clock)
    clock.now += 1.1
    tracer.idle("wait", 1)
    with tracer.path.open("ab") as file:
        file.write(b'["train",123')
    (lane,) = read_lanes(tmp_path)
    assert [span.activity for span in lane.spans()] == ["wait", "receive", "handle", "train", "send"]
    tracer.close()
    tracer.close()


def test_what_went_on_beside_is_told_apart(tmp_path):
    clock = Clock()
    with tracer_of(tmp_path, clock=clock) as tracer:
        clock.now += 2.0
        tracer.beside("evaluate", 100.5, 101.75, 7)
        tracer.after(Compute("train", nothing), 8)
    (lane,) = read_lanes(tmp_path)
    (span,) = lane.beside()
    assert (span.activity, span.start, span.seconds, span.round) == ("evaluate", 0.5, 1.25, 7)
    assert [span.activity for span in lane.spans()] == ["train"]
    events = json.loads(merge(tmp_path).read_text())["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["name"]: threads[event["tid"]] for event in events if event["ph"] == "X"} == {
        "train": "worker-0",
        "evaluate": "worker-0 beside",
    }
    with tracer.path.open("ab") as file:
        file.write(b'{"beside":"evaluate","start":1')
    assert len(list(lane.beside())) == 1


def test_what_comes_before_a_long_computation_is_in_the_file(tmp_path):
    clock = Clock()
    tracer = tracer_of(tmp_path, clock=clock)
    a_turn(tracer, clock)
    clock.now += 0.2
    tracer.before(Compute("train", nothing), 1)
    (lane,) = read_lanes(tmp_path)
    assert [span.activity for span in lane.spans()] == ["wait", "receive", "handle", "train", "send"]
    tracer.close()


def test_only_the_last_attempt_counts(tmp_path):
    for peer, session in ((WORKER, 1), (SERVER, 2)):
        tracer_of(tmp_path, peer, session).close()
    assert [lane.peer for lane in read_lanes(tmp_path)] == [SERVER]
    tracer_of(tmp_path, WORKER, 2).close()
    assert [lane.peer for lane in read_lanes(tmp_path)] == [SERVER, WORKER]


def test_a_trace_that_cannot_be_written_does_not_stop_the_run(tmp_path, capsys):
    clock = Clock()
    (tmp_path / "trace").touch()
    tracer = tracer_of(tmp_path, clock=clock)
    a_turn(tracer, clock)
    tracer.close()
    assert "worker-0.jsonl ends here" in capsys.readouterr().err


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
        for tracer in (server, worker):
            tracer.idle("wait", 0)
        here.now += 1
        there.now += 1.01
        for tracer in (server, worker):
            tracer.after(Compute("train", nothing), 0)
        there.now += 49 - 0.01 + 0.5
        worker.compare(Offset(-41, 0.002))
    one, other = (next(s for s in lane.spans() if s.activity == "train") for lane in read_lanes(tmp_path))
    assert (one.start, one.seconds) == pytest.approx((50, 1))
    assert (other.start, other.seconds) == pytest.approx((50, 1), abs=2e-3)
    assert [lane.error for lane in read_lanes(tmp_path)] == [0, 0.002]
    facts = json.loads(merge(tmp_path).read_text())["otherData"]
    assert facts == {"clock": "monotonic", "clock_error_us": {"server-0": 0.0, "worker-0": 2000.0}}


def test_a_run_without_a_trace(tmp_path):
    with pytest.raises(RunError, match="has no trace: play the run with `hpcps run FILE --trace`"):
        read_lanes(tmp_path)


def test_it_costs_microseconds(tmp_path):
    """A turn has four spans; a round has a few turns, and takes milliseconds at least."""
    turns = 2000
    best = float("inf")
    for attempt in range(3):
        with tracer_of(tmp_path / str(attempt)) as tracer:
            clock = Clock()
            began = time.process_time()
            for _ in range(turns):
                a_turn(tracer, clock)
        best = min(best, time.process_time() - began)
    assert best / turns < 150e-6

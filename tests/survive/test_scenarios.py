"""Scenarios of the combiner that closes rounds, as text: what happens, and what the combiner does then.

The first line of a file says what it shows. `----` stands between what happens and what the combiner does; a blank line
ends it. `UPDATE_GOLDEN=1 pytest` writes what the combiner does into the files, for a person to read.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from survive.test_lost_workers import survivors

from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Absent, Complete, Flag, Peer, Update
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.received import Lost, Replaced
from hpcps.roles.events import Pause, Record, Send
from hpcps.roles.sync.quorum import QuorumCollector

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
LAYOUT = Layout.of([("block", (2,))])


class Combiner:
    """Server 0 or a validator: its round, and its collector."""

    def __init__(self, workers=3, servers=1, **train):
        me = Peer("server", 0) if servers > 1 else Peer("validator", 0)
        run = survivors(workers=workers, servers=servers, validators=int(servers == 1), train=train)
        share = [Peer("worker", k) for k in range(workers)]
        parts = [Partition.of(LAYOUT, (0, LAYOUT.size))]
        self.round, self.collector = 0, QuorumCollector(me, run.identified("run"), share, parts)

    def update(self, worker, round=None):
        peer, mask, values = Peer("worker", worker), np.ones(1, np.bool_), np.ones(2, np.float32)
        position = {"data": [2 * (self.round + 1), 0, 0]}
        given = {"round": self.round if round is None else round, "flags": Flag.NONE, "position": position}
        yield from self.collector.put(peer, Update(shard=0, partition=0, mask=mask, values=values, **given), self.round)

    def absent(self, worker):
        message = Absent(round=self.round, flags=Flag.NONE, position={"data": [2 * (self.round + 1), 0, 0]})
        yield from self.collector.put(Peer("worker", worker), message, self.round)

    def complete(self, server, worker):
        self.collector.note_complete(Peer("server", server), Complete(round=self.round, worker=worker))
        yield from ()

    def lost(self, worker):
        yield from self._note(Lost(Peer("worker", worker), "killed"))

    def replaced(self, worker, number=1):
        yield from self._note(Replaced(Peer("worker", worker), number))

    def _note(self, event):
        yield from self.collector.note_member(event, self.round, lambda round: round >= 9)

    def close(self):
        yield from self.collector.close(self.round, Flag.NONE)

    def combine(self):
        assert self.collector.ready, "the round is not closed, or its updates are not there"
        self.collector.clear()
        self.round += 1
        yield from ()

    def state(self):
        collector = self.collector
        if collector.closing is not None:
            closing = collector.closing
            return f"closed: arrived {closing.arrived}, answered {closing.answered}, lost {closing.lost}"
        return f"open: waits for {', '.join(map(str, collector.waiting_for)) or 'nobody'}"


OF_ASYNCHRONOUS = ("since", "validator")
"""The fields of `TakePart` in asynchronous runs."""


def said(effect):
    match effect:
        case Send(to, message):
            ours = {name: value for name, value in vars(message).items() if name not in ("flags", "values")}
            fields = {name: value for name, value in ours.items() if name not in OF_ASYNCHRONOUS}
            return f"to {to}: {type(message).__name__} {fields}"
        case Record(event, fields):
            return f"records {event}: {fields}"
        case Pause():
            return "pauses"
    raise AssertionError(effect)


def executed(text):
    """Execute a scenario; return it with what the combiner does."""
    heading, start, *blocks = text.strip().split("\n\n")
    settings = dict(zip(start.split()[::2], start.split()[1::2], strict=True))
    combiner = Combiner(**{name: int(value) if value.isdigit() else value for name, value in settings.items()})
    output = [heading, start]
    for block in blocks:
        commands = block.partition("\n----")[0]
        effects = []
        for command in commands.splitlines():
            name, *numbers = command.split()
            effects += [said(effect) for effect in getattr(combiner, name)(*map(int, numbers))]
        output.append("\n".join([commands, "----", *effects, combiner.state()]))
    return "\n\n".join(output) + "\n"


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_scenario(file):
    text = executed(file.read_text(encoding="utf-8"))
    if "UPDATE_GOLDEN" in os.environ:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")

"""The tables of stages: nothing is in them twice, nothing is out of reach, and runs take every line of them."""

import random

import interrupted
import pytest
from installed import BACKEND

from hpcps.roles.stages import TABLES, Stage, StageMachine, Trigger
from hpcps.spec.schema import Run


@pytest.mark.parametrize("title", TABLES)
def test_every_stage_is_reached_and_no_line_is_there_twice(title):
    lines = TABLES[title].transitions
    assert len({(each.stage, each.trigger) for each in lines}) == len(lines)
    reached = {Stage.STARTING, None}
    for _ in lines:
        reached |= {each.next for each in lines if each.stage in reached}
    assert reached - {None} == {each.stage for each in lines} - {None} | {each.next for each in lines}
    ends = {each.next for each in lines} - {each.stage for each in lines}
    assert ends <= {Stage.FINISHED, Stage.SUSPENDING}


def test_a_trigger_without_a_line_is_an_error():
    stages = StageMachine(TABLES["Server, asynchronous"])
    stages.on(Trigger.INITIAL_MODEL)
    assert stages.stage is Stage.SERVING
    with pytest.raises(AssertionError, match="SERVING has no line for STEPS_DONE"):
        stages.on(Trigger.STEPS_DONE)
    assert stages.stage is Stage.SERVING


BASE = {
    "name": "stages",
    "topology": {"servers": 2, "validators": 1, "workers": 3},
    "transport": {"kind": "inproc", "partition": 8192},
    "model": {"name": "mlp", "backend": BACKEND},
    "data": {"name": "digits", "limit": 120, "test_limit": 20},
    "train": {"epochs": 3, "batch_size": 10},
    "checkpoint": {"every": 1},
}
ASYNC = {**BASE["train"], "mode": "async"}
SLOW = {
    "classes": [{"name": "fast", "workers": [0, 1], "seconds": 0.05}, {"name": "slow", "workers": [2], "seconds": 0.31}]
}
ATTEMPTS = 4
RUNS = {
    "rounds": {},
    "quorum": {
        "topology": {**BASE["topology"], "validators": 0}, "heterogeneity": SLOW, "simulation": {"kind": "modelled"},
        "train": {**BASE["train"], "quorum": 2, "late": "next"},
    },
    "policy": {
        "topology": {**BASE["topology"], "validators": 0}, "heterogeneity": SLOW, "simulation": {"kind": "modelled"},
        "train": {**BASE["train"], "local_steps": {"kind": "esync"}},
    },
    "cycles": {
        "topology": {**BASE["topology"], "validators": 2}, "train": ASYNC,
        "validation": {"rule": {"kind": "naive_async"}},
    },
    "growing": {
        "train": ASYNC, "validation": {"rule": {"kind": "naive_async"}}, "communication": {"participation": 0.5},
        "asynchronous": {"absent": "accumulate"},
    },
    "servers filter": {
        "topology": {**BASE["topology"], "validators": 0}, "train": ASYNC,
        "validation": {"rule": {"kind": "naive_async"}},
    },
}  # fmt: skip


RARE = {
    ("Server, synchronous", Stage.STARTING, Trigger.ROUNDS_OVER),
    ("Server, synchronous", Stage.STOPPING, Trigger.ROUNDS_OVER),
    *(
        ("Server, synchronous", stage, Trigger.EVALUATION_DUE)
        for stage in (Stage.STARTING, Stage.GATHERING, Stage.CHECKPOINTING)
    ),
    ("Server, asynchronous", Stage.SERVING, Trigger.EVALUATION_DUE),
    ("Server, asynchronous", Stage.STOPPING, Trigger.ROUNDS_OVER),
    ("Worker, asynchronous", Stage.TRAINING, Trigger.ROUNDS_OVER),
}
"""Lines that these runs need not take: a run with a policy crashes after the checkpoint of its last round, and
coordinators are lost in `tests/survive` only."""


@pytest.mark.thorough
def test_runs_take_every_line(tmp_path, monkeypatch):
    """Each run is stopped at a random event, at its next checkpoint, or it crashes; and it goes on, several times."""
    taken, titles = set(), {id(table.transitions): title for title, table in TABLES.items()}
    made, plain = StageMachine.__init__, StageMachine.on

    def begin(self, table):
        made(self, table)
        self.title = titles[id(table.transitions)]

    def on(self, trigger):
        before = self.stage
        plain(self, trigger)
        taken.update({(self.title, before, trigger), (self.title, None, trigger)})

    monkeypatch.setattr(StageMachine, "__init__", begin)
    monkeypatch.setattr(StageMachine, "on", on)
    chance = random.Random(1)
    for name, change in RUNS.items():
        for attempt in range(ATTEMPTS):
            run = Run.model_validate(BASE | change | {"seed": attempt + 1})
            done = False
            while not done:
                crash, polls = chance.choice((None, chance.randrange(20, 900))), iter(range(chance.randrange(1, 400)))
                stop = lambda polls=polls: next(polls, None) is None  # noqa: E731
                done = interrupted.play(run, tmp_path / f"{name} {attempt}", crash, stop)
    every = {(title, each.stage, each.trigger) for title, table in TABLES.items() for each in table.transitions}
    assert every - taken <= RARE

"""Trainers without a framework, on which every step can be computed by hand, and a run of them in process."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcps.execution.inprocess import take_turns
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role, make_training_role
from hpcps.execution.simulation.sharing import EventQueue
from hpcps.numerics.layout import Layout
from hpcps.numerics.state import State
from hpcps.protocol.roster import Roster
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Evaluation, Progress
from hpcps.transport.inproc import Exchange


class Toy:
    """What the trainers share: a flat model, and epochs of `steps_per_epoch` steps."""

    device = "cpu"
    batch_size = 1
    learning_rate = 0.5
    statistics = np.zeros(0, np.float32)
    evaluator = None

    def __init__(self, layout, steps_per_epoch=1):
        self.layout = layout
        self.steps_per_epoch = steps_per_epoch
        self.steps_done = 0
        self.x = np.zeros(layout.size, np.float32)
        self.calls = []
        self.went = []

    def state(self):
        return State({"x": self.x.copy()}, {"steps": self.steps_done})

    def restore(self, state):
        self.x[:], self.steps_done = state.arrays["x"], state.facts["steps"]

    def copy_to(self, out):
        out[:] = self.x

    def copy_from(self, values):
        self.x[:] = values

    def train(self, steps, *, anchor=None, pull=0.0, epoch=None, relabel=None):
        self.calls.append(epoch)
        for _ in range(steps):
            self.step()
            if pull:
                self.x += np.float32(pull) * (anchor - self.x)
            self.steps_done += 1
            self.went.append(float(self.x[0]))
        return Progress(steps, steps, 0.0, 0)

    def observe(self, steps):
        self.steps_done += steps
        return Progress(steps, steps, 0.0, 0)

    def evaluate(self):
        return Evaluation(1, 0.0, float(np.clip(self.x[0], 0, 100)) / 100, True, 1.0, ((1, 0),))

    def cancel(self):
        pass

    def load_statistics(self, values):
        pass

    def reestimate_statistics(self):
        pass


class Quadratic(Toy):
    """Minimises |x - target|^2 / 2 with learning rate 0.5: each step halves the distance."""

    def __init__(self, layout, target, **more):
        super().__init__(layout, **more)
        self.target = np.float32(target)

    def step(self):
        self.x += np.float32(self.learning_rate) * (self.target - self.x)


class Adding(Toy):
    """Adds the same number to every element whenever it trains, however many steps."""

    def __init__(self, layout, number=1.0, **more):
        super().__init__(layout, **more)
        self._number = np.float32(number)

    def train(self, steps, **_):
        self.x += self._number
        return self.observe(steps)


class Counter(Toy):
    """Adds 1 to its own coordinate in every block, so that the model tells whose updates it holds.

    With alpha = 1 and nothing skipped a model is torn if its blocks differ, and lacks the worker's own update if the
    worker's coordinate is not the number of its updates.
    """

    def __init__(self, worker, workers, blocks, poison=0.0, **more):
        super().__init__(Layout.of([(f"b{b}", (workers,)) for b in range(blocks)]), **more)
        self.worker, self.shape = worker, (blocks, workers)
        self.poison, self.rng = poison, np.random.default_rng(worker or 0)
        self.expected = 0
        self.started = False
        self.pending = 0
        self.models = 0

    def copy_from(self, values):
        super().copy_from(values)
        counts = values.reshape(self.shape)
        assert (counts == counts[0]).all(), f"a torn model: {counts}"
        assert (counts == counts.astype(int)).all()
        if self.worker is not None and not self.started:
            self.expected = counts[0, self.worker]
        elif self.worker is not None:
            self.expected += self.pending
            assert counts[0, self.worker] == self.expected, (self.worker, counts[0], self.expected)
        self.started = True
        self.pending = 0
        self.models += 1

    def step(self):
        if self.worker is not None:
            if self.rng.random() < self.poison:
                self.x[:] = np.nan
            else:
                self.x.reshape(self.shape)[:, self.worker] += 1
            self.pending = 0 if np.isnan(self.x).any() else self.pending + 1


def spec(rule, *, servers=1, validators=1, workers=2, epochs=2, **tables):
    run = {
        "name": "toy",
        "topology": {"servers": servers, "validators": validators, "workers": workers},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "train": {"mode": "async", "epochs": epochs},
        "validation": {"rule": rule if isinstance(rule, dict) else {"kind": rule}},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return Run.model_validate(run)


def everyone(run):
    return Roster.of(run).everyone()


class Played:
    """A finished run: its records by process, and its final model."""

    def __init__(self, path, run):
        self.records = {file.stem: read_lines(file).lines for file in Path(path, "records").glob("*.jsonl")}
        parts = [f"server-{s}" for s in range(run.topology.servers)] or ["worker-0"]
        self.model = np.concatenate([np.load(Path(path, f"final/{part}.npy")) for part in parts])

    def lines(self, process, event):
        return [line for line in self.records[process] if line["event"] == event]

    @property
    def log(self):
        return self.lines("server-0", "applied")


class Endpoint:
    """An endpoint that passes on whatever a role sends and receives; tests note or change some of it."""

    def __init__(self, inner):
        self.inner, self.traffic = inner, inner.traffic

    def send(self, to, envelope):
        self.inner.send(to, envelope)

    def receive(self):
        return self.inner.receive()


class Tampering(Endpoint):
    """An endpoint that calls `change` with the endpoint below, the receiver and the envelope in place of some sends."""

    def __init__(self, inner, change, chosen):
        super().__init__(inner)
        self._change, self._chosen = change, chosen

    def send(self, to, envelope):
        if self._chosen(envelope.message):
            self._change(self.inner, to, envelope)
        else:
            super().send(to, envelope)


def changed(envelope, **fields):
    """Return an envelope with other fields in its message."""
    return replace(envelope, message=replace(envelope.message, **fields))


def send_raw(sender, endpoint, to, header, payload=None):
    """Send bytes that need not be a message."""
    endpoint._boxes[to].append((sender, 0, 0, header, None if payload is None else payload.tobytes()))


class Stepped:
    """The roles of a run in this process, which a test lets take their steps.

    Args:
        path: the run's folder.
        run: the run.
        trainer: makes the trainer of a worker or validator; by default they train as the run says.
        wrap: may wrap the endpoint of a role.
        more: arguments of a role's driver, by role.
    """

    def __init__(self, path, run, trainer=None, wrap=None, more=None):
        self.path, self.run, self.nodes, self.endpoints = Path(path), run, {}, {}
        self.records, self._trainer = [], trainer
        self.directory, exchange = RunDirectory(self.path), Exchange()
        self.directory.create({"run_id": "toy"})
        for peer in everyone(run):
            endpoint = exchange.endpoint(peer)
            self.endpoints[peer] = wrap(peer, endpoint) if wrap else endpoint
            record = RecordWriter(self.path, "toy", peer.role, peer.index, "here")
            self.records.append(record)
            own_more = (more or {}).get(peer, {})
            self.nodes[peer] = RoleDriver(self.role_of(peer), self.endpoints[peer], record, self.directory, **own_more)

    def role_of(self, peer):
        """Make the role of a peer."""
        if self._trainer is None or peer.role in ("server", "adversary"):
            return make_role(self.run.identified("toy"), peer)
        return make_training_role(self.run.identified("toy"), peer, self._trainer(peer))

    def go_on(self, without=()):
        """Step all other roles in turn until none of them can."""
        nodes = [node for peer, node in self.nodes.items() if peer not in without]
        while any([not node.finished and node.step() for node in nodes]):  # noqa: C419 (a turn for each of them)
            pass

    def to_the_end(self):
        """Step all roles until they have finished; return the run."""
        self.go_on()
        assert all(node.finished for node in self.nodes.values()), "the run must go on"
        return Played(self.path, self.run)


def play(path, run, trainers, wrap=None, clock=None):
    """Run roles with these trainers (by peer) in process; `wrap` may wrap an endpoint."""
    clock = clock or EventQueue()
    stepped = Stepped(path, run, trainers.__getitem__, wrap, {peer: {"clock": clock} for peer in everyone(run)})
    with ExitStack() as stack:
        for record in stepped.records:
            stack.enter_context(record)
        take_turns(list(stepped.nodes.values()), stepped.directory, clock)
    return Played(path, run)

"""Runs of trainers without a framework, in virtual time."""

from contextlib import nullcontext
from pathlib import Path

from toy_trainers import Played, Quadratic, everyone

from hpcps.execution.inprocess import check_finished
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role, make_training_role
from hpcps.execution.simulation.driver import Simulation
from hpcps.numerics.layout import Layout
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.spec.schema import Run

ONE = Layout.of([("x", (1,))])


def spec(simulation, *, mode="sync", rule="average", servers=1, validators=0, workers=2, epochs=2, **tables):
    return Run.model_validate(
        {
            "name": "toy",
            "topology": {"servers": servers, "validators": validators, "workers": workers},
            "transport": {"kind": "inproc"},
            "model": {"name": "mlp"},
            "data": {"name": "digits"},
            "train": {"mode": mode, "epochs": epochs},
            "validation": {"rule": rule if isinstance(rule, dict) else {"kind": rule}},
            "simulation": {"kind": "modelled", **simulation},
            **tables,
        }
    )


def constant(seconds):
    return {"kind": "constant", "seconds": seconds}


class Examined(Quadratic):
    """Has another one that measures beside it."""

    @property
    def evaluator(self):
        return Quadratic(self.layout, self.target)


def simulate(path, run, order=lambda nodes: nodes, trainer=Quadratic):
    """Play a run in virtual time; `order` may have the roles begin in another order."""
    directory, simulation = RunDirectory(Path(path)), Simulation(run)
    directory.create({"run_id": "toy"})
    nodes = []
    for peer in everyone(run):
        if peer.role in ("server", "adversary"):
            role = make_role(run.identified("toy"), peer)
        else:
            role = make_training_role(run.identified("toy"), peer, trainer(ONE, 8 - 3 * peer.index))
        record = RecordWriter(directory.path, "toy", peer.role, peer.index, simulation.host(peer), simulation.clock)
        nodes.append(
            RoleDriver(
                role,
                simulation.exchange.endpoint(peer),
                record,
                directory,
                clock=simulation.clock,
                stopwatch=simulation.stopwatch(peer),
                background=simulation.background(peer),
            )
        )
    drivers = {node.peer: node for node in order(nodes)}
    simulation.execute(drivers, lambda node: nullcontext(), no_replacement)
    check_finished(nodes)
    return Played(path, run)


def no_replacement(peer, incarnation):
    raise AssertionError(f"{peer} is lost")


def times(played, process, event="round"):
    return [line["time"] for line in played.lines(process, event)]

"""One rank of hpcps in a measurement: the process that `hpcps run` starts, without training.

    mpirun ... python -m mpi4py hpcps_rank.py PLAN ROLE

The roles, the transport and the runtime are those of hpcps. The trainer adds a constant to the model, which takes no
time. The workers wait at a barrier before they send their packed updates, or before they pack and encode them if the
case says so. There the time of a round begins. It ends, in turn, when a worker can read the new model in place, and in
the next round when it has adopted the model. Then it waits at the barrier for the others: like the ranks of a peer, it
does not take the core from one that still waits for its result, neither to adopt the model nor for its next update. The
folder in HPCPS_BENCHMARK holds the barrier and `cases.json`, in which the run's seed is the index of the case.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from barrier import Barrier

from hpcps.execution.__main__ import main
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.roles.collective.worker import CollectiveWorker
from hpcps.roles.events import Compute, Effect, Event, Finish
from hpcps.roles.sync.worker import SyncWorker
from hpcps.spec.schema import Run
from hpcps.training import build
from hpcps.training.evaluation import Evaluation, Progress

FOLDER = Path(os.environ["HPCPS_BENCHMARK"])
BLOCKS = 32


class Constant:
    """A trainer whose step adds the same number to every parameter, so that the new model is known.

    The case gives the size of the model; only the value of its elements is kept.
    """

    device = "cpu"
    batch_size = 1
    learning_rate = 1.0

    def __init__(self, step: float, expected: float, case: dict[str, Any], tolerance: float) -> None:
        size = case["elements"]
        cuts = [size * b // BLOCKS for b in range(BLOCKS + 1)]
        self.layout = Layout.of([(f"block{b}", (cuts[b + 1] - cuts[b],)) for b in range(BLOCKS)])
        self.steps_per_epoch = case["rounds"]
        self.steps_done = 0
        self.statistics: Vector = np.zeros(0, np.float32)
        self._step, self._expected, self._tolerance = step, expected, tolerance
        self._value = 0.0
        self._adopted: Vector | None = None

    def state(self) -> State:
        """Return an empty state: runs are not resumed."""
        return State()

    def restore(self, state: State) -> None:
        """Do nothing: runs are not resumed."""

    def copy_to(self, out: Vector) -> None:
        """See `Trainer`."""
        out.fill(self._value)

    def copy_from(self, values: Vector) -> None:
        """Take the model; `check` looks at it, outside of the measured time."""
        self._adopted = values

    def check(self) -> None:
        """Check the model that was adopted last: all of it in the last round, else a sample.

        Raises:
            AssertionError: it is not the sum of the previous model and the combined update.
        """
        values, self._adopted = self._adopted, None
        if values is None:
            return
        last = self.steps_done == self.steps_per_epoch
        sample = values if last else values[:: max(1, values.size // 1000)]
        self._value = self._expected * self.steps_done
        assert np.allclose(sample, self._value, rtol=self._tolerance, atol=0), (
            f"the model after {self.steps_done} rounds is {sample}"
        )

    def train(self, steps: int, **_: Any) -> Progress:
        """See `Trainer`."""
        self.check()
        self.steps_done += steps
        self._value += self._step
        return Progress(steps, steps, 0.0, 0)

    observe = train

    @property
    def evaluator(self) -> None:
        """There is nothing to measure."""

    def evaluate(self) -> Evaluation:
        """See `Trainer`."""
        return Evaluation(1, 0.0, 0.0, True, 0.0, ((0, 1),))

    def load_statistics(self, values: Vector) -> None:
        """It has none."""

    def reestimate_statistics(self) -> None:
        """It has none."""


def build_constant(run: Run, role: str, index: int) -> Constant:
    """Return the trainer of a role; see `build_trainer`.

    A worker adds its index + 1, so that the mean over n of them is (n + 1) / 2. With other rules all add the same.
    """
    case = json.loads((FOLDER / "cases.json").read_text())[run.seed]
    expected = (run.topology.workers + 1) / 2
    own = role == "worker" and run.validation.rule.kind == "average"
    tolerance = 0 if run.communication.compression.kind == "none" else 1e-5
    return Constant(index + 1.0 if own else expected, expected, case, tolerance)


class Watched:
    """Passes a worker's events and effects on, with the barrier and the clock between them."""

    def __init__(self, peer: Peer, run: Run, check: Callable[[], None]) -> None:
        self._check = check
        self._packs = json.loads((FOLDER / "cases.json").read_text())[run.seed]["packs"]
        self._barrier = Barrier(FOLDER / f"case-{run.seed}", run.topology.workers)
        self._file = FOLDER / f"times-{run.seed}-{peer.index}.json"
        self._times: list[list[float]] = []
        self._began: float | None = None

    def watch(self, effects: Iterator[Effect]) -> Iterator[Effect]:
        """Pass the effects on; a round begins before or after packing, and ends before or after adopting."""
        for effect in effects:
            match effect:
                case Compute("pack", work):
                    yield replace(effect, work=lambda work=work: self._pack(work))
                case Compute("adopt", work):
                    yield replace(effect, work=lambda work=work: self._adopt(work))
                case Finish():
                    self._file.write_text(json.dumps(self._times[1:]))
                    yield effect
                case _:
                    yield effect

    def _adopt(self, work: Callable[[], Any]) -> Any:
        # The first round is left out, so that the list begins with a round in place.
        in_place = len(self._times) % 2 == 1
        if self._began is not None and in_place:
            self._times.append([self._began, time.monotonic()])
            self._barrier.wait()
        result = work()
        if self._began is not None and not in_place:
            self._times.append([self._began, time.monotonic()])
            self._barrier.wait()
        self._check()
        return result

    def _pack(self, work: Callable[[], Any]) -> Any:
        if self._packs:
            self._began, _ = self._barrier.wait()
            return work()
        packed = work()
        self._began, _ = self._barrier.wait()
        return packed


class WatchedWorker(SyncWorker):
    """The worker that the runtime creates in this process."""

    def __init__(self, peer: Peer, run: Run, *more: Any) -> None:
        super().__init__(peer, run, *more)
        self._watched = Watched(peer, run, self._trainer.check)

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        return self._watched.watch(super().handle(event))


class WatchedCollectiveWorker(CollectiveWorker):
    """The same without servers."""

    def __init__(self, peer: Peer, run: Run, *more: Any) -> None:
        super().__init__(peer, run, *more)
        self._watched = Watched(peer, run, self._trainer.check)

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        return self._watched.watch(super().handle(event))


if __name__ == "__main__":
    from hpcps.execution import role_factory

    build.build_trainer = build_constant
    role_factory.SyncWorker = WatchedWorker
    role_factory.CollectiveWorker = WatchedCollectiveWorker
    sys.exit(main())

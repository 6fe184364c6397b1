"""A trainer that does next to nothing, for tests of what is sent: a step adds the same to every element."""

import numpy as np

from hpcps.numerics.state import State
from hpcps.training.trainer import Evaluation, Progress


class IdleTrainer:
    """Its model is one flat vector; a step adds `step` to it."""

    device = "cpu"
    batch_size = 1
    learning_rate = 1.0
    statistics = np.zeros(0, np.float32)
    evaluator = None

    def __init__(self, layout, step=1.0, steps_per_epoch=1):
        self.layout = layout
        self.steps_per_epoch = steps_per_epoch
        self.steps_done = 0
        self._step = np.float32(step)
        self._x = np.zeros(layout.size, np.float32)

    def state(self):
        return State({"x": self._x.copy()}, {"steps": self.steps_done})

    def restore(self, state):
        self._x[:], self.steps_done = state.arrays["x"], state.facts["steps"]

    def copy_to(self, out):
        out[:] = self._x

    def copy_from(self, values):
        self._x[:] = values

    def train(self, steps, **_):
        self._x += self._step
        return self.observe(steps)

    def observe(self, steps):
        self.steps_done += steps
        return Progress(steps, steps, 0.0, 0)

    def evaluate(self):
        return Evaluation(1, 0.0, 0.0, True)

    def load_statistics(self, values):
        pass

    def reestimate_statistics(self):
        pass

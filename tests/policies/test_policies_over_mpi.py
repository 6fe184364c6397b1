"""Policies of local steps over MPI, with imposed speeds; the steps themselves take a known time."""

import subprocess
import sys
from math import floor
from statistics import median

import pytest

from hpcps.figures.method_comparison import comparisons_of
from hpcps.records.collect import collect

pytestmark = pytest.mark.soak

STEP = 0.04
FACTORS = (10, 1, 3)

SLEEPER = f'''
import time
from typing import Literal

from hpcps.models import Model


class Sleeper(Model):
    """A linear layer whose step takes {STEP} s, and nearly no core."""

    name: Literal["sleeper"] = "sleeper"

    def build(self, shape, classes):
        from torch import nn

        class Slow(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(64, classes)

            def forward(self, x):
                time.sleep({STEP})
                return self.layer(x.flatten(1))

        return Slow()
'''

EXPERIMENT = f"""
name = "speeds"
plugins = ["sleeper.py"]

[topology]
servers = 2
validators = 0
workers = 3

[model]
name = "sleeper"

[data]
name = "digits"
limit = 96
test_limit = 20
shards = 3

[train]
epochs = 2
passes_per_epoch = 12
batch_size = 16

[[heterogeneity.classes]]
name = "slow"
workers = [0]
factor = {FACTORS[0]}

[[heterogeneity.classes]]
name = "fast"
workers = [1]

[[heterogeneity.classes]]
name = "between"
workers = [2]
factor = {FACTORS[2]}

[[sweep]]
"train.local_steps" = [
    {{ kind = "esync" }},
    {{ kind = "esync", epsilon = 0.1, blocking = false }},
    {{ kind = "esync", epsilon = 0.5 }},
    {{ kind = "dylu", most = 10 }},
]
"""


UNEQUAL = """
[[heterogeneity.classes]]
name = "slow"
workers = [3]
factor = 10

[[sweep]]
"train.local_steps" = [1, { kind = "esync", epsilon_share = 0.05 }]
"train.epochs" = [5, 35]
"""
"""A slow worker and three fast ones, of which ESync takes about 7 times as many steps in the same time."""


def closed_form(point, seconds):
    """Return the steps of each worker by the formula of its policy, from its seconds per step."""
    if point == 3:
        return [max(1, floor(10 * min(seconds) / each)) for each in seconds]
    slowest = max(seconds)
    epsilon = (0.05 * slowest, 0.1, 0.5)[point]
    return [1 if each == slowest else max(1, floor((slowest - epsilon) / each)) for each in seconds]


def table_of(text, folder):
    """Run an experiment, and return its records."""
    (folder / "speeds.toml").write_text(text)
    (folder / "sleeper.py").write_text(SLEEPER)
    command = [sys.executable, "-m", "hpcps", "run", "speeds.toml", "--results", folder]
    subprocess.run(command, cwd=folder, check=True, timeout=240)
    return collect(folder / "speeds").table


def test_esync_processes_five_times_as_many_samples_as_waiting_for_the_slowest(tmp_path):
    text = EXPERIMENT.partition("[[heterogeneity.classes]]")[0] + UNEQUAL
    for change in (("workers = 3", "workers = 4"), ("shards = 3", "shards = 4"), ("passes_per_epoch = 12\n", "")):
        text = text.replace(*change)
    (shown,) = comparisons_of([(table_of(text, tmp_path), None)])
    rates = {one.line: float(one.throughput.mean[0]) for one in shown.rates[""]}
    assert rates["ESync"] >= 5 * rates["SSGD"], rates


def test_workers_take_the_steps_of_the_closed_form(tmp_path):
    table = table_of(EXPERIMENT, tmp_path)
    rounds = table[(table["event"] == "round") & (table["role"] == "worker") & (table["round"] > 0)]
    found = {}
    for point, own in rounds.groupby("point"):
        workers = [lines for _, lines in own.groupby("index")]
        steps = [median(lines["local_steps"]) for lines in workers]
        seconds = [median(lines["step_seconds"]) for lines in workers]
        assert seconds == pytest.approx([STEP * factor for factor in FACTORS], rel=0.3)
        found[point] = steps
        for worker, (taken, told) in enumerate(zip(steps, closed_form(point, seconds), strict=True)):
            assert abs(taken - told) <= 1, (point, worker, seconds)
        assert steps[0] == 1
    assert found[0][1] >= 8 > found[1][1] >= 6
    assert found[2] == [1, 1, 1], "epsilon is longer than the slowest step"
    assert found[3][1] == 10

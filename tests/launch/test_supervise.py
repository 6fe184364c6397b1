"""What becomes of a launcher's exit status."""

from pathlib import Path

import pytest

from hpcps.launch.dialects import Job, Launch
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.supervise import supervise


@pytest.mark.parametrize(
    ("end", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 143", 1), ("exit 130", 1), ("kill -KILL $$", 137), ("kill -TERM $$", 1)],
)
def test_a_launch_that_nobody_stopped_does_not_end_as_if_it_was(tmp_path, end, status):
    """srun ends with 143 when it ended the other ranks itself, because one failed."""
    plan = Plan((Rank(0, "worker", 0, "localhost"),), ())
    job = Job(plan, tmp_path / "conf.plan.json", tmp_path / "conf", Path("sh"), Path("python"))
    outcome = supervise(Launch(job, {}, ("sh", "-c", end)), on_output=lambda line: None, tick=0.05)
    assert (outcome.status, outcome.stopped) == (status, None)

"""Runs over ps-lite that lose processes of all roles, several at once, at random moments: they go on to their end.

Threads of one process are the processes of the run, so that a run takes some seconds; see `run_in_threads`.
"""

import pytest
from executed import lines
from run_in_threads import ENDS, ThreadedRun, run_of
from survive.test_lost_servers import assert_replayed
from survive.test_lost_validators import assert_evaluated

from hpcps.protocol.roster import Roster

SHAPES = ((1, 2, 3), (2, 2, 3), (2, 1, 3))
"""Servers, validators, workers."""
MODES = (
    {},
    {"train": {"quorum": 0.5, "late": "next"}},
    {"train": {"mode": "async"}, "validation": {"rule": {"kind": "naive_async"}}},
)
"""Synchronous, with a quorum, and asynchronous."""
KILLS = 9


def play(seed, folder, epochs=2):
    """Execute a random run; return it, and how it ended."""
    shape, mode = SHAPES[seed % len(SHAPES)], MODES[seed // len(SHAPES) % len(MODES)]
    played = ThreadedRun(run_of(shape, epochs=epochs, seed=seed, **mode), folder, seed)
    return played, played.execute(KILLS)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "seed",
    [
        *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(9)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(9, 500)),
    ],
)
def test_a_run_that_loses_processes_of_all_roles(seed, tmp_path):
    played, ended = play(seed, tmp_path / "run", epochs=1 + seed % 2)
    if ended != "done":
        assert ended in ENDS, "it has lost both processes of a server"
        return
    played.directory.finish(1.0, map(str, Roster.of(played.run).everyone()))
    assert_evaluated(played.run, lines(tmp_path / "run", "validator-0", "evaluation"))
    try:
        assert_replayed(played.run, tmp_path / "run", tmp_path / "replay")
    except BaseException as error:
        error.add_note(played.story())
        raise

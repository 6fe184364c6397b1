"""Runs over ps-lite that lose processes of all roles, several at once, at random moments: they go on to their end.

Threads of one process are the processes of the run, so that a run takes some seconds; see `run_in_threads`.
"""

import pytest
from executed import lines
from run_in_threads import ENDS, ThreadedRun, run_of
from survive.test_lost_servers import assert_replayed
from survive.test_lost_validators import assert_evaluated

from hpcps.protocol.roster import Roster
from hpcps.transport.pslite.transport import PsliteTransport

SHAPES = ((1, 2, 3), (2, 2, 3), (2, 1, 3))
"""Servers, validators, workers."""
MODES = (
    {},
    {"train": {"quorum": 0.5, "late": "next"}},
    {"train": {"mode": "async"}, "validation": {"rule": {"kind": "naive_async"}}},
)
"""Synchronous, with a quorum, and asynchronous."""
KILLS = 9


def random_run(seed, folder, timeout=15.0):
    """Return a random run."""
    shape, mode = SHAPES[seed % len(SHAPES)], MODES[seed // len(SHAPES) % len(MODES)]
    return ThreadedRun(run_of(shape, epochs=1 + seed % 2, seed=seed, **mode), folder, seed, timeout)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(500))
def test_a_run_that_loses_processes_of_all_roles(seed, tmp_path):
    played = random_run(seed, tmp_path / "run")
    if played.execute(KILLS) in ENDS:
        return
    played.directory.finish(1.0, [str(peer) for peer in Roster.of(played.run).everyone() if played.finished(peer)])
    assert_evaluated(played.run, lines(tmp_path / "run", "validator-0", "evaluation"))
    try:
        assert_replayed(played.run, tmp_path / "run", tmp_path / "replay")
    except BaseException as error:
        error.add_note(played.story())
        raise


@pytest.mark.soak
def test_a_planted_fault_is_found(tmp_path, monkeypatch):
    """No process takes the standby of a lost server for the server."""
    monkeypatch.setattr(PsliteTransport, "switch", lambda self, server: None)
    with pytest.raises(AssertionError, match=r"(?s)kill server-0.* waited 4 s in round"):
        random_run(3, tmp_path, timeout=4.0).execute(1, ["server"])

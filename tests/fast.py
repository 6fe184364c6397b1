"""What `pytest --fast`, and so `make test`, runs: what takes little time and starts no processes.

It leaves out the tests that start processes, except those in tests/end_to_end, and those that take long (`thorough`),
takes only some parameters of others (`sample(n)`), and a fifth of Hypothesis's examples (`examples`). With
`sample(n, m)`, `make test-all` takes only m parameters, and `make soak` the others. A test starts
processes if it, or a fixture that it requests, requests `starts_processes`; one that does so without it fails, and so
does one that takes more than two seconds of CPU time twice in turn.
"""

import io
import itertools
import os
import resource
import sys
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

FAST_SECONDS = 2.0
"""CPU time that a test of --fast may take on a machine on which `_work` takes `WORK_SECONDS`."""
WORK_SECONDS = 0.05
PROGRAMS = ("python", "mpi", "hpcps", "srun", "sbatch")
"""Beginnings of the names of the programs that only tests with `starts_processes` start; others take milliseconds."""

EXAMPLES = 5
"""--fast takes one of so many of Hypothesis's examples."""

_is_fast = False
_started: list[str] = []
_took = pytest.StashKey[float]()
_is_second_time = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def starts_processes() -> None:
    """Allow a test to start processes of Python or MPI. A fork is no such process: it takes hundredths of a second."""


def examples(number: int) -> int:
    """Return how many examples a test of Hypothesis takes that takes this many in `make test-all`."""
    return max(1, number // EXAMPLES) if _is_fast else number


def pytest_configure(config: pytest.Config) -> None:
    global _is_fast
    _is_fast = config.getoption("--fast")
    if not _is_fast:
        return
    from hypothesis import settings  # here, because tests on a GPU may run without it

    settings.register_profile("fast", max_examples=examples(100))
    settings.load_profile("fast")


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Remember each process that this process starts."""
    if event in ("subprocess.Popen", "os.posix_spawn"):
        name = Path(os.fsdecode(arguments[0] or arguments[1][0])).name  # type: ignore[index, arg-type]
        if name.startswith(PROGRAMS):
            _started.append(name)


sys.addaudithook(_watch)


def _cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _work() -> float:
    """Return the CPU time of a fixed computation."""
    began = time.process_time()
    sum(number * number for number in range(1_000_000))
    return time.process_time() - began


def _warm_up() -> None:
    """Use the large packages once: the first test that uses one would else take up to two seconds more."""
    import matplotlib.pyplot as plt
    import pandas as pd
    import scipy.stats  # noqa: F401
    import sklearn.datasets
    import torch
    from hypothesis import given, strategies

    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten())
    network(torch.ones(4, 3, 8, 8)).sum().backward()
    sklearn.datasets.load_digits()
    pd.read_parquet(io.BytesIO(pd.DataFrame({"accuracy": [0.5]}).to_parquet()))
    figure, axes = plt.subplots(layout="constrained")
    axes.plot([0, 1], label="x")
    axes.legend()
    for form in ("png", "pdf"):
        figure.savefig(io.BytesIO(), format=form)
    plt.close(figure)
    given(strategies.integers(), strategies.floats(), strategies.text())(lambda number, real, text: None)()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="the tests of `make test`: see tests/fast.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    # All modules are imported by now; Hypothesis reads the constants of each before the first example.
    starts_workers = session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput")
    if session.config.getoption("--fast") and not starts_workers:
        _warm_up()


def _is_end_to_end(item: pytest.Item) -> bool:
    return item.path.parent.name == "end_to_end"


def _is_fast_enough(item: pytest.Item) -> bool:
    """Whether a test, or this parameter of it, takes little time and starts no processes."""
    if _is_end_to_end(item):
        return True
    starts = "starts_processes" in item.fixturenames  # type: ignore[attr-defined]
    return not (starts or item.get_closest_marker("thorough") or item.get_closest_marker("soak"))


def _sampled(items: list[pytest.Item], argument: int) -> list[pytest.Item]:
    """Return the items that an argument of `sample` takes: so many of each test, evenly spread."""
    chosen: list[pytest.Item] = []
    for _, group in itertools.groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        of_test = list(group)
        mark = of_test[0].get_closest_marker("sample")
        number = mark.args[argument] if mark and len(mark.args) > argument else len(of_test)
        if len(of_test) > number:
            places = {round(k * (len(of_test) - 1) / max(1, number - 1)) for k in range(number)}
            of_test = [of_test[place] for place in sorted(places)]
        chosen += of_test
    return chosen


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what has the mark `soak`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unsoaked = [item for item in items if not item.get_closest_marker("soak")]
    for item in set(unsoaked).difference(_sampled(unsoaked, 1)):
        item.add_marker("soak")
    if not config.getoption("--fast"):
        return
    taken = _sampled([item for item in items if _is_fast_enough(item)], 0)
    config.hook.pytest_deselected(items=list(set(items).difference(taken)))
    items[:] = taken


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    before = _cpu_seconds()
    result = yield
    took = item.stash[_took] = _cpu_seconds() - before
    if item.stash.get(_is_second_time, False):
        # As fast as the machine is now: other work may slow it down.
        limit = FAST_SECONDS * max(1.0, _work() / WORK_SECONDS)
        if took > limit:
            pytest.fail(
                f"took {took:.1f} s of CPU time; a test of `make test` may take {limit:.1f} s on this machine: "
                "make it smaller, or mark it `thorough`, for `make test-all`",
                pytrace=False,
            )
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):
    """Execute a test that took too long once more: it may have paid for the first use of a package."""
    result = yield
    is_limited = item.config.getoption("--fast") and not _is_end_to_end(item)
    if is_limited and item.stash.get(_took, 0.0) > FAST_SECONDS:
        item.stash[_is_second_time] = True
        runtestprotocol(item, nextitem=nextitem)
    return result


@pytest.fixture(autouse=True)
def _processes_are_declared(request: pytest.FixtureRequest):
    """Fail a test of --fast that starts a process without `starts_processes`."""
    _started.clear()
    yield
    if request.config.getoption("--fast") and _started and "starts_processes" not in request.fixturenames:
        pytest.fail(f"the test starts {', '.join(_started)}: request the fixture starts_processes", pytrace=False)

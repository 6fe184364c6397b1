"""Starts runs, and makes sure that nothing of them outlives its test."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_runs import ENDLESS, HPCPS, Play


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """The file of an experiment that lasts."""
    file = tmp_path / "faults.toml"
    file.write_text(ENDLESS)
    return file


@pytest.fixture
def start(experiment: Path) -> Iterator[Callable[..., Play]]:
    """Start `hpcps run` with some arguments, or, with `command`, what leads to the same."""
    plays: list[Play] = []

    def begin(*arguments: str, file: Path = experiment, command: tuple[str, ...] = (), **options: object) -> Play:
        results = experiment.parent / "results"
        run = (*HPCPS, "run", str(file), "--results", str(results), *arguments)
        plays.append(Play(results, command or run, **options))
        return plays[-1]

    yield begin
    for play in plays:
        play.kill()


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> Iterator[None]:
    """Let what is started here hear Ctrl-C, also where a shell runs the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

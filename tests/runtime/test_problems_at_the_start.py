"""A problem that one process has before a run: all processes end, and the one that has it is the first."""

from types import SimpleNamespace

import pytest

from hpcps.execution import process


@pytest.mark.parametrize(("rank", "waits"), [(0, True), (1, False), (2, True)])
def test_the_process_with_the_problem_ends_first(rank, waits, monkeypatch):
    """Otherwise the guard of another one reports its end, which has no report, so that it seems to be the cause."""
    calls = []
    monkeypatch.setattr(process.time, "sleep", lambda seconds: calls.append(("sleep", seconds > 0)))
    group = SimpleNamespace(
        rank=rank,
        leads=rank == 0,
        collect=lambda problem: ["", "the disk is full", ""],
        barrier=lambda: calls.append("barrier"),
    )
    assert not process.collective_check(group, "the disk is full" if rank == 1 else "", lambda: calls.append("report"))
    assert calls == [*(["report"] if rank == 1 else []), "barrier", *([("sleep", True)] if waits else [])]


def test_nobody_waits_without_a_problem(monkeypatch):
    monkeypatch.setattr(process.time, "sleep", lambda seconds: pytest.fail("it waits"))
    group = SimpleNamespace(rank=1, leads=False, collect=lambda problem: ["", ""], barrier=lambda: None)
    assert process.collective_check(group, "")

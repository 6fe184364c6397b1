"""What `hpcps run` shows while it plays."""

import io
import json

import pytest

from hpcps.records.display import ProgressDisplay
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def paths(tmp_path):
    """Two runs, a quarter of the way after ten seconds, and one that has not started."""
    for seed in (1, 2):
        directory = RunDirectory(tmp_path / str(seed))
        run = {"topology": {"validators": 1}, "train": {"epochs": 4}}
        directory.create({"run_id": str(seed), "label": f"seed {seed}", "run": run})
        lines = [{"event": "round", "round": r, "epoch": r, "time": 10.0 * r} for r in (0, 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory.path / "records" / "validator-0.jsonl").write_text(text)
    return [tmp_path / name for name in "123"]


def drawn(paths, monkeypatch, columns=200):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    run = {"topology": {"validators": 1}, "train": {"epochs": 4}}
    with ProgressDisplay(SweepProgress(paths), stream, [("", run)] * len(paths)) as display:
        display.update()
    return stream.getvalue()


def test_several_runs_at_a_time_share_a_line_with_the_time_that_is_left(paths, monkeypatch):
    # (30 + 30 + 4 epochs of 10 s) at two a time
    assert "\r\033[K      2 at a time: seed 1 1.0/4, seed 2 1.0/4  about 50 s left" in drawn(paths, monkeypatch)


def test_a_run_by_itself_is_shown_in_full(paths, monkeypatch):
    text = drawn([paths[0]], monkeypatch)
    assert "seed 1                    epoch   1.0/4" in text
    assert "about 30 s left" in text


def test_lost_processes_and_excluded_workers_are_counted(paths, monkeypatch):
    with (paths[0] / "records" / "validator-0.jsonl").open("a") as record:
        for line in ({"event": "lost", "process": "worker-2"}, {"event": "excluded", "worker": 1}):
            record.write(json.dumps({**line, "time": 10.0}) + "\n")
    assert "1 process lost  1 worker excluded  0:0" in drawn([paths[0]], monkeypatch)


@pytest.mark.parametrize(
    ("count", "alone", "first"),
    [
        (1, False, "1 run to execute; starting the processes ..."),
        (1, True, "1 run to execute, in one process ..."),
        (3, True, "3 runs to execute, each in one process ..."),
    ],
)
def test_the_first_line_says_what_starts(paths, count, alone, first):
    stream = io.StringIO()
    with ProgressDisplay(SweepProgress(paths[:count]), stream, alone=alone):
        assert stream.getvalue() == f"{first}\n"


def test_a_line_does_not_wrap(paths, monkeypatch):
    lines = drawn(paths, monkeypatch, columns=30).split("\r\033[K")
    assert len(lines[1]) == 29


def test_elsewhere_than_in_a_terminal_it_is_plain(paths):
    stream = io.StringIO()
    with ProgressDisplay(SweepProgress(paths), stream) as display:
        display.update()
        for name in "12":
            RunDirectory(paths[0].parent / name).finish(40.0)
        display.update()
    assert "\033" not in stream.getvalue()
    lines = stream.getvalue().splitlines()[1:]
    assert [line[:13].rstrip() for line in lines] == ["[1/3] seed 1", "[2/3] seed 2"]
    assert all("epoch   1.0/4  0:" in line for line in lines)


def test_a_run_that_its_process_has_finished_is_done_before_the_files_show_it(paths):
    """A shared file system may show the last files of a run to another host only later."""
    stream = io.StringIO()
    display = ProgressDisplay(SweepProgress(paths), stream)
    display.update()
    assert not stream.getvalue()
    display.finish("2")
    display.finish("2")
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("[1/3] seed 2 ")
    assert "epoch   4.0/4" in line


def test_a_process_of_a_run_reads_the_records_seldom(paths, monkeypatch):
    followed, clock = SweepProgress(paths), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    polls = []
    monkeypatch.setattr(followed, "poll", lambda: polls.append(clock[0]) or [])
    display = ProgressDisplay(followed, io.StringIO())
    for clock[0] in (101.0, 129.0, 131.0, 140.0, 162.0):
        display.update_seldom()
    assert polls == [131.0, 162.0]

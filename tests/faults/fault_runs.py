"""Real runs to be disturbed: start `hpcps run`, see how far it is, and what it leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from running_processes import processes, within

from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
HPCPS = (sys.executable, "-m", "hpcps")
SOON = 40.0
"""Seconds within which everything has ended, on a busy machine too."""
MIDDLE = 5
"""The round at which runs are disturbed."""

ENDLESS = """
name = "faults"
seed = 3

[topology]
validators = 0
workers = 1

[model]
name = "mlp"

[data]
name = "digits"
limit = 320
test_limit = 32

[train]
epochs = 20_000
batch_size = 16
local_steps = 2

[communication]
skip_rate = 0.2
"""
"""An experiment that lasts for minutes: whoever trains costs two seconds at the start, whoever serves nothing."""


class Play:
    """A started `hpcps run`, or another command that leads to one.

    Attributes:
        results: the folder of results.
        mark: a text in the environment of the process and all its descendants.
        process: the process.
    """

    def __init__(self, results: Path, command: tuple[str, ...], **options: Any) -> None:
        self.results = results
        self.mark = uuid.uuid4().hex
        self._output = results.parent / f"output-{self.mark}.txt"
        self._before = {path: len(_lines(path)) for path in self._records()}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "FAULTS_MARK": self.mark},
                **{"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT, **options},
            )

    @property
    def text(self) -> str:
        """What has been printed."""
        return self._output.read_text(errors="replace")

    @property
    def run(self) -> RunDirectory:
        """The folder of the only run."""
        (path,) = self.results.glob("*/runs/*")
        return RunDirectory(path)

    def lines(self, process: str) -> list[dict[str, Any]]:
        """Return what a process has recorded since this play began."""
        found = [path for path in self._records() if path.stem == process]
        return [line for path in found for line in _lines(path)[self._before.get(path, 0) :]]

    def pid(self, process: str) -> int:
        """Return the id of the process that plays a role."""
        (start,) = (line for line in self.lines(process) if line["event"] == "start")
        return int(start["pid"])

    def until(self, process: str = "server-0", round: int = MIDDLE) -> None:
        """Wait until a process is in the middle of the run."""

        def there() -> bool:
            assert self.process.poll() is None, f"ended before round {round}:\n{self.text}"
            return any(line["event"] == "round" and line["round"] >= round for line in self.lines(process))

        within(120, there, f"{process} in round {round}")

    def until_resumed(self) -> None:
        """Wait until it says that it goes on from a checkpoint; what is printed may come later than its records."""
        within(60, lambda: "goes on from its checkpoint" in self.text, lambda: f"a run that goes on\n{self.text}")

    def end(self, seconds: float = SOON) -> int:
        """Wait for the end; return the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds:g} s:\n{self.text}\n{self.left()}") from None

    def left(self) -> dict[int, str]:
        """Find the processes that are still there."""
        return processes(self.mark) | processes(str(self.results))

    def kill(self) -> None:
        """Kill all processes that are still there."""
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _records(self) -> list[Path]:
        return [path for path in self.results.glob("*/runs/*/records/*.jsonl") if path.is_file()]


def _lines(path: Path) -> list[dict[str, Any]]:
    return read_lines(path).lines


def hpcps(*arguments: str | Path, prefix: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    """Call the command line to its end, from another folder than this one."""
    command = [*prefix, *HPCPS, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False, **options
    )


def assert_quiet(text: str) -> None:
    """Nobody should have to read a traceback."""
    assert "Traceback" not in text, text
    assert 'File "' not in text, text


def assert_blamed(text: str, run: RunDirectory, who: str, why: str) -> None:
    """The last message and the first report name who failed, where, in which round, doing what and why."""
    doing = r"(?:phase \w|after its record `\w)"
    what = rf"{who} on {re.escape(socket.gethostname())} failed in round \d+, {doing}.*?: .*?{why}"
    summary = text[text.rindex(f"hpcps: run {run.path.name} (") :]
    assert re.match(rf"hpcps: run \w+ \(.+\): {what}", summary), text
    assert re.match(what, str(run.failures[0])), run.failures
    # Its last lines come after it.
    said = [json.loads(line) for line in summary.splitlines()[1:]]
    assert {f"{line['role']}-{line['index']}" for line in said} == {who}

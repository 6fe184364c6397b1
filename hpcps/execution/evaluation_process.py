"""The process that evaluates for the role of the evaluator; it may end at any moment without ending the run.

A launcher ends all processes of a launch when one of them is lost, and the end of a launch is collective. So the
process that the launcher started only exchanges messages. It starts this one, which loads the framework, the data and
the network, and gives it one model after another.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hpcps.errors import RunError, text_of
from hpcps.execution.process_context import ProcessContext, planned_run
from hpcps.launch.guard import describe, tie_to_parent
from hpcps.launch.plan import PlannedRun
from hpcps.protocol.roster import Roster
from hpcps.roles.evaluation_job import Died, EvaluationJob, evaluate_with
from hpcps.roles.events import InBackground
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Evaluation
from hpcps.training.trainer import Trainer

_END = 5.0
"""Seconds in which the process ends by itself once it gets no more models."""


class EvaluationProcess:
    """Evaluates the models of one run after another in a process of its own; the end of this context ends the process.

    Attributes:
        pid: the process.
        device: where it computes, such as `cpu` or `cuda:0`.
        parameters: the number of parameters of its network.
        statistics: the number of its BatchNorm statistics.
        cpu: the CPU seconds that its evaluations have used.
    """

    def __init__(self) -> None:
        self.pid, self.device, self.parameters, self.statistics = 0, "", 0, 0
        self.cpu = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any]
        self._run: PlannedRun | None = None
        self._loading = self._cancelled = False

    def load(self, context: ProcessContext) -> None:
        """Load the network and the data of a run.

        Raises:
            RunError: the process failed or ended.
        """
        self._run = context.planned
        if self._process is None or self._cancelled or self._process.poll() is not None:
            self.restart()
        else:
            self._request(self._run)
        if isinstance(died := self._answer(), Died):
            raise RunError(
                f"the process {died.pid}, which evaluates, {died.how} while it loaded the model and the data"
            )

    def restart(self) -> None:
        """Start the process in place of one that has ended; it begins to load the run.

        Call this in the main thread: the kernel ends the process together with the thread that started it.
        """
        self._close()
        self._connection, theirs = Pipe()
        with theirs:
            # It does not inherit the connection to the launcher.
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self.pid, self._cancelled = self._process.pid, False
        self._request(self._run)

    def _request(self, run: PlannedRun | None) -> None:
        self._loading = True
        self._connection.send(run)

    def evaluating(self, job: EvaluationJob) -> InBackground:
        """Return the effect that evaluates a model."""
        return InBackground("evaluate", partial(self._evaluate, job), self.cancel)

    def cancel(self) -> None:
        """End the process, and with it the evaluation under way."""
        assert self._process is not None, "it evaluates"
        self._cancelled = True
        self._process.kill()

    def _evaluate(self, job: EvaluationJob) -> tuple[EvaluationJob, Evaluation | Died | None]:
        if self._loading and isinstance(died := self._answer(), Died):
            return job, None if self._cancelled else died
        try:
            self._connection.send(None)
            self._connection.send_bytes(job.model.data)
            self._connection.send_bytes(job.statistics.data)
        except OSError:
            answer: Evaluation | Died | None = self._death()
        else:
            answer = self._answer()
        return job, None if self._cancelled else answer

    def _answer(self) -> Evaluation | Died | None:
        """Return the evaluation that comes, or None if the run is loaded.

        Raises:
            RunError: the process failed.
        """
        try:
            error, answer, cpu = self._connection.recv()
        except (EOFError, OSError):
            return self._death()
        if error:
            raise RunError(error)
        loaded, self._loading = self._loading, False
        if loaded:
            self.device, self.parameters, self.statistics = answer
            return None
        self.cpu += cpu
        return answer  # type: ignore[no-any-return]

    def _death(self) -> Died:
        assert self._process is not None, "it has been started"
        self._process.kill()  # it has closed the connection, so it ends anyway
        return Died(self._process.pid, describe(self._process.wait()))

    def _close(self) -> None:
        if self._process is not None:
            self._connection.close()
            try:
                self._process.wait(_END)
            except subprocess.TimeoutExpired:  # for example, it is stopped
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> EvaluationProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def serve(connection: Connection[Any, Any]) -> None:
    """Load the runs and evaluate the models that come over a connection.

    An answer is the text of an error, or an empty one; the sizes of the network, or an evaluation; and the CPU seconds.

    Raises:
        EOFError, ConnectionError: the connection has ended.
    """
    trainer: Trainer | None = None
    reestimate = False
    while True:
        run = connection.recv()
        vectors = [] if run else [np.frombuffer(connection.recv_bytes(), np.float32) for _ in range(2)]
        answer: tuple[str, int, int] | Evaluation | None = None
        error, before = "", time.process_time()
        try:
            if run:
                trainer = None
                trainer, reestimate = _load(planned_run(run))
                answer = trainer.device, trainer.layout.size, trainer.statistics.size
            elif trainer is not None:
                with np.errstate(over="ignore", invalid="ignore"):  # `RoleDriver._compute` explains it
                    answer = evaluate_with(trainer, EvaluationJob(0, (), (), *vectors), reestimate=reestimate)
        except Exception as raised:
            error = text_of(raised)
        connection.send((error, answer, time.process_time() - before))


def _load(run: Run) -> tuple[Trainer, bool]:
    from hpcps.training.build import build_trainer  # here, because it imports the framework

    # It has the shard of the coordinator, for BatchNorm statistics.
    coordinator = Roster.of(run).coordinator
    trainer = build_trainer(run, coordinator.role, coordinator.index)
    return trainer, run.validation.batchnorm == "reestimated"


def main() -> int:
    """Evaluate until the process that started this one ends, or ends the connection."""
    connection, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
    tie_to_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    # A batch system sends them to all processes of a job; the process that started this one reacts.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):
        serve(connection)
    gc.freeze()  # otherwise Python collects garbage at its exit, which takes long
    return 0


if __name__ == "__main__":
    sys.exit(main())

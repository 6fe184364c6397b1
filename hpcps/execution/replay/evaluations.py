"""The evaluations of a replay: the process that evaluates ends with the same models as in the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from hpcps.roles.evaluation_job import Died, EvaluationJob, ModelEvaluations
from hpcps.roles.events import Compute, InBackground


class ReplayedEvaluations(ModelEvaluations):
    """Evaluates with other evaluations, except where the record says that the process had ended."""

    def __init__(self, evaluations: ModelEvaluations, deaths: Iterable[Mapping[str, Any]]) -> None:
        """Take evaluations, and the recorded lines `evaluator_died` of an attempt."""
        self.pid, self.device = evaluations.pid, evaluations.device
        self.parameters, self.statistics = evaluations.parameters, evaluations.statistics
        self._evaluations = evaluations
        self._deaths = deque(deaths)

    def evaluating(self, job: EvaluationJob) -> Compute | InBackground:
        if not self._deaths or self._deaths[0].get("round") != job.round:
            return self._evaluations.evaluating(job)
        line = self._deaths.popleft()
        self.pid = line.get("next_pid", 0)
        died = Died(line.get("pid", 0), line.get("how", ""))
        return InBackground("evaluate", lambda: (job, died), self.cancel)

    def restart(self) -> None:
        pass  # `evaluating` has taken the number of the next process from the record

    def cancel(self) -> None:
        self._evaluations.cancel()

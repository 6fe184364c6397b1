"""A process that others find lost is the first failure of a run, however many of them report it."""

from interrupted import small

from hpcps.execution.process_context import ProcessContext
from hpcps.launch.plan import PlannedRun, Rank
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.transport.process_group import LostError

WORLD = (Rank(0, "server", 0, "n0"), *(Rank(1 + index, "worker", index, "n1") for index in range(3)))


def test_the_lost_process_comes_before_all_that_report_it(tmp_path):
    run = small()
    directory = RunDirectory(tmp_path)
    directory.create({"run_id": "r", "label": "", "run": run.model_dump(mode="json")})
    planned = PlannedRun("r", "", str(tmp_path), {"run_id": "r", "run": run.model_dump(mode="json")})
    for rank in (1, 0, 3):
        context = ProcessContext(planned, WORLD, rank, "n1")
        context.report(None, "exchange", LostError(Peer("worker", 1), "n1", "it was stopped"))
    failures = [(failure.role, failure.index) for failure in directory.failures]
    assert failures == [("worker", 1), ("worker", 0), ("server", 0), ("worker", 2)]

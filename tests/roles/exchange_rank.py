"""One rank of a run that trains nothing, and notes how much its memory grew. Arguments: the run (JSON), a folder."""

import sys
from pathlib import Path

from idle_learner import IdleLearner
from mpi4py import MPI

from hpcps.kernels import ready
from hpcps.layout import Layout
from hpcps.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.runtime.casting import make_role, make_trainee
from hpcps.runtime.node import Node
from hpcps.runtime.process import drive
from hpcps.spec.schema import Run
from hpcps.transport.mpi_gathering import MpiGathering

LAYOUT = Layout.of([(f"block{b}", (1 << 16,)) for b in range(64)])


def memory(what):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10


run, folder = Run.model_validate_json(sys.argv[1]), Path(sys.argv[2])
topology = run.topology
counts = {"worker": topology.workers, "validator": topology.validators, "server": topology.servers}
peers = [Peer(role, index) for role, count in counts.items() for index in range(count)]
gathering = MpiGathering(MPI.COMM_WORLD, {peer: rank for rank, peer in enumerate(peers)})
me, directory = peers[gathering.rank], RunDirectory(folder)
if gathering.rank == 0:
    directory.create({"run_id": "run"})
gathering.barrier()
if me.role != "worker":
    ready()  # what the compiler takes is no matter of the model
before = memory("VmRSS")
if me.role == "server":
    role = make_role(run, "run", me)
else:
    role = make_trainee(run, "run", me, IdleLearner(LAYOUT, step=me.index + 1))
with RecordWriter(folder, "run", me.role, me.index, "here") as record:
    drive(Node(role, gathering.transport, record, directory), 60.0, gathering.patience())
gathering.settle()
(folder / f"grew-{me}").write_text(str((memory("VmHWM") - before) / (4 * LAYOUT.size)))

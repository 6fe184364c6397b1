"""One rank of a run that trains nothing, and notes how much its memory grew. Arguments: the run (JSON), a folder."""

import sys
from pathlib import Path

from mpi4py import MPI
from toy_trainers import Adding

from hpcps.execution.process import drive
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role, make_training_role
from hpcps.numerics.kernels import ready
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.spec.schema import Run
from hpcps.transport.mpi.process_group import MpiProcessGroup

LAYOUT = Layout.of([(f"block{b}", (1 << 16,)) for b in range(64)])


def memory(what):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10


run, folder = Run.model_validate_json(sys.argv[1]), Path(sys.argv[2])
topology = run.topology
counts = {"worker": topology.workers, "validator": topology.validators, "server": topology.servers}
peers = [Peer(role, index) for role, count in counts.items() for index in range(count)]
group = MpiProcessGroup(MPI.COMM_WORLD, {peer: rank for rank, peer in enumerate(peers)})
me, directory = peers[group.rank], RunDirectory(folder)
if group.rank == 0:
    directory.create({"run_id": "run"})
group.barrier()
if me.role != "worker":
    ready()  # what the compiler takes is no matter of the model
before = memory("VmRSS")
if me.role == "server":
    role = make_role(run.identified("run"), me)
else:
    role = make_training_role(run.identified("run"), me, Adding(LAYOUT, me.index + 1))
with RecordWriter(folder, "run", me.role, me.index, "here") as record:
    drive(RoleDriver(role, group.transport, record, directory), 60.0, group.backoff())
group.settle()
(folder / f"grew-{me}").write_text(str((memory("VmHWM") - before) / (4 * LAYOUT.size)))

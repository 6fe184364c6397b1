"""One rank of a stressed run, `mpirun -n N python stress.py FOLDER S V W EPOCHS PER_REFRESH BLOCKS`."""

import sys
from contextlib import suppress
from pathlib import Path

from mpi4py import MPI
from toy_trainers import Counter, everyone, spec

from hpcps.execution.process import drive
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role, make_training_role
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.transport.mpi.transport import MpiTransport

FEW, MANY = 40, 6000
"""Blocks: in process, and over MPI, where messages must be too large to be gone as soon as they are sent."""
POISON = 0.05


def stressed(servers, validators, workers, epochs, per_refresh, delay):
    return spec(
        "naive_async",
        servers=servers,
        validators=validators,
        workers=workers,
        epochs=epochs,
        train={"local_steps": 2},
        asynchronous={"alpha": 1.0, "updates_per_refresh": per_refresh},
        communication={"participation": 0.8},
        heterogeneity={"delay": delay},
    )


def trainer(run, peer, blocks):
    worker = peer.index if peer.role == "worker" else None
    return Counter(worker, run.topology.workers, blocks, poison=POISON)


def main():
    folder, (servers, validators, workers, epochs), per_refresh = (
        Path(sys.argv[1]),
        map(int, sys.argv[2:6]),
        sys.argv[6],
    )
    blocks = int(sys.argv[7])
    run = stressed(servers, validators, workers, epochs, per_refresh, {"kind": "lognormal", "median": 0.002})
    world, peers = MPI.COMM_WORLD, everyone(run)
    peer, directory = peers[world.Get_rank()], RunDirectory(folder)
    if world.Get_rank() == 0:
        directory.create({"run_id": "toy"})
    world.Barrier()
    transport = MpiTransport(world, {other: rank for rank, other in enumerate(peers)})
    is_server = peer.role == "server"
    role = (
        make_role(run.identified("toy"), peer)
        if is_server
        else make_training_role(run.identified("toy"), peer, trainer(run, peer, blocks))
    )
    with RecordWriter(folder, "toy", peer.role, peer.index, "here") as record:
        try:
            drive(RoleDriver(role, transport, record, directory), 60, transport.backoff())
        except BaseException as error:
            with suppress(OSError):
                directory.fail(peer.role, peer.index, "here", role.round, "stress", error)
            print(f"{peer}: {error!r}", file=sys.stderr, flush=True)
            world.Abort(1)
    transport.settle()


if __name__ == "__main__":
    main()

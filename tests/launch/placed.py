"""Started as every rank in place of `hpcps.execution`: rank 0 prints, as JSON, where all of them are."""

import json
import os
import socket
import sys
from pathlib import Path

from hpcps.launch.local_rank import planned_rank, preset_gpu, problems
from hpcps.launch.plan import Plan

plan = Plan.read(Path(sys.argv[1]))
preset_gpu(plan)
me = planned_rank(plan)

from mpi4py import MPI  # noqa: E402  (as in the runtime: the GPU is chosen first)

world = MPI.COMM_WORLD
role = sys.argv[2] if len(sys.argv) > 2 else ""
found = {
    "me": str(me),
    "rank": world.rank,
    "role": role,
    "arguments": len(sys.argv),
    "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "problems": problems(plan, world.rank, world.size, role, socket.gethostname()),
}
everyone = world.gather(found)
if everyone is not None:
    print("PLACED" + json.dumps(everyone), flush=True)

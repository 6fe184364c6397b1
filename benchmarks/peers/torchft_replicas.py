"""`python torchft_replicas.py FOLDER REPLICAS STEP`: torchft trains with so many replicas, and replaces those that die.

A step takes STEP seconds at least. The first of the replicas that take part in a step appends a line to
FOLDER/rounds.jsonl. The lighthouse has the settings of torchft's README, and the replicas have its defaults.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from hpcps import registry

BATCH = 8
JOIN = 10_000
"""Milliseconds that the lighthouse waits for replicas whose heartbeats come, and which have not joined."""


def train(folder: Path, step: float) -> None:
    """Train as one replica until the process is killed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.disable(logging.WARNING)
    network = registry.models["cnn"]().build((1, 64, 64), 10)
    inner = torch.optim.SGD(network.parameters(), lr=0.05)

    def load(state):
        network.load_state_dict(state["network"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"network": network.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{os.environ['REPLICA']}",
    )
    optimizer = Optimizer(manager, inner)
    data, labels = torch.randn(BATCH, 1, 64, 64), torch.randint(0, 10, (BATCH,))
    rounds = os.open(folder / "rounds.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        before, number = time.perf_counter(), manager.current_step()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(data), labels)
        time.sleep(max(0.0, step - (time.perf_counter() - before)))
        loss.backward()
        # With torchft's DistributedDataParallel, all replicas end when one is lost: an assertion of its hook fails.
        gradients = [each.grad for each in network.parameters()]
        combined = parameters_to_vector(gradients)
        manager.allreduce(combined).wait()
        vector_to_parameters(combined, gradients)
        optimizer.step()
        if manager.current_step() > number and manager.participating_rank() == 0:
            line = {"event": "round", "round": manager.current_step(), "updates": manager.num_participants()}
            os.write(rounds, f"{json.dumps(line)}\n".encode())


def main() -> None:
    folder, replicas, step = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=JOIN, quorum_tick_ms=100)
    port = lighthouse.address().rpartition(":")[2]  # the name of this host need not have an address
    words = [sys.executable, __file__, str(folder), str(replicas), step, "replica"]
    there: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while True:
            for replica in range(replicas):
                if replica not in there or there[replica].poll() is not None:
                    variables = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA": str(replica)}
                    there[replica] = subprocess.Popen(words, env={**os.environ, **variables})
            time.sleep(0.05)
    finally:
        for each in there.values():
            with suppress(ProcessLookupError):
                each.kill()
        lighthouse.shutdown()


if __name__ == "__main__":
    if sys.argv[-1] == "replica":
        train(Path(sys.argv[1]), float(sys.argv[3]))
    else:
        main()

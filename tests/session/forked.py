"""Runs a function in several processes that find each other as under torchrun, without importing torch in each."""

import faulthandler
import multiprocessing
import os
import traceback
import warnings

from running_processes import free_port


def fork(processes, body, seconds=60.0):
    """Call `body()` in each process, after `init` and before `shutdown`; fail if it fails in one, or hangs."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    children = [
        context.Process(target=_run, args=(rank, processes, port, body, failures, seconds)) for rank in range(processes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the children use none of the threads of this process
        for child in children:
            child.start()
    for child in children:
        child.join(seconds)
    hanging = [rank for rank, child in enumerate(children) if child.exitcode is None]
    for child in children:
        child.kill()
        child.join()
    texts = []
    while not failures.empty():
        texts.append(failures.get())
    assert not texts, "\n".join(texts)
    assert not hanging, f"ranks {hanging} hang"
    assert [child.exitcode for child in children] == [0] * processes


def _run(rank, processes, port, body, failures, seconds):
    import torch

    import hpcps.torch

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    faulthandler.dump_traceback_later(0.7 * seconds, file=2, exit=True)  # says where it hangs
    try:
        hpcps.torch.init()
        body()
        hpcps.torch.shutdown()
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    os._exit(0)

"""Stands in for NVIDIA's control program: `-d` starts a daemon, else commands come on the standard input.

What is documented of it: the folder of the pipes is CUDA_MPS_PIPE_DIRECTORY, the daemon's pid is in a file there, `-d`
comes back when the daemon listens and fails if there is one, `get_server_list` and `quit` fail without one, and `quit`
comes back when it has gone. STAND_IN_MPS says what else shall be wrong. What happens is noted in STAND_IN_JOURNAL.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
PID = PIPE / "nvidia-cuda-mps-control.pid"
WRONG = os.environ.get("STAND_IN_MPS", "")


def note(*words):
    with open(os.environ["STAND_IN_JOURNAL"], "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def connect():
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(PIPE / "control"))
    except OSError:
        return None
    return line


def serve(listener):
    while True:
        line, _ = listener.accept()
        command = line.recv(100).decode().strip()
        if command == "get_server_list" and (PIPE / "served").exists():
            line.send(b"4711\n")
        if command == "quit" and WRONG != "stays":
            (PIPE / "control").unlink()
            PID.unlink()
            note("quit", os.getpid())
            line.close()
            os._exit(0)
        line.close()


if sys.argv[1:] == ["-d"]:
    note("asked to start")
    if WRONG == "hangs":
        time.sleep(1000)
    if WRONG == "is slow":
        time.sleep(1)
    if WRONG == "fails":
        sys.exit("some words\nOnly root may do that")
    if connect():
        sys.exit("An instance of this daemon is already running")
    (PIPE / "control").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(PIPE / "control"))
    listener.listen(100)
    if child := os.fork():
        PID.write_text(str(child))
        note("started", child, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_MPS_LOG_DIRECTORY"))
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(listener)
else:
    for command in sys.stdin:
        line = connect()
        if line is None:
            print("Cannot find MPS control daemon process")
            sys.exit(1)
        line.send(command.encode())
        while said := line.recv(100):
            sys.stdout.write(said.decode())

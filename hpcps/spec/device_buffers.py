"""Which runs can keep updates and models in the memory of devices."""

from __future__ import annotations

from hpcps.compression import Compressor
from hpcps.spec.schema import Run


def obstacle(run: Run) -> tuple[tuple[str, ...], str] | None:
    """Return the first key that keeps the buffers of a run on the host of every machine, and its value.

    None if the machine, or `transport.device_buffers`, decides.
    """
    found: dict[tuple[str, ...], tuple[object, bool]] = {
        ("transport", "kind"): (run.transport.kind, "device_memory" not in run.transport.offers),
        ("train", "exchange"): (run.train.exchange, run.collective),
        ("model", "backend"): (run.model.backend, run.model.backend != "torch"),
        ("train", "device"): (run.train.device, run.train.device == "cpu"),
        ("communication", "compression"): (
            run.communication.compression.kind,
            isinstance(run.communication.compression, Compressor),
        ),
        ("asynchronous", "buffer"): (run.asynchronous.buffer, run.buffered),
        ("topology", "servers"): (run.topology.servers, run.topology.alone),
    }
    for path, (value, holds) in found.items():
        if holds:
            return path, f'"{value}"' if isinstance(value, str) else str(value)
    return None


def unsuitable(run: Run) -> str:
    """Return why a run keeps its buffers on the host of every machine; empty if the machine decides."""
    found = obstacle(run)
    if found is not None:
        return f"{'.'.join(found[0])} = {found[1]}"
    return 'transport.device_buffers = "staged"' if run.transport.buffers == "staged" else ""

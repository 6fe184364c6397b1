"""A device for tests: its memory is shared memory, and its queue does everything as late as it may.

Work is done when somebody waits for it. Until then the memory that it will write holds NaN (`POISON`), so whoever reads
or sends too early gets that, and whoever overwrites too early changes what is still to be read. `HPCPS_DEVICE` names
`open_device` in a run.
"""

import mmap
import os
import struct

import numpy as np

from hpcps.numerics.vectors import Device, DeviceError, DeviceVector
from hpcps.transport.shared_memory import Arena

POISON = np.float32("nan")
ADDRESS = struct.Struct("<QQQ")


class LateDevice(Device):
    name = "late"

    def __init__(self):
        super().__init__()
        self.arena = Arena()
        self.asked = []
        self.done = 0
        self.mapped = {}

    def allocate(self, size):
        memory = self.arena.allocate(size)
        assert self.arena.shortage is None
        memory[:] = POISON
        return DeviceVector(self, memory)

    def recycle(self):
        super().recycle()
        self.finish()
        self.arena.recycle()

    def export(self, vector):
        return ADDRESS.pack(*self.arena.locate(vector.memory))

    def map(self, owner, address):
        try:
            segment, start, size = ADDRESS.unpack(address)
            if (owner, segment) not in self.mapped:
                with open(f"/proc/{owner}/fd/{segment}", "rb") as file:
                    whole = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
                self.mapped[owner, segment] = np.frombuffer(whole, np.uint8)
        except (OSError, ValueError, struct.error) as error:
            raise DeviceError(str(error)) from None
        return DeviceVector(self, self.mapped[owner, segment][start : start + size].view(np.float32))

    def copy(self, source, out):
        if not isinstance(out, DeviceVector):  # of a framework, which waits for this queue
            self.finish()
            out.detach().numpy()[:] = source.memory
        elif isinstance(source, DeviceVector):
            self.enqueue(np.copyto, out, source)
        else:
            values = np.array(source.detach().numpy() if hasattr(source, "detach") else source)
            self.enqueue(lambda to: np.copyto(to, values), out)

    def enqueue(self, work, out, *sources):
        memories = (out.memory, *(source.memory for source in sources))
        if not any(np.may_share_memory(out.memory, other) for other in self.pending() + list(memories[1:])):
            out.memory[:] = POISON
        self.asked.append((work, memories))

    def pending(self):
        return [memory for _, memories in self.asked[self.done :] for memory in memories]

    def compute(self, work, *vectors):
        self.finish()
        before = [vector.memory.copy() for vector in vectors]
        copies = [memory.copy() for memory in before]
        result = work(*copies)
        for vector, memory, values in zip(vectors, before, copies, strict=True):
            if memory.tobytes() != values.tobytes():
                self.enqueue(lambda to, values=values: np.copyto(to, values), vector)
        return result

    def fetch(self, vector):
        self.finish()
        return vector.memory.copy()

    def record(self):
        return len(self.asked)

    def wait(self, mark):
        while self.done < mark:
            work, memories = self.asked[self.done]
            self.asked[self.done] = None, ()
            self.done += 1
            work(*memories)

    def pointer(self, memory):
        return memory.ctypes.data


def open_device():
    return LateDevice()


def close(device):
    """Let no other process open its memory any more, and keep none for later."""
    device.recycle()
    device.arena.close()


class NoDevice(LateDevice):
    def __init__(self):
        raise DeviceError("this machine has no such device")


class Crashing(LateDevice):
    """Ends its process when somebody maps its memory, as a wrong pointer does."""

    def map(self, owner, address):
        os.kill(os.getpid(), 11)


class Hanging(LateDevice):
    def map(self, owner, address):
        import time

        time.sleep(3600)


class Lying(LateDevice):
    """Maps memory that is not the memory that was meant."""

    def map(self, owner, address):
        there = super().map(owner, address)
        return DeviceVector(self, there.memory[::-1].copy())


class BadPointer(LateDevice):
    """Gives MPI an address of another kind of memory, as a library takes it that is not CUDA-aware."""

    def pointer(self, memory):
        return 64


class Forgetful(LateDevice):
    """MPI writes somewhere else than to the memory."""

    def pointer(self, memory):
        self.kept = memory.copy()
        return self.kept.ctypes.data


class CrashingBadPointer(Crashing, BadPointer):
    pass

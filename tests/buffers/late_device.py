"""A device for tests: its memory is the host's, and its queue does everything as late as it may.

Work is done when somebody waits for it. Until then the memory that it will write holds NaN (`POISON`), so whoever reads
or sends too early gets that, and whoever overwrites too early changes what is still to be read. `HPCPS_DEVICE` names
`open_device`, whose memory is arrays of numpy, or `open_tensors`, whose memory is tensors of torch, in a run.
"""

import numpy as np

from hpcps.numerics.vectors import Device, DeviceError, DeviceVector

POISON = np.float32("nan")


def array(memory):
    """Return the memory as an array of numpy."""
    return memory.numpy() if hasattr(memory, "numpy") else memory


def put(out, values):
    array(out)[:] = array(values)


class LateDevice(Device):
    name = "late"

    def __init__(self):
        super().__init__()
        self.asked = []
        self.done = 0

    def memory(self, values):
        """Return a copy of an array in the memory of the device."""
        return values.copy()

    def allocate(self, size):
        return DeviceVector(self, self.memory(np.full(size, POISON)))

    def recycle(self):
        super().recycle()
        self.finish()

    def copy(self, source, out):
        if not isinstance(out, DeviceVector):  # of a framework, which waits for this queue
            self.finish()
            out.detach().numpy()[:] = array(source.memory)
        elif isinstance(source, DeviceVector):
            self.enqueue(put, out, source)
        else:
            values = np.array(source.detach().numpy() if hasattr(source, "detach") else source)
            self.enqueue(lambda to: put(to, values), out)

    def enqueue(self, work, out, *sources):
        memories = (out.memory, *(source.memory for source in sources))
        there = array(out.memory)
        if not any(np.may_share_memory(there, array(other)) for other in self.pending() + list(memories[1:])):
            there[:] = POISON
        self.asked.append((work, memories))

    def pending(self):
        return [memory for _, memories in self.asked[self.done :] for memory in memories]

    def compute(self, work, *vectors):
        self.finish()
        # One may be given twice.
        different = {id(vector): vector for vector in vectors}
        before = {key: array(vector.memory).copy() for key, vector in different.items()}
        copies = {key: self.memory(memory) for key, memory in before.items()}
        result = work(*(copies[id(vector)] for vector in vectors))
        for key, vector in different.items():
            values = array(copies[key])
            if before[key].tobytes() != values.tobytes():
                self.enqueue(lambda to, values=values: put(to, values), vector)
        return result

    def fetch(self, vector):
        self.finish()
        return array(vector.memory).copy()

    def record(self):
        return len(self.asked)

    def wait(self, mark):
        while self.done < mark:
            work, memories = self.asked[self.done]
            self.asked[self.done] = None, ()
            self.done += 1
            work(*memories)

    def pointer(self, memory):
        return array(memory).ctypes.data


class LateTensors(LateDevice):
    def memory(self, values):
        import torch

        return torch.from_numpy(values.copy())


def open_device():
    return LateDevice()


def open_tensors():
    return LateTensors()


class NoDevice(LateDevice):
    def __init__(self):
        raise DeviceError("this machine has no such device")


class BadPointer(LateDevice):
    """Gives MPI an address of another kind of memory, as a library takes it that is not CUDA-aware."""

    def pointer(self, memory):
        return 64


class Forgetful(LateDevice):
    """MPI writes somewhere else than to the memory."""

    def pointer(self, memory):
        self.kept = memory.copy()
        return self.kept.ctypes.data

"""As much of CUDA as a trainer asks for, on the CPU: a device that copies late, and graphs of what torch computes."""

import threading
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Late:
    """A device that makes every copy as late as it may: when somebody waits for it."""

    def __init__(self):
        self.asked = []
        self.done = 0

    def copy(self, source, out):
        assert (source.shape, source.dtype) == (out.shape, out.dtype)
        self.asked.append((source, out))

    def mark(self):
        return LateMark(self, len(self.asked))

    def work(self, until=None):
        for source, out in self.asked[self.done : until]:
            out.copy_(source)
            self.done += 1


class LateMark:
    def __init__(self, device, until):
        self.device, self.until = device, until

    def synchronize(self):
        self.device.work(self.until)


class Tape(TorchDispatchMode):
    """Records what is computed, gradients included, and undoes it: as if it had only been written down.

    `replay` computes it again from the same tensors into the same tensors; what was a number in the program then,
    such as a learning rate, is the same number again, and random numbers are drawn anew. To look at a value meanwhile
    is an error, as on a GPU.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.before, self.generator = [], [], torch.get_rng_state()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing\nAnd what torch says to others")
        kwargs = kwargs or {}
        self.before += [(tensor, tensor.detach().clone()) for tensor in written(function, args)]
        result = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, result))
        return result

    def undo(self):
        with torch.no_grad():
            for tensor, value in reversed(self.before):
                tensor.copy_(value)
        self.before.clear()
        torch.set_rng_state(self.generator)

    def replay(self):
        with torch.no_grad():
            for function, args, kwargs, result in self.calls:
                again = function(*args, **kwargs)
                outputs = zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True)
                for declared, (then, now) in zip(function._schema.returns, outputs, strict=True):
                    if declared.alias_info is None and isinstance(then, torch.Tensor):
                        then.copy_(now)


def written(function, args):
    """The tensors that an operation changes; some change BatchNorm's statistics without saying so."""
    said = [a for a, declared in zip(args, function._schema.arguments, strict=False) if declared.is_write]
    unsaid = args[3:5] if "batch_norm" in str(function) and "backward" not in str(function) else ()
    return [tensor for tensor in (*said, *unsaid) if isinstance(tensor, torch.Tensor)]


class Stream:
    def __init__(self, device):
        self.device = device

    def synchronize(self):
        pass


class Event:
    def __init__(self, blocking):
        pass

    def record(self, stream):
        assert current() is stream

    def synchronize(self):
        pass


_entered = threading.local()


def current():
    """The stream of this thread; None is the default one."""
    return getattr(_entered, "streams", [None])[-1]


@contextmanager
def stream(entered):
    streams = _entered.__dict__.setdefault("streams", [None])
    streams.append(entered)
    try:
        yield
    finally:
        streams.pop()


class CUDAGraph:
    tape = None

    def replay(self):
        assert current() is not None
        self.tape.replay()


@contextmanager
def graph(captured, stream, capture_error_mode):
    """Capture on the stream that everything else is on, as `torch.cuda.graph` does, errors included."""
    assert (current(), capture_error_mode) == (stream, "thread_local")
    captured.tape = tape = Tape()
    try:
        with tape:
            yield
    except RuntimeError:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    finally:
        tape.undo()


def install(monkeypatch):
    """Put what is here in the place of `torch.cuda`'s, and have memory that is not pinned taken for such that is."""
    for fake in (Stream, Event, stream, CUDAGraph, graph):
        monkeypatch.setattr(torch.cuda, fake.__name__, fake)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **more: empty(*shape, **more))

"""The device of a network: choosing it, the order of work on it, and copies to and from the host."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, pairwise

import torch
from torch import Tensor

from hpcps.errors import SpecError, message_of
from hpcps.spec.schema import Train

CHUNK = 1 << 20
"""Bytes of a copy: large compared with the overhead of a copy, small enough that copies overlap early."""

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Takes a computation on tensors that stay where they are, and returns what does the same again, into the same result.

The computation is called once, and what it asks of the device is written down, not done.
"""


class ComputeDevice:
    """The CPU: it computes in the memory of the host and in the order of the program.

    Attributes:
        device: the device of torch.
        is_host: whether its memory is that of the host.
        recorder: records computations; None where that is impossible or not worth it.
    """

    is_host = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.recorder: Recorder | None = None
        self._generators = [torch.default_generator]

    def seed(self, number: int) -> None:
        """Seed torch's global generators, from which layers such as dropout draw on this device.

        A recording does not contain the seed: CUDA reads it from the generator at each replay.
        """
        for generator in self._generators:
            generator.manual_seed(number)

    def in_order(self) -> AbstractContextManager[object]:
        """Return a context in which the device does its work after all work of earlier such contexts."""
        return nullcontext()

    def finish(self) -> None:
        """Wait until the device has done all work of the contexts of `in_order`."""

    def for_other_thread(self) -> ComputeDevice:
        """Return the same device for another thread, with an order of work of its own."""
        return ComputeDevice()

    def to_device(self, source: Tensor, out: Tensor) -> None:
        """Copy `source` of the host into `out` of the device, before the next work of the device.

        `source` may be changed as soon as this returns.

        Args:
            source: of any shape and strides.
            out: contiguous, of the same shape and type.
        """
        out.copy_(source)

    def to_host(self, source: Tensor, out: Tensor) -> None:
        """Copy `source` of the device into `out` of the host; `out` is complete when this returns.

        Args:
            source: contiguous.
            out: contiguous, of the same shape and type.
        """
        out.copy_(source)

    def from_host(self, values: Tensor) -> Tensor:
        """Return a tensor of the host as one of the device, which may be the same."""
        if self.is_host:
            return values
        out = torch.empty(values.shape, dtype=values.dtype, device=self.device)
        self.to_device(values, out)
        return out

    def eager_from_now_on(self, why: BaseException) -> None:
        """Record nothing more, and say so: a computation could not be recorded."""
        self.recorder = None
        _warn(f"steps on {self.device} are not replayed as CUDA graphs, which is slower: {_reason(why)}")


class Gpu(ComputeDevice):
    """A GPU, with a stream of its own: it neither waits for what other streams do nor holds them up.

    One stream for all that a network does, the recorded included, is what makes recording safe: autograd runs each
    gradient on the stream of its forward pass, and must not find another one there.

    Copies from and to the host pass in chunks through pinned memory, because the device copies only such memory while
    the host does something else. torch allocates it again only when the device has done the copies from and to it.
    """

    is_host = False

    def __init__(self, device: torch.device, owner: Gpu | None = None) -> None:
        """Take a stream.

        Args:
            device: the GPU.
            owner: the device of the thread whose recordings this one must not disturb.
        """
        super().__init__()
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if device.type == "cuda":  # the stand-in of the tests is a CPU
            self._generators.append(torch.cuda.default_generators[device.index])
        # Torch requires that no other thread uses the device during a capture. Other threads take turns with the thread
        # that captures, which otherwise waits for none.
        self._recording: threading.RLock = owner._recording if owner else threading.RLock()
        self._turn: AbstractContextManager[object] = self._recording if owner else nullcontext()
        self._pins: bool = owner._pins if owner else True
        self.recorder = self._record
        self._graphs: list[torch.cuda.CUDAGraph] = []

    @contextmanager
    def in_order(self) -> Iterator[None]:
        with self._turn, torch.cuda.stream(self._stream):
            yield

    def finish(self) -> None:
        self._stream.synchronize()

    def for_other_thread(self) -> ComputeDevice:
        return Gpu(self.device, self)

    def to_device(self, source: Tensor, out: Tensor) -> None:
        for here, there in _chunks(source, out):
            self._enqueue_copy(self._pinned(here).copy_(here), there)

    def to_host(self, source: Tensor, out: Tensor) -> None:
        # Fetch a chunk while the device copies the next one.
        for coming, _ in pairwise(chain(self._coming(source, out), [None])):
            assert coming is not None
            mark, buffer, here = coming
            mark.synchronize()
            here.copy_(buffer)

    def _coming(self, source: Tensor, out: Tensor) -> Iterator[tuple[torch.cuda.Event, Tensor, Tensor]]:
        """Enqueue copies to the host; yield for each the mark of its end, its buffer, and the chunk of the result."""
        for there, here in _chunks(source, out):
            buffer = self._pinned(here)
            self._enqueue_copy(there, buffer)
            yield self._mark(), buffer, here

    def _pinned(self, like: Tensor) -> Tensor:
        """Return memory of the host that the device copies while the host does something else, if there is any."""
        if self._pins:
            try:
                return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
            except RuntimeError as error:
                self._pins = False
                _warn(f"copies from and to {self.device} go without pinned memory, which is slower: {_reason(error)}")
        return torch.empty_like(like)

    def _enqueue_copy(self, source: Tensor, out: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            out.copy_(source, non_blocking=True)

    def _mark(self) -> torch.cuda.Event:
        """Mark the present end of the stream."""
        # A thread that waits for it sleeps: the next batch is ready before the device needs it, and polling would
        # use a core that other processes need.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture a CUDA graph.

        Raises:
            RuntimeError: something in it cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        # If this fails, torch's allocator may go on asking the graph whose memory is whose.
        self._graphs.append(graph)
        # "thread_local": what threads of libraries do meanwhile is no mistake of this one.
        with self._recording, torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def _chunks(source: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = CHUNK // source.element_size()
    return zip(torch.split(source.reshape(-1), size), torch.split(out.view(-1), size), strict=True)


def generators_kept() -> AbstractContextManager[None]:
    """Return a context that puts back the state of torch's global random generators."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.random.fork_rng(range(torch.cuda.device_count()) if used else ())


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put back the settings of torch that `prepare_device` makes, and its random state, for the caller's own code."""
    deterministic = torch.get_deterministic_debug_mode()
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        with generators_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cudnn.benchmark = benchmark
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def prepare_device(train: Train) -> torch.device:
    """Fix the number of threads and the determinism of torch, and return the device to train on.

    Raises:
        SpecError: `train.device = "cuda"`, but torch sees no GPU.
    """
    torch.set_num_threads(train.threads)
    # Otherwise deterministic torch fills new memory with NaN, which takes time and only helps to find bugs.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # cuBLAS reads this variable when it starts; without it torch refuses deterministic matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # use_deterministic_algorithms(True) also loads torch's compiler, which takes 0.7 s and 70 MB.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    available = torch.cuda.is_available() if train.device != "cpu" else False
    if train.device == "cuda" and not available:
        raise SpecError(
            'train.device = "cuda", but torch sees no GPU here: use "auto" or "cpu", or a torch build with CUDA'
        )
    return torch.device("cuda", torch.cuda.current_device()) if available else torch.device("cpu")


def compute_device(device: torch.device) -> ComputeDevice:
    """Return a device with an order of work of its own."""
    return ComputeDevice() if device.type == "cpu" else Gpu(device)


def _reason(error: BaseException) -> str:
    """Return what went wrong first, in a line: the end of a capture that failed fails too, and torch adds advice."""
    while error.__context__ is not None:
        error = error.__context__
    return message_of(error).strip().partition("\n")[0] or type(error).__name__


def _warn(what: str) -> None:
    sys.stderr.write(f"hpcps: {what}\n")

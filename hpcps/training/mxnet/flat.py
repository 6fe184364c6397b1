"""A Gluon network whose parameters, gradients and statistics are views of three flat vectors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.base import _LIB, check_call

from hpcps.data.base import Facts
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.registry.failures import errors_of
from hpcps.training.weights import draw_weights


class FlatVector:
    """An NDArray `[n]`; on a CPU, a numpy array shares its memory.

    Attributes:
        array: the NDArray.
    """

    def __init__(self, size: int, device: Any) -> None:
        self.array = nd.zeros(max(size, 1), ctx=device)[:size] if size else nd.zeros(1, ctx=device)
        self._size = size
        self._host: Vector | None = None
        if device.device_type == "cpu":
            self._wait()
            address = ctypes.c_void_p()
            check_call(_LIB.MXNDArrayGetData(self.array.handle, ctypes.byref(address)))
            memory = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            self._host = np.ctypeslib.as_array(memory, (self.array.size,))[:size]

    def place(self, tensors: Sequence[Any]) -> list[Any]:
        """Return consecutive views of the vector, with the shapes of `tensors`."""
        views, offset = [], 0
        for tensor in tensors:
            size = int(np.prod(tensor.shape))
            views.append(self.array[offset : offset + size].reshape(tensor.shape))
            offset += size
        return views

    def write(self, values: Vector) -> None:
        """Overwrite it with `values`, `[n]`."""
        if self._host is None:
            self.array[: self._size] = nd.array(values, ctx=self.array.context)
        else:
            self._wait()
            np.copyto(self._host, values)

    def read(self, out: Vector) -> None:
        """Copy it into `out`, `[n]`."""
        if self._host is None:
            np.copyto(out, self.array.asnumpy()[: self._size])
        else:
            self._wait()
            np.copyto(out, self._host)

    def copy(self) -> Vector:
        """Return a copy `[n]` on the host."""
        out = np.empty(self._size, dtype=np.float32)
        self.read(out)
        return out

    def _wait(self) -> None:
        # MXNet computes asynchronously; wait until it neither reads nor writes this memory.
        check_call(_LIB.MXNDArrayWaitToWrite(self.array.handle))


class MxnetFlatModel:
    """A network, its flat parameters and gradient `[d]`, and its BatchNorm statistics `[k]`.

    Attributes:
        network: the network; its parameters are views of `parameters`. For training only: in inference, oneDNN
            reorders the weights in place, which would change these views.
        layout: the blocks, in the order of `collect_params`.
        parameters: `[d]`.
        gradient: `[d]`; a backward pass overwrites it.
        statistics: running mean and variance, layer by layer, `[k]`.
        drops: whether the network has dropout.
        twin: the same network for inference, with a copy of the parameters and statistics (see `update_twin`).
    """

    def __init__(self, model: Model, facts: Facts, device: Any) -> None:
        def make() -> Any:
            with errors_of(model, f"its build_gluon() failed for samples {list(facts.shape)}"):
                network = model.build_gluon(facts.shape, facts.classes)
                network.initialize(mxnet.init.Zero(), ctx=device)
                network(nd.zeros((1, *facts.shape), ctx=device))  # gives every parameter a shape
                return network

        self._make = make
        self.network = make()
        self.twin: Any = None
        blocks: list[Any] = []
        self.network.apply(blocks.append)
        self.drops = any(isinstance(block, gluon.nn.Dropout) for block in blocks)
        trainable, running = _trainable(self.network), _running(self.network)
        prefix = self.network.prefix
        self.layout = Layout.of([(one.name[len(prefix) :], one.shape) for one in trainable])
        self.parameters = FlatVector(self.layout.size, device)
        self.gradient = FlatVector(self.layout.size, device)
        self.statistics = FlatVector(sum(int(np.prod(one.shape)) for one in running), device)
        self.statistics.write(np.concatenate([one.data().asnumpy() for one in running] or [np.empty(0, np.float32)]))
        gradients = self.gradient.place(trainable)
        for one, values, gradient in zip(trainable, self.parameters.place(trainable), gradients, strict=True):
            one._data, one._grad = [values], [gradient]
            autograd.mark_variables([values], [gradient], ["write"])
        for one, values in zip(running, self.statistics.place(running), strict=True):
            one._data = [values]
        self.network.hybridize()

    def draw_weights(self, generator: np.random.Generator) -> None:
        """Set the initial weights; see `hpcps.training.weights`."""
        gammas = {block.name for block in self.layout.blocks if block.name.endswith("gamma")}
        self.parameters.write(draw_weights(self.layout, gammas, generator))

    def update_twin(self) -> None:
        """Copy the current parameters and statistics to the network for inference; build it at the first call."""
        if self.twin is None:
            self.twin = self._make()
            self.twin.hybridize()
        pairs = zip(_trainable(self.network), _trainable(self.twin), strict=True)
        for one, copied in (*pairs, *zip(_running(self.network), _running(self.twin), strict=True)):
            copied.set_data(one.data())


def _trainable(network: Any) -> list[Any]:
    return [one for one in network.collect_params().values() if one.grad_req != "null"]


def _running(network: Any) -> list[Any]:
    """Return the running statistics of BatchNorm; a fixed gamma or beta is not one of them."""
    return [one for one in network.collect_params().values() if one.name.endswith(("running_mean", "running_var"))]

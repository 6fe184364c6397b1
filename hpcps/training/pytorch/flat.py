"""A network whose parameters and gradients are views of two flat vectors."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from hpcps.data.samples import Labels
from hpcps.numerics.layout import Block, Layout, Vector
from hpcps.training.pytorch.device import ComputeDevice
from hpcps.training.pytorch.network import own_loss
from hpcps.training.weights import draw_weights

SCALING = (_NormBase, nn.LayerNorm, nn.GroupNorm, *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()))
"""Layers whose `weight` is a scale, which begins as 1."""


class TorchFlatModel:
    """A network, its flat parameters and gradient `[d]`, and its BatchNorm layers.

    With channels last, a kernel's elements are in another order within its block here than everybody else knows
    (`layout`), which is that of its logical shape: `to_layout` and `from_layout` change the one into the other. An
    optimizer goes through all elements alike and need not know.

    It is used inside `compute_device.in_order()`.

    Attributes:
        network: the network; its parameters live in `parameters`.
        compute_device: the device, and the order of work on it.
        layout: the blocks, in the order of `named_parameters`.
        parameters: `[d]`, in the network's order.
        gradient: `[d]`, likewise; autograd adds to it. Empty for a model that is only measured.
        norms: the BatchNorm layers, in order.
    """

    def __init__(
        self, network: nn.Module, compute_device: ComputeDevice, *, channels_last: bool = False, trains: bool = True
    ) -> None:
        device = compute_device.device
        self.network, self.compute_device = network.to(device), compute_device
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        named = list(network.named_parameters())
        self.layout = Layout.of([(name, parameter.shape) for name, parameter in named])
        self.parameters = torch.zeros(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size if trains else 0, device=device)
        for (_, parameter), block in zip(named, self.layout.blocks, strict=True):
            parameter.data = self._view(self.parameters, block)
            # With a gradient in place, autograd adds to it instead of putting its own tensor there.
            parameter.grad = self._view(self.gradient, block) if trains else None
        self.norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        self._own_loss = own_loss(network)

    def twin(self) -> TorchFlatModel:
        """Return a model of the same network beside it, with parameters and statistics of its own, only measured."""
        # A copy, not a network built anew: that would draw weights from the generator that all of torch shares.
        network, last = copy.deepcopy(self.network), self._format is torch.channels_last
        twin = TorchFlatModel(network, self.compute_device.for_other_thread(), channels_last=last, trains=False)
        # It was copied in the order of this model, and its own device stream does not wait for that.
        self.compute_device.finish()
        return twin

    @property
    def has_own_loss(self) -> bool:
        """Whether the network defines the loss that it is trained on; else it is the cross entropy."""
        return self._own_loss is not None

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch, which it is trained on, of `outputs` `[b, classes]` and `labels` `[b]`."""
        if self._own_loss is None:
            return functional.cross_entropy(outputs, labels)
        loss: Tensor = self._own_loss(outputs, labels)
        return loss

    def summed_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the same, times the number of samples."""
        if self._own_loss is None:
            return functional.cross_entropy(outputs, labels, reduction="sum")
        return len(labels) * self.mean_loss(outputs, labels)

    def images(self, values: Tensor) -> Tensor:
        """Return samples `[b, *shape]`, images as the network's convolutions are quickest with."""
        return values.contiguous(memory_format=self._format) if values.ndim == 4 else values

    def batch(self, images: Vector, labels: Labels) -> tuple[Tensor, Tensor]:
        """Bring samples `[b, *shape]` and their labels `[b]` to where the network is."""
        from_host = self.compute_device.from_host
        return self.images(from_host(torch.from_numpy(images))), from_host(torch.from_numpy(labels))

    def to_host(self, values: Tensor, out: Vector) -> None:
        """Copy a vector `[d]` of the network's, in its order, into one of the host in the layout's."""
        host, carrier = torch.from_numpy(out), self.compute_device.carrier
        if carrier is None:
            self.to_layout(values, host)
            return
        if self._format is not torch.contiguous_format:
            # In one piece, however many tensors there are: put in order before it travels, or after.
            ordered = torch.empty_like(values)
            self.to_layout(values, ordered)
            values = ordered
        carrier.to_host(values, host)

    def from_host(self, values: Vector, out: Tensor) -> None:
        """Copy a vector `[d]` of the host, in the layout's order, into one of the network's in its own."""
        host, carrier = readable(values), self.compute_device.carrier
        if carrier is None or self._format is not torch.contiguous_format:
            self.from_layout(self.compute_device.from_host(host), out)
        else:
            carrier.to_device(host, out)

    def to_layout(self, values: Tensor, out: Tensor) -> None:
        """Copy a vector `[d]` in the network's order into one in the layout's."""
        if self._format is torch.contiguous_format:
            out.copy_(values)
            return
        for block in self.layout.blocks:
            out[block.offset : block.stop].view(block.shape).copy_(self._view(values, block))

    def from_layout(self, values: Tensor, out: Tensor) -> None:
        """Copy a vector `[d]` in the layout's order into one in the network's."""
        if self._format is torch.contiguous_format:
            out.copy_(values)
            return
        for block in self.layout.blocks:
            self._view(out, block).copy_(values[block.offset : block.stop].view(block.shape))

    def _view(self, values: Tensor, block: Block) -> Tensor:
        """Return a block of a vector in the network's order, in its logical shape."""
        flat = values[block.offset : block.stop]
        if self._format is torch.contiguous_format or len(block.shape) != 4:
            return flat.view(block.shape)
        outputs, inputs, height, width = block.shape
        return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)

    def draw_weights(self, generator: np.random.Generator) -> None:
        """Set the initial weights; see `hpcps.training.weights`."""
        gammas = {f"{name}.weight" for name, module in self.network.named_modules() if isinstance(module, SCALING)}
        self.from_host(draw_weights(self.layout, gammas, generator), self.parameters)

    def running_statistics(self) -> Tensor:
        """Return a copy of the running means and variances, layer by layer, `[k]`."""
        tensors = self._statistics()
        return torch.cat(tensors) if tensors else torch.empty(0)

    def load_statistics(self, values: Tensor) -> None:
        """Overwrite the running statistics with `values` of the host, `[k]`."""
        values, tensors = self.compute_device.from_host(values), self._statistics()
        for tensor, piece in zip(tensors, torch.split(values, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(piece)

    def _statistics(self) -> list[Tensor]:
        found = [tensor for norm in self.norms for tensor in (norm.running_mean, norm.running_var)]
        return [tensor for tensor in found if tensor is not None]


def readable(values: Vector) -> Tensor:
    """Return a tensor that is only read; torch warns of arrays that cannot be written."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())

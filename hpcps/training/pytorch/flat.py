"""A network whose parameters and gradients are views of two flat vectors."""

from __future__ import annotations

import copy
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from hpcps.data.samples import Labels
from hpcps.numerics.layout import Block, Layout, Vector
from hpcps.numerics.vectors import DeviceVector
from hpcps.training.pytorch.device import ComputeDevice
from hpcps.training.pytorch.network import own_loss
from hpcps.training.weights import draw_weights

SCALING = (_NormBase, nn.LayerNorm, nn.GroupNorm, *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()))
"""Layers whose `weight` is a scale, with the initial value 1."""


class TorchFlatModel:
    """A network, its flat parameters and gradient `[d]`, and its BatchNorm layers.

    With channels last, the elements of a convolution kernel have another order in memory than in `layout`, which uses
    the order of the logical shape. `to_layout` and `from_layout` convert between the two orders. Optimizers treat all
    elements alike, so they work with either order.

    It is used inside `compute_device.in_order()`.

    Attributes:
        network: the network; its parameters are views of `parameters`.
        compute_device: the device, and the order of work on it.
        layout: the blocks, in the order of `named_parameters`.
        parameters: `[d]`, in the order of the network.
        gradient: `[d]`, in the same order; autograd adds to it. Empty for a model that is only evaluated.
        norms: the BatchNorm layers, in order.
    """

    def __init__(
        self, network: nn.Module, compute_device: ComputeDevice, *, channels_last: bool = False, trains: bool = True
    ) -> None:
        self.network, self.compute_device, device = (
            network.to(compute_device.device),
            compute_device,
            compute_device.device,
        )
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        named = list(network.named_parameters())
        self.layout = Layout.of([(name, parameter.shape) for name, parameter in named])
        self.parameters = torch.zeros(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size if trains else 0, device=device)
        for (_, parameter), block in zip(named, self.layout.blocks, strict=True):
            parameter.data = self._view(self.parameters, block)
            # If a parameter has a gradient, autograd adds to that tensor and allocates none.
            parameter.grad = self._view(self.gradient, block) if trains else None
        self.norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        self._own_loss = own_loss(network)

    def twin(self) -> TorchFlatModel:
        """Return a copy of the model for another thread, for evaluation only."""
        # A copy, because building a network draws weights from the global generator of torch.
        network, last = copy.deepcopy(self.network), self._format is torch.channels_last
        twin = TorchFlatModel(network, self.compute_device.for_other_thread(), channels_last=last, trains=False)
        # The copy is work of this model's stream, and the other stream does not wait for it.
        self.compute_device.finish()
        return twin

    def hidden_matrices(self) -> list[Block]:
        """Return the weights of two or more dimensions, without those of embeddings and of the output layer.

        The output layer is the last one that is defined, or that which shares its weight with an embedding.
        """
        embeddings = {id(module.weight) for module in self.network.modules() if isinstance(module, nn.Embedding)}
        uses = [id(parameter) for _, parameter in self.network.named_parameters(remove_duplicate=False)]
        shared = any(uses.count(embedding) > 1 for embedding in embeddings)
        weights = zip(self.network.parameters(), self.layout.blocks, strict=True)
        found = [block for weight, block in weights if weight.ndim >= 2 and id(weight) not in embeddings]
        return found if shared else found[:-1]

    @property
    def has_own_loss(self) -> bool:
        """Whether the network defines its training loss; otherwise the loss is the cross entropy."""
        return self._own_loss is not None

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean training loss of a batch, from `outputs` `[b, classes]` and `labels` `[b]`."""
        if self._own_loss is None:
            return functional.cross_entropy(outputs, labels)
        loss: Tensor = self._own_loss(outputs, labels)
        return loss

    def summed_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the losses of a batch."""
        if self._own_loss is None:
            return functional.cross_entropy(outputs, labels, reduction="sum")
        return len(labels) * self.mean_loss(outputs, labels)

    def images(self, values: Tensor) -> Tensor:
        """Return samples `[b, *shape]`; images get the memory format of the network."""
        return values.contiguous(memory_format=self._format) if values.ndim == 4 else values

    def batch(self, images: Vector, labels: Labels) -> tuple[Tensor, Tensor]:
        """Copy samples `[b, *shape]` and their labels `[b]` to the device of the network."""
        from_host = self.compute_device.from_host
        return self.images(from_host(torch.from_numpy(images))), from_host(torch.from_numpy(labels))

    def to_host(self, values: Tensor, out: Vector) -> None:
        """Copy a vector `[d]` in the order of the network into one in the order of the layout.

        Args:
            values: in the order of the network.
            out: of the host; or a `DeviceVector`.
        """
        if isinstance(out, DeviceVector):
            out.device.copy(self._ordered(values), out)
            return
        host = torch.from_numpy(out)
        if self.compute_device.is_host:
            self.to_layout(values, host)
        else:  # reorder on the device, so that the vector is copied in one piece
            self.compute_device.to_host(self._ordered(values), host)

    def _ordered(self, values: Tensor) -> Tensor:
        """Return a vector `[d]` in the order of the network as one in the order of the layout, which may be itself."""
        if self._format is torch.contiguous_format:
            return values
        ordered = torch.empty_like(values)
        self.to_layout(values, ordered)
        return ordered

    def from_host(self, values: Vector, out: Tensor) -> None:
        """Copy a vector `[d]` in the order of the layout into one in the order of the network.

        Args:
            values: of the host; or a `DeviceVector`.
            out: in the order of the network.
        """
        if isinstance(values, DeviceVector):
            there = out if self._format is torch.contiguous_format else torch.empty_like(out)
            values.device.copy(values, there)
            if there is not out:
                self.from_layout(there, out)
            return
        host = readable(values)
        if self._format is torch.contiguous_format:
            self.compute_device.to_device(host, out)
        else:
            self.from_layout(self.compute_device.from_host(host), out)

    def to_layout(self, values: Tensor, out: Tensor) -> None:
        """Copy a vector `[d]` in the order of the network into one in the order of the layout."""
        if self._format is torch.contiguous_format:
            out.copy_(values)
            return
        for part, block in self._parts:
            if block is None:
                out[part].copy_(values[part])
            else:
                out[part].view(block.shape).copy_(self._view(values, block))

    def from_layout(self, values: Tensor, out: Tensor) -> None:
        """Copy a vector `[d]` in the order of the layout into one in the order of the network."""
        if self._format is torch.contiguous_format:
            out.copy_(values)
            return
        for part, block in self._parts:
            if block is None:
                out[part].copy_(values[part])
            else:
                self._view(out, block).copy_(values[part].view(block.shape))

    @cached_property
    def _parts(self) -> list[tuple[slice, Block | None]]:
        """The blocks that have another order in the network, and what lies between them, each in one piece."""
        parts: list[tuple[slice, Block | None]] = []
        for block in self.layout.blocks:
            part = slice(block.offset, block.stop)
            if len(block.shape) == 4 and block.shape[1] > 1 and block.shape[2] * block.shape[3] > 1:
                parts.append((part, block))
            elif parts and parts[-1][1] is None:
                parts[-1] = slice(parts[-1][0].start, block.stop), None
            else:
                parts.append((part, None))
        return parts

    def _view(self, values: Tensor, block: Block) -> Tensor:
        """Return a view of a block, in its logical shape, of a vector in the order of the network."""
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
        """Overwrite the running statistics with `values` `[k]` of the host."""
        values, tensors = self.compute_device.from_host(values), self._statistics()
        for tensor, piece in zip(tensors, torch.split(values, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(piece)

    def _statistics(self) -> list[Tensor]:
        found = [tensor for norm in self.norms for tensor in (norm.running_mean, norm.running_var)]
        return [tensor for tensor in found if tensor is not None]


def readable(values: Vector) -> Tensor:
    """Return a tensor of `values` for reading; copy read-only arrays, because torch warns about them."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())

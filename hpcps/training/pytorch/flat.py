"""A network whose parameters and gradients are views of two flat vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from hpcps.layout import Layout
from hpcps.training.weights import draw_weights


class FlatModel:
    """A network, its flat parameters and gradient `[d]`, and its BatchNorm layers.

    Attributes:
        network: the network; its parameters live in `parameters`.
        layout: the blocks, in the order of `named_parameters`.
        parameters: `[d]`.
        gradient: `[d]`; autograd adds to it.
        norms: the BatchNorm layers, in order.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.network = network.to(device)
        named = list(network.named_parameters())
        self.layout = Layout.of([(name, parameter.shape) for name, parameter in named])
        self.parameters = torch.zeros(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size, device=device)
        for (_, parameter), block in zip(named, self.layout.blocks, strict=True):
            parameter.data = self.parameters[block.offset : block.stop].view(block.shape)
            # With a gradient in place, autograd adds to it instead of putting its own tensor there.
            parameter.grad = self.gradient[block.offset : block.stop].view(block.shape)
        self.norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]

    def draw_weights(self, generator: np.random.Generator) -> None:
        """Set the initial weights; see `hpcps.training.weights`."""
        gammas = {f"{name}.weight" for name, module in self.network.named_modules() if module in self.norms}
        self.parameters.copy_(torch.from_numpy(draw_weights(self.layout, gammas, generator)))

    def running_statistics(self) -> Tensor:
        """Return a copy of the running means and variances, layer by layer, `[k]`."""
        tensors = self._statistics()
        return torch.cat(tensors) if tensors else torch.empty(0)

    def load_statistics(self, values: Tensor) -> None:
        """Overwrite the running statistics with `values`, `[k]`."""
        tensors = self._statistics()
        for tensor, piece in zip(tensors, torch.split(values, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(piece)

    def _statistics(self) -> list[Tensor]:
        found = [tensor for norm in self.norms for tensor in (norm.running_mean, norm.running_var)]
        return [tensor for tensor in found if tensor is not None]

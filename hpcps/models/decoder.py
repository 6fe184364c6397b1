"""A decoder for text: each output depends on the bytes up to its position."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hpcps.models.base import Model, Shape
from hpcps.registry.failures import fault

if TYPE_CHECKING:
    from torch import Tensor, nn


class Decoder(Model):
    """A transformer decoder of GPT's form, which predicts the next byte at each position of a window.

    It has embeddings of bytes and of positions, `layers` blocks of causal attention and of a network with one hidden
    layer of four times the width and GELU, each with a LayerNorm before it and a sum around it, a last LayerNorm and a
    linear layer. For windows of 128 bytes and a vocabulary of 75 it has 630,731 parameters with the default keys,
    3,230,795 with `layers = 4, width = 256`, and 9,548,875 with `layers = 12, width = 256`. Radford et al., "Language
    models are unsupervised multitask learners", 2019, without dropout, and with an own matrix in the last layer.
    """

    batchnorm: ClassVar[bool | None] = False
    sequential: ClassVar[bool] = True

    name: Literal["decoder"] = "decoder"
    layers: int = Field(3, ge=1, le=64, description="decoder: number of blocks.")
    width: int = Field(128, ge=8, le=4096, description="decoder: values at each position between blocks.")
    heads: int = Field(4, ge=1, le=128, description="decoder: heads of attention, by which `width` must be divisible.")

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            raise fault(self, f"width = {self.width} is not divisible by heads = {self.heads}")
        return self

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _network(self.layers, self.width, self.heads, shape[0], classes)


def _network(layers: int, width: int, heads: int, length: int, classes: int) -> nn.Module:
    """Build the PyTorch network; its classes are defined here, because this Python module must not import torch."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        """Causal attention, by plain matrix products, whose gradient is deterministic on every device."""

        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.projections = nn.Linear(width, 3 * width)
            self.output = nn.Linear(width, width)
            later = torch.full((length, length), -torch.inf).triu(1)
            self.register_buffer("mask", later, persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            b, n, _ = x.shape
            queries, keys, values = self.projections(x).view(b, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            scores = queries @ keys.transpose(2, 3) / sqrt(width // heads) + self.mask
            heard: Tensor = scores.softmax(3) @ values
            result: Tensor = self.output(heard.transpose(1, 2).reshape(b, n, width))
            return result

    class DecoderBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention(self.norm1(x))
            result: Tensor = x + self.hidden(self.norm2(x))
            return result

    class DecoderNetwork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes, self.positions = nn.Embedding(classes, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(DecoderBlock() for _ in range(layers)))
            self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, codes: Tensor) -> Tensor:
            """Return the logits `[b * n, classes]` of the next byte at each position of the windows `[b, n]`."""
            # Samples are float32, which holds the index of a byte exactly.
            x = self.blocks(self.bytes(codes.long()) + self.positions.weight)
            logits: Tensor = self.output(self.norm(x)).flatten(0, 1)
            return logits

    return DecoderNetwork()

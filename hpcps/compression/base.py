"""The base of compressors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hpcps.numerics import coding, kernels
from hpcps.numerics.arrays import as_numpy
from hpcps.numerics.coding import tiles
from hpcps.numerics.layout import Vector
from hpcps.registry import Config

Code = NDArray[np.uint8]
"""Encoded values."""

Kept = MutableMapping[str, NDArray[Any]]
"""What a compressor keeps of a block between two updates, such as a random generator; checkpoints contain it."""

Granularity = Literal["coordinate", "block"]

Way = Literal["update", "model"]
"""What is encoded: updates on their way up, or models on their way down."""


class BaseCompressor(Config, ABC):
    """How updates are encoded, or that they are not; `kind` is its name in the experiment file."""

    kind: str


class NoCompression(BaseCompressor):
    """Sends float32 values as they are."""

    kind: Literal["none"] = "none"

    def encode(self, values: Any) -> Code:
        """Return the bytes of values as float32, an array or a tensor `[n]`."""
        return np.array(as_numpy(values, 1, "values"), np.float32).view(np.uint8)

    def decode(self, code: Any, n: int) -> Vector:
        """Return the n values of these bytes.

        Raises:
            ValueError: they are not those of n values.
        """
        require_size(np.frombuffer(code, np.uint8), 4 * n)
        return np.frombuffer(code, np.float32).copy()


class Compressor(BaseCompressor):
    """Encodes the blocks of an update; a subclass adds `kind` and its own keys, and defines three methods.

    Attributes:
        granularity: `coordinate`: the decoded values do not depend on how a vector is divided, so partitions and shards
            may divide blocks; `block`: the encoding depends on the whole block, so a block is not divided.
        sees: another name of `granularity` in the declaration of a class.
    """

    granularity: ClassVar[Granularity] = "block"
    sees: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "sees" in vars(cls):
            cls.granularity = vars(cls)["sees"]

    memory: Literal["none", "residual", "ef21", "nesterov"] = Field(
        "residual",
        description="What becomes of the error of the encoding: `residual`: it stays in the worker's residual, with "
        "all that the worker does not send, and is added to its next update (error feedback); `nesterov`: the same, "
        "and Nesterov's momentum is added to each update before; `ef21`: the worker sends the encoded difference to "
        "its estimate, the sum of what it has sent, and the rule gets the estimate; `none`: it is lost.",
    )
    momentum: float | None = Field(
        None, ge=0, lt=1, description="Momentum μ of the memory `nesterov`; by default 0.9 with it, and none else."
    )
    direction: Literal["update", "model", "both"] = Field(
        "update",
        description="What is encoded: the workers' updates (`update`), the models that servers send, as differences to "
        "what their readers have (`model`), or both.",
    )
    min_bytes: int = Field(
        1024, ge=0, le=2**40, description="Bytes of the smallest block that is encoded; others are sent as they are."
    )

    @model_validator(mode="after")
    def _momentum_is_used(self) -> Self:
        if self.momentum is not None and self.memory != "nesterov":
            raise ValueError(f'momentum has an effect only with memory = "nesterov", not "{self.memory}": leave it out')
        return self

    def encodes(self, way: Way) -> bool:
        """Return whether updates or models are encoded."""
        return self.direction in (way, "both")

    def obstacle(self) -> str:
        """Return why it cannot be used in this environment, and what to do; empty if it can."""
        return ""

    def obstacle_without_shapes(self) -> str:
        """Return why it cannot be used in a script, which exchanges tensors without shapes; empty if it can."""
        return ""

    def for_block(self, shape: tuple[int, ...]) -> Self:
        """Return the compressor of a block with this shape; most do not depend on it."""
        return self

    def error_share(self) -> float:
        """Return which share of the error of an encoding stays in the residual."""
        return 1.0

    @abstractmethod
    def most_bytes(self, n: int) -> int:
        """Return the maximum size of an encoding of n values."""

    @abstractmethod
    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        """Encode values `[n]`, which may be not finite; then the decoded values must not be finite either.

        Args:
            values: the values, which must not be changed.
            code: gets the encoding: `[most_bytes(n)]`.
            kept: what the compressor keeps of the block; empty before its first update.

        Returns:
            The size of the encoding in bytes.
        """

    @abstractmethod
    def read(self, code: Code, values: Vector) -> None:
        """Decode into `values`: `[n]`. The code may come from an attacker.

        Raises:
            ValueError: it is not an encoding of n values; the text is the reason.
        """

    def encode(self, values: Any, kept: Kept | None = None) -> Code:
        """Return the encoding of values, an array or a tensor `[n]`.

        Args:
            values: the values.
            kept: what the compressor keeps of them from one call to the next; by default nothing.
        """
        vector = np.ascontiguousarray(as_numpy(values, 1, "values"), np.float32)
        code = np.empty(self.most_bytes(len(vector)), np.uint8)
        with np.errstate(all="ignore"):
            return code[: self.write(vector, code, {} if kept is None else kept)]

    def decode(self, code: Any, n: int) -> Vector:
        """Return the n values of an encoding, bytes or an array.

        Raises:
            ValueError: it is not an encoding of n values.
        """
        values = np.empty(n, np.float32)
        with np.errstate(all="ignore"):
            self.read(np.frombuffer(code, np.uint8), values)
        return values

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"granularity": cls.granularity}

    @classmethod
    def faults(cls) -> list[str]:
        wrong = f"its granularity is {cls.granularity!r}: it must be {' or '.join(get_args(Granularity))}"
        return [] if cls.granularity in get_args(Granularity) else [wrong]


ErrorDecay = Annotated[float, Field(ge=0, le=1, description="The share of the error that stays in the residual.")]


class DecayingCompressor(Compressor):
    """A compressor of whose error a share stays in the residual; each has a default of its own."""

    error_decay: ErrorDecay

    @model_validator(mode="after")
    def _error_decay_has_an_effect(self) -> Self:
        if self.error_decay == type(self).model_fields["error_decay"].default:
            return self
        share = "error_decay is a share of the residual of updates, and"
        if self.memory not in ("residual", "nesterov"):
            raise ValueError(f'{share} memory = "{self.memory}" keeps none: leave it out')
        if not self.encodes("update"):
            raise ValueError(f'{share} direction = "{self.direction}" encodes none: leave it out')
        return self

    def error_share(self) -> float:
        return self.error_decay


def coding_for(n: int, *, looped: bool = False) -> Any:
    """Return the module whose functions encode n values: compiled if that is worthwhile.

    Args:
        n: the number of values.
        looped: whether the definition of the function is a loop of Python over the values.
    """
    if not (kernels.enough_looped(n) if looped else kernels.enough(n)):
        return coding
    from hpcps.numerics.kernels import coding as compiled

    return compiled


def finite(values: Vector) -> bool:
    """Return whether all values are finite."""
    return all(bool(np.isfinite(values[tile]).all()) for tile in tiles(len(values)))


def require_size(code: Code, size: int) -> None:
    """Check the size of an encoding.

    Raises:
        ValueError: it has another size.
    """
    if len(code) != size:
        raise ValueError(f"an encoding of {len(code)} bytes instead of {size}")

"""The updates of one round in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hpcps.numerics.device.upload import upload
from hpcps.numerics.layout import Layout, Mask


class DeviceUpdates:
    """n updates of one layout in the memory of one device; see `hpcps.numerics.updates.Updates`.

    The payloads are separate tensors, which are neither copied nor written to.

    Attributes:
        layout: the blocks of the d elements.
        payloads: the sent blocks of each update, one after another: contiguous `[m]`, all of one floating type.
        sent: the blocks that the payloads hold: `[n, B]`, on the host.
        checked: whether all values are known to be finite.
        device: the device of the payloads.
    """

    def __init__(
        self,
        layout: Layout,
        payloads: Sequence[torch.Tensor],
        sent: Mask | None = None,
        *,
        checked: bool = False,
        device: torch.device | None = None,
    ) -> None:
        """Take the payloads; only those that are not contiguous are copied.

        Args:
            layout: the blocks of the d elements.
            payloads: n tensors; the row of `sent` gives the size.
            sent: the blocks that each payload holds: `[n, B]`; by default all.
            checked: whether all values are known to be finite.
            device: the device if there are no payloads; otherwise that of the payloads.
        """
        everything = np.ones((len(payloads), len(layout.blocks)), np.bool_)
        self.layout = layout
        self.payloads = tuple(payload.detach().contiguous() for payload in payloads)
        self.sent = everything if sent is None else sent
        self.checked = checked
        assert self.payloads or device is not None, "without payloads the device is given"
        self.device: torch.device = self.payloads[0].device if self.payloads else torch.device(device or "cpu")
        for payload, size in zip(self.payloads, self._sizes().sum(axis=1), strict=True):
            assert payload.shape == (size,), "a payload holds the sent blocks, and nothing else"
            assert (payload.device, payload.dtype) == (self.device, self.payloads[0].dtype), "payloads are alike"

    @classmethod
    def of(cls, matrix: torch.Tensor, layout: Layout) -> DeviceUpdates:
        """Return the rows of a matrix `[n, d]` as updates that have sent all blocks."""
        return cls(layout, list(matrix.detach()))

    @classmethod
    def none(cls, layout: Layout, device: torch.device) -> DeviceUpdates:
        """Return no updates, on a device."""
        return cls(layout, [], device=device, checked=True)

    def __len__(self) -> int:
        return len(self.payloads)

    def _sizes(self) -> NDArray[np.int64]:
        """Return the size of each sent block, 0 for the others: `[n, B]`."""
        return np.where(self.sent, self.layout.sizes, 0)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The address of each sent block, 0 for the others and for empty ones: `[n, B]`."""
        sizes = self._sizes()
        begins = np.array([payload.data_ptr() for payload in self.payloads], np.int64)[:, None]
        starts = (np.cumsum(sizes, axis=1) - sizes) * self.payloads[0].element_size()
        return np.where(sizes > 0, begins + starts, 0)

    @cached_property
    def addresses(self) -> torch.Tensor:
        """`places` on the device."""
        return upload(self.places, self.device)

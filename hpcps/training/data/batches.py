"""The stream of training batches: shuffled, augmented, normalised, and resumable from two numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcps.layout import Vector
from hpcps.training.catalogue import Facts
from hpcps.training.data.samples import Indices, Labels, Pixels, Samples

Batch = tuple[Vector, Labels]
PADDING = 4


@dataclass(frozen=True)
class StreamState:
    """Where a stream is; together with the seed it is all there is to know.

    Attributes:
        passes: the number of passes over the shard begun before this one.
        position: the number of batches of this pass already given out.
    """

    passes: int = 0
    position: int = 0


class Normaliser:
    """Turns pixels `[b, c, h, w]` uint8 into (pixel / levels − mean) / std, float32."""

    def __init__(self, facts: Facts) -> None:
        mean, std = np.array(facts.mean), np.array(facts.std)
        self._scale = (1 / (facts.levels * std)).astype(np.float32).reshape(-1, 1, 1)
        self._shift = (-mean / std).astype(np.float32).reshape(-1, 1, 1)

    def __call__(self, images: Pixels) -> Vector:
        """Return a new float32 array of the same shape."""
        result = images * self._scale
        result += self._shift
        return result


def crop_and_flip(images: Pixels, rows: Indices, columns: Indices, mirrored: NDArray[np.bool_]) -> Pixels:
    """Pad images with `PADDING` black pixels, cut a window of the old size out of each and mirror some.

    Args:
        images: `[b, c, h, w]`.
        rows: the top row of each window in the padded image, 0 to 2 * PADDING, `[b]`.
        columns: the left column likewise, `[b]`.
        mirrored: which windows to flip left to right, `[b]`.
    """
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * PADDING, width + 2 * PADDING), dtype=images.dtype)
    padded[:, :, PADDING : PADDING + height, PADDING : PADDING + width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    result: Pixels = windows[np.arange(count), :, rows, columns]
    result[mirrored] = result[mirrored][..., ::-1]
    return result


class BatchStream:
    """An endless stream of batches: reshuffled at each pass, the last partial batch of a pass left out.

    Every pass has a random generator of its own: the stream can be resumed from its `state`, which is two numbers.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        normalise: Normaliser,
        generators: Callable[[str], np.random.Generator],
        *,
        augment: bool,
        state: StreamState = StreamState(),
    ) -> None:
        """Start the stream.

        Args:
            samples: the shard, at least one batch.
            batch_size: samples per batch.
            normalise: applied last.
            generators: gives the random generator for a purpose, the same one for the same purpose.
            augment: whether to crop and flip.
            state: where to resume.
        """
        assert len(samples) >= batch_size
        self._samples = samples
        self._batch_size = batch_size
        self._normalise = normalise
        self._generators = generators
        self._augment = augment
        self.batches_per_pass = len(samples) // batch_size
        self._state = state
        self._begin_pass()

    @property
    def state(self) -> StreamState:
        """Where the stream is now."""
        return self._state

    def restore(self, state: StreamState) -> None:
        """Go on from where a stream of the same shard and seed was."""
        self._state = state
        self._begin_pass()

    def _begin_pass(self) -> None:
        """Draw all of a pass's random numbers at once: cheaper than a few per batch."""
        generator = self._generators(f"batches/{self._state.passes}")
        self._order = generator.permutation(len(self._samples))
        if self._augment:
            self._windows = generator.integers(0, 2 * PADDING + 1, size=(2, len(self._samples)))
            self._mirrored = generator.random(len(self._samples)) < 0.5

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._state.position == self.batches_per_pass:
            self._state = StreamState(self._state.passes + 1, 0)
            self._begin_pass()
        here = slice(self._state.position * self._batch_size, (self._state.position + 1) * self._batch_size)
        self._state = StreamState(self._state.passes, self._state.position + 1)
        batch = self._samples.take(self._order[here])
        images = batch.images
        if self._augment:
            images = crop_and_flip(images, self._windows[0, here], self._windows[1, here], self._mirrored[here])
        return self._normalise(images), batch.labels

    def sweep(self) -> Iterator[Batch]:
        """Yield one pass of batches that are not augmented, in an order that is always the same.

        It is shuffled too: batches of one class would distort BatchNorm. The stream stays where it is.
        """
        order = self._generators("sweep").permutation(len(self._samples))
        for number in range(self.batches_per_pass):
            batch = self._samples.take(order[number * self._batch_size : (number + 1) * self._batch_size])
            yield self._normalise(batch.images), batch.labels

"""The stream of training batches: shuffled, augmented, normalised, and resumable from two numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from hpcps.data.base import Facts
from hpcps.data.samples import Indices, Inputs, Labels, Samples
from hpcps.numerics.layout import Vector

Batch = tuple[Vector, Labels]
"""Samples `[b, *shape]`, and their labels: `[b]`, or one sample after another `[b * targets]`."""

PADDING = 4

TEST_BATCH = 250
"""Samples in a batch of an evaluation: enough to be fast, and few enough for a process's share of the memory."""

TEST_TARGETS = 8192
"""The largest number of labels in a batch of an evaluation; it makes batches of long windows of text smaller."""

TEST_ELEMENTS = 1 << 20
"""The largest number of elements in a batch of an evaluation; it makes batches of images larger than 64x64 smaller."""


@dataclass(frozen=True)
class StreamState:
    """The position of a stream; with the seed, it determines the rest of the stream.

    Attributes:
        passes: the number of passes over the shard that are finished.
        position: the number of batches of the current pass that have been returned; of samples, in a stream whose
            batches change their size.
    """

    passes: int = 0
    position: int = 0


class Normaliser:
    """Maps samples to (x / levels − mean) / std, float32; float samples are not divided by levels.

    Attributes:
        shape: the shape of one sample of the result.
    """

    def __init__(self, facts: Facts, resize: int | None = None) -> None:
        """Take the facts about the samples as the network gets them.

        Args:
            facts: their shape, levels, mean (default: 0) and std (default: 1).
            resize: the height and width to which images are resized; None: they stay as they are.
        """
        mean, std = np.array(facts.mean or (0.0,)), np.array(facts.std or (1.0,))
        # One mean and one std for all, or one for each index of a sample's first dimension.
        shape = (-1, *(1 for _ in facts.shape[1:]))
        self._scale = (1 / (facts.levels * std)).astype(np.float32).reshape(shape)
        self._scale_of_floats = (1 / std).astype(np.float32).reshape(shape)
        self._shift = (-mean / std).astype(np.float32).reshape(shape)
        self.shape = facts.shape
        self._resize = resize

    def __call__(self, images: Inputs) -> Vector:
        """Return a new float32 array `[b, *shape]`."""
        result: Vector = images * (self._scale if images.dtype == np.uint8 else self._scale_of_floats)
        result += self._shift
        return result if self._resize is None else resized(result, self._resize, self._resize)


def resized(images: Vector, height: int, width: int) -> Vector:
    """Resize images by bilinear interpolation between the centres of pixels; the border has the value of its pixel.

    It is computed element by element, so the result does not depend on the machine or the batch.

    Args:
        images: `[b, c, h, w]` float32.
        height: the new height.
        width: the new width.

    Returns:
        `[b, c, height, width]` float32.
    """
    for axis, size in ((2, height), (3, width)):
        below, above, weight = _neighbours(images.shape[axis], size)
        low = np.take(images, below, axis)
        step = np.take(images, above, axis)
        step -= low
        step *= weight.reshape(-1, 1) if axis == 2 else weight
        step += low
        images = step
    return images


def _neighbours(old: int, new: int) -> tuple[Indices, Indices, Vector]:
    """Return the pixel before each new pixel's centre, the one after it, and the weight of that one: `[new]` each."""
    centres = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    below = centres.astype(np.int64)
    return below, np.minimum(below + 1, old - 1), (centres - below).astype(np.float32)


def evaluation_slices(samples: int, shape: tuple[int, ...], targets: int = 1) -> Iterator[slice]:
    """Yield the slices of a test set of samples of a shape, with some labels each, that are evaluated together."""
    step = max(1, min(TEST_BATCH, TEST_ELEMENTS // prod(shape), TEST_TARGETS // targets))
    for start in range(0, samples, step):
        yield slice(start, start + step)


def crop_and_flip(images: Inputs, rows: Indices, columns: Indices, mirrored: NDArray[np.bool_]) -> Inputs:
    """Pad images with `PADDING` black pixels, crop a window of the original size from each, and flip some of them.

    Args:
        images: `[b, c, h, w]`.
        rows: the top row of each window in the padded image, 0 to 2 * PADDING, `[b]`.
        columns: the left column likewise, `[b]`.
        mirrored: the windows that are flipped left to right, `[b]`.
    """
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * PADDING, width + 2 * PADDING), dtype=images.dtype)
    padded[:, :, PADDING : PADDING + height, PADDING : PADDING + width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    result: Inputs = windows[np.arange(count), :, rows, columns]
    result[mirrored] = result[mirrored][..., ::-1]
    return result


class BatchStream:
    """An endless stream of batches: each pass is shuffled anew and leaves out its last partial batch.

    Every pass has its own random generator, so the stream can be resumed from its `state`, which is two numbers.

    Attributes:
        batch_size: the samples of the next batches; whoever changes it needs positions in samples. A batch that is
            larger than the shard has all of its samples, and then some of a further pass.
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
        batches_per_epoch: int | None = None,
        unit: int | None = None,
    ) -> None:
        """Start the stream.

        Args:
            samples: the shard, at least one batch.
            batch_size: samples per batch.
            normalise: applied last.
            generators: returns the random generator for a purpose, in the same state at each call.
            augment: whether to crop and flip.
            state: the position from which to resume.
            batches_per_epoch: the batches that count as one pass for epochs; by default those of a pass. Shards of
                different sizes have the same epochs, so that all workers have the same learning rate.
            unit: the samples by which positions count; by default those of a batch, whose size does not change then.
        """
        assert len(samples) >= batch_size
        self._samples = samples
        self.batch_size = self._usual = batch_size
        self._unit = unit or batch_size
        self._normalise = normalise
        self._generators = generators
        self._augment = augment
        self.batches_per_pass = len(samples) // batch_size
        self.batches_per_epoch = batches_per_epoch or self.batches_per_pass
        self._state = state
        self._begin_pass()

    @property
    def state(self) -> StreamState:
        """The current position of the stream."""
        return self._state

    def restore(self, state: StreamState) -> None:
        """Continue from the position of a stream of the same shard and seed."""
        self._state = state
        self._begin_pass()

    def go_to(self, batches: int) -> None:
        """Continue after so many batches of the usual size from the beginning."""
        passes, batch = divmod(batches, self.batches_per_pass)
        self.restore(StreamState(passes, batch * self._usual // self._unit))

    def _begin_pass(self) -> None:
        """Draw all random numbers of a pass at once, which is cheaper than a few per batch."""
        generator = self._generators(f"batches/{self._state.passes}")
        self._order = generator.permutation(len(self._samples))
        if self._augment:
            self._windows = generator.integers(0, 2 * PADDING + 1, size=(2, len(self._samples)))
            self._mirrored = generator.random(len(self._samples)) < 0.5

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        passes, rest = divmod(self.batch_size, len(self._samples))
        parts = [self._take(size) for size in (*[len(self._samples)] * passes, *([rest] if rest else []))]
        if len(parts) == 1:
            return parts[0]
        inputs, labels = zip(*parts, strict=True)
        return np.concatenate(inputs), np.concatenate(labels)

    def _take(self, size: int) -> Batch:
        """Return the next samples, all of one pass."""
        if self._state.position * self._unit + size > len(self._samples):
            self._state = StreamState(self._state.passes + 1, 0)
            self._begin_pass()
        start = self._state.position * self._unit
        here = slice(start, start + size)
        self._state = StreamState(self._state.passes, self._state.position + size // self._unit)
        batch = self._samples.take(self._order[here])
        images = batch.images
        if self._augment:
            images = crop_and_flip(images, self._windows[0, here], self._windows[1, here], self._mirrored[here])
        return self._normalise(images), batch.labels.reshape(-1)

    def draw(self, number: int) -> Batch:
        """Return the random batch with this number, not augmented; the position of the stream does not change."""
        chosen = self._generators(f"draw/{number}").choice(len(self._samples), self._usual, replace=False)
        batch = self._samples.take(chosen)
        return self._normalise(batch.images), batch.labels.reshape(-1)

    def sweep(self) -> Iterator[Batch]:
        """Yield one pass of batches, not augmented, in the same order at each call.

        The order is shuffled, because batches of one class would distort BatchNorm. The position of the stream does not
        change.
        """
        order = self._generators("sweep").permutation(len(self._samples))
        for number in range(self.batches_per_pass):
            batch = self._samples.take(order[number * self._usual : (number + 1) * self._usual])
            yield self._normalise(batch.images), batch.labels.reshape(-1)

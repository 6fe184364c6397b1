"""Text for the prediction of the next byte: a novel that hpcps contains, or the user's own files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hpcps.data.base import Data, Facts
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.errors import DataError, InputError, SpecError
from hpcps.inputs import MiB, read_gzip, read_text

NOVEL = Path(__file__).with_name("pride_and_prejudice.txt.gz")
"""Jane Austen, "Pride and Prejudice" (1813), in the public domain: the text of Project Gutenberg without its header and
licence, as the R package janeaustenr 1.0.0 has it."""

MOST = 64 * MiB
"""The largest size of all files together."""

PASSAGES = 10
"""The equal parts of the text by which splits assign windows to shards, in place of classes."""

_TRAINING_TENTHS = 9


@dataclass(frozen=True)
class Corpus:
    """A text.

    Attributes:
        codes: the index of each byte in the vocabulary, `[n]`.
        vocabulary: the different bytes of the text, in ascending order.
        checksum: the first 16 hexadecimal digits of its SHA-256.
    """

    codes: NDArray[np.uint8]
    vocabulary: bytes
    checksum: str


class TextData(Data):
    """The bytes of a text, whose next byte a network predicts: "Pride and Prejudice", or own files.

    The novel by Jane Austen (1813) is in the public domain. It has 684,768 characters, each of which is a byte, and a
    vocabulary of 75. A sample is a window of `length` bytes, and its labels are the bytes that follow each of them.
    Windows do not overlap. Those of the last tenth of the text are the test set; the others are in a fixed random
    order. For splits that use classes, the class of a window is the tenth of the training text in which it begins.
    Records count bytes as samples, so the accuracy is the share of next bytes that are predicted rightly.
    """

    name: Literal["text"] = "text"
    dir: str | None = Field(
        None,
        description='Folder with own text: the files `*.txt`, UTF-8, in the order of their names; default: "Pride and '
        'Prejudice". Every process reads it.',
    )
    length: int = Field(128, ge=2, le=4096, description="Bytes in a window, which is a sample.")
    checksum: str | None = Field(
        None,
        pattern="^[0-9a-f]{16}$",
        description="First 16 digits of the SHA-256 of own text, by which runs on different texts differ; default: "
        "that of the files. A process that reads another text ends the run.",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_checksum(cls, keys: Any) -> Any:
        if not isinstance(keys, dict):
            return keys
        if keys.get("dir") is None and keys.get("checksum") is not None:
            raise SpecError("checksum is only for own text: set data.dir, or leave it out")
        if isinstance(keys.get("dir"), str) and keys.get("checksum") is None:
            try:
                return {**keys, "checksum": _corpus(keys["dir"]).checksum}
            except DataError as error:
                raise SpecError(str(error)) from error
        return keys

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        """The facts, for which the text is read."""
        codes = self.corpus.codes
        cut = self._cut
        train, test = (max(count - 1, 0) // self.length for count in (cut, len(codes) - cut))
        if not train or not test:
            raise SpecError(
                f"{self.dir or 'text'}: {len(codes):,} bytes are too few for windows of {self.length} bytes, of "
                "which the last tenth needs one: add text, or use a smaller data.length"
            )
        return Facts(
            shape=(self.length,),
            classes=len(self.corpus.vocabulary),
            train=train,
            test=test,
            levels=1,
            mean=(0.0,),
            targets=self.length,
            groups=PASSAGES,
        )

    @property
    def corpus(self) -> Corpus:
        """The text.

        Raises:
            DataError: it cannot be read, or is not the text of `checksum`.
        """
        corpus = _corpus(self.dir)
        if self.checksum not in (None, corpus.checksum):
            raise DataError(
                f"{self.dir}: the text has changed, or is another one on this host: its checksum is "
                f"{corpus.checksum}, not {self.checksum}"
            )
        return corpus

    @property
    def _cut(self) -> int:
        return len(self.corpus.codes) * _TRAINING_TENTHS // 10

    def open(self) -> tuple[Part, Part]:
        facts, length = self.facts, self.length
        # The raw output of Philox never changes.
        order = np.argsort(np.random.Philox(0).random_raw(facts.train), kind="stable")
        train = WindowPart(self.corpus.codes, order * length, length)
        return train, WindowPart(self.corpus.codes, self._cut + np.arange(facts.test) * length, length)


@dataclass(frozen=True)
class WindowPart:
    """The training or the test part: windows of a text.

    Attributes:
        codes: the text, `[n]`.
        starts: where each window begins.
        length: the bytes of a window.
    """

    codes: NDArray[np.uint8]
    starts: Indices
    length: int

    def labels(self) -> Labels:
        """Return the passage in which each window begins."""
        labels: Labels = self.starts * PASSAGES // (self.starts.max() + self.length)
        return labels

    def read(self, indices: Indices) -> Samples:
        """Copy the windows at `indices` and the byte that follows each of their bytes."""
        places = self.starts[indices][:, None] + np.arange(self.length)
        return Samples(self.codes[places], self.codes[places + 1].astype(np.int64))


def _corpus(directory: str | None) -> Corpus:
    """Return the text of a folder, or the novel; files that have not changed are read once.

    Raises:
        DataError: a file is missing, unreadable, too large or not UTF-8.
    """
    if directory is None:
        return _read(None, ())
    folder = Path(directory).expanduser()
    try:
        files = sorted((path for path in folder.iterdir() if path.suffix == ".txt"), key=lambda path: path.name)
        found = [(path, path.stat()) for path in files]
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: cannot be read ({error.strerror}): data.dir is the folder with own text") from error
    except ValueError as error:  # a null byte
        raise DataError(f"data.dir {directory!r} is no folder ({error})") from error
    # Opening a FIFO would wait for a process that writes to it.
    if other := next((path for path, status in found if not S_ISREG(status.st_mode)), None):
        raise DataError(f"{other}: not a regular file, as each *.txt in data.dir must be")
    return _read(folder, tuple((path, status.st_size, status.st_mtime_ns) for path, status in found))


@lru_cache(maxsize=4)
def _read(folder: Path | None, files: tuple[tuple[Path, int, int], ...]) -> Corpus:
    text, left = bytearray(), MOST
    try:
        if folder is None:
            text += read_gzip(NOVEL, MiB)
        for path, *_ in files:
            text += read_text(path, left).encode()
            left = MOST - len(text)
    except InputError as error:
        raise DataError(str(error)) from error
    if not text:
        raise DataError(f"{folder}: no file *.txt with text in it: data.dir is the folder with own text")
    values = np.frombuffer(bytes(text), np.uint8)
    vocabulary, codes = np.unique(values, return_inverse=True)
    checksum = hashlib.sha256(text).hexdigest()[:16]
    return Corpus(codes.reshape(-1).astype(np.uint8), vocabulary.tobytes(), checksum)

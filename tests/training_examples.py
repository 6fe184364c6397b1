"""Runs to make trainers from, and tiny data files in every official layout."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer

RECORDS = 4


def make_run(
    data: dict[str, Any], *, model: str | dict[str, Any] = "mlp", workers: int = 8, seed: int = 1, **train: Any
) -> Run:
    table = {
        "name": "example",
        "seed": seed,
        "topology": {"workers": workers},
        "model": {"name": model} if isinstance(model, str) else model,
        "data": data,
        "train": {"epochs": 20, "batch_size": 16, "device": "cpu", **train},
    }
    return Run.model_validate(table)


def parameters(trainer: Trainer) -> np.ndarray:
    """Return a copy of the parameters of a trainer."""
    out = np.empty(trainer.layout.size, np.float32)
    trainer.copy_to(out)
    return out


def cifar_records(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and pixels of one file, different in every file."""
    generator = np.random.default_rng(number)
    return generator.integers(0, 10, RECORDS, dtype=np.uint8), generator.integers(
        0, 256, (RECORDS, 3072), dtype=np.uint8
    )


def _cifar_names() -> list[str]:
    return [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(_cifar_names()):
        labels, pixels = cifar_records(number)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())


def dump(protocol: int) -> Callable[[np.ndarray, np.ndarray], bytes]:
    return lambda labels, pixels: pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=protocol)


def dump_as_python2(labels: np.ndarray, pixels: np.ndarray) -> bytes:
    """What Python 2 wrote, as the official files are: all strings are of bytes, of the old opcodes."""
    rows, columns = pixels.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"K"
        + bytes([rows])
        + b"M"
        + struct.pack("<H", columns)
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T"
        + struct.pack("<i", pixels.size)
        + pixels.tobytes()
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"U\x0bbatch_labelU\x01xu."


def write_python(folder: Path, dump: Callable[[np.ndarray, np.ndarray], bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(_cifar_names()):
        (folder / name).write_bytes(dump(*cifar_records(number)))


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, train: int, test: int, *, compressed: bool) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(5)
    arrays = {
        "train-images-idx3-ubyte": generator.integers(0, 256, (train, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": generator.integers(0, 10, train, dtype=np.uint8),
        "t10k-images-idx3-ubyte": generator.integers(0, 256, (test, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": generator.integers(0, 10, test, dtype=np.uint8),
    }
    for name, array in arrays.items():
        content = idx_bytes(array)
        (folder / (f"{name}.gz" if compressed else name)).write_bytes(gzip.compress(content) if compressed else content)
    return arrays

"""A small valid experiment file, and how to write others."""

from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = """
name = "small"
[topology]
workers = 4
[model]
name = "cnn"
[data]
name = "digits"
[train]
epochs = 2
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write an experiment file: the small one and what follows, or a whole text."""

    def write(more: str = "", text: str = SMALL) -> Path:
        path = tmp_path / "experiment.toml"
        path.write_text(text + more, encoding="utf-8")
        return path

    return write

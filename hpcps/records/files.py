"""Atomic writing of files."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, *content: str | memoryview) -> None:
    """Write a file from parts atomically: write a temporary file beside it, then rename that."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for part in content:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
